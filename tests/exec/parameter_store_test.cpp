#include "hetermoe/exec/parameter_store.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/exec/device_state.h"
#include "hetermoe/placement/placement.h"
#include "tests/nn/peak_of.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe::testing {
namespace {

/// The stores of all devices under one plan.
class Stores {
 public:
  Stores(const ModelConfig& model, const Plan& plan, const std::vector<Unit>& frozen = {})
      : model_(model), frozen_(frozen) {
    const std::vector<State> states = make_states(plan, model_, frozen_);
    for (DeviceId d = 0; d < static_cast<DeviceId>(plan.dtype.size()); ++d)
      stores_.push_back(std::make_unique<ParameterStore>(d, model_, storage_options(plan, d), states));
  }

  ParameterStore& on(DeviceId device) { return *stores_[idx(device)]; }

  /// Values as a run starts with, and moments as it makes them.
  void fill() {
    for (const std::unique_ptr<ParameterStore>& store : stores_) {
      store->initialize(1);
      store->set_updates(17);
      for (const LogicalTensor& tensor : store->tensors()) {
        if (!tensor.exp_avg.defined()) continue;
        tensor.exp_avg.copy_(tensor.value * 3);
        tensor.exp_avg_sq.copy_(tensor.value * tensor.value);
        if (tensor.master.defined()) tensor.master.add_(1e-5);
      }
    }
  }

  /// Everything moves to where `plan` places it. Returns how many units came from other devices.
  i64 move_to(const Plan& plan) {
    const std::vector<State> states = make_states(plan, model_, frozen_);
    i64 received = 0;
    for (const auto& [layer, part] : shelves()) {
      for (const auto& store : stores_) store->prepare(states, part, layer);
      for (const auto& store : stores_) {
        for (const Unit& unit : store->new_units()) {
          receive(*store, unit);
          ++received;
        }
      }
      for (const auto& store : stores_) store->adopt(part, layer);
    }
    for (const auto& store : stores_) {
      store->bind(states);
      store->set_updates(17);
    }
    return received;
  }

  using Bits = std::map<std::string, std::vector<at::Tensor>>;
  /// All that outlives a step, by device and name.
  std::vector<Bits> bits() const {
    std::vector<Bits> all;
    for (const auto& store : stores_) {
      all.emplace_back();
      for (const LogicalTensor& t : store->tensors())
        all.back()[t.name] = {t.value.clone(), copy(t.exp_avg), copy(t.exp_avg_sq), copy(t.master)};
    }
    return all;
  }
  i64 bytes() const {
    i64 sum = 0;
    for (const auto& store : stores_) sum += store->bytes();
    return sum;
  }

 private:
  static at::Tensor copy(const at::Tensor& tensor) {
    return tensor.defined() ? tensor.clone() : at::Tensor();
  }
  std::set<std::pair<i32, UnitPart>> shelves() const {
    std::set<std::pair<i32, UnitPart>> all;
    for (const Unit& unit : units(model_)) all.insert({unit.layer, unit.part});
    return all;
  }
  void receive(ParameterStore& store, const Unit& unit) {
    for (const auto& other : stores_) {
      if (!other->holds(unit)) continue;
      const UnitTensors from = other->tensors(unit), to = store.prepared(unit);
      for (std::size_t i = 0; i < to.tensors.size(); ++i) {
        to.tensors[i].value.copy_(from.tensors[i].value);
        if (!to.tensors[i].exp_avg.defined()) continue;
        to.tensors[i].exp_avg.copy_(from.tensors[i].exp_avg);
        to.tensors[i].exp_avg_sq.copy_(from.tensors[i].exp_avg_sq);
        if (to.tensors[i].master.defined()) to.tensors[i].master.copy_(from.tensors[i].master);
      }
      return;
    }
    ADD_FAILURE() << "nobody has " << to_string(unit);
  }

  ModelConfig model_;
  std::vector<Unit> frozen_;
  std::vector<std::unique_ptr<ParameterStore>> stores_;
};

void expect_same(const std::vector<Stores::Bits>& a, const std::vector<Stores::Bits>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t d = 0; d < a.size(); ++d) {
    ASSERT_EQ(a[d].size(), b[d].size()) << "device " << d;
    for (const auto& [name, tensors] : a[d]) {
      const std::vector<at::Tensor>& others = b[d].at(name);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        ASSERT_EQ(tensors[i].defined(), others[i].defined()) << name << " " << i;
        if (tensors[i].defined()) {
          EXPECT_TRUE(at::equal(tensors[i], others[i])) << name << " " << i;
        }
      }
    }
  }
}

TEST(ParameterStore, HoldsTheUnitsOfItsStates) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = make_cluster(4, 3);
  for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    Stores stores(model, named.plan);
    std::map<Unit, i64> copies;
    for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
      for (const Unit& unit : stores.on(d).units()) {
        ++copies[unit];
        EXPECT_TRUE(stores.on(d).holds(unit));
        const UnitTensors tensors = stores.on(d).tensors(unit);
        i64 numbers = 0;
        for (const LogicalTensor& t : tensors.tensors) numbers += t.buffer ? 0 : t.value.numel();
        EXPECT_EQ(numbers, num_parameters(model, unit)) << to_string(unit);
        EXPECT_TRUE(std::binary_search(tensors.copies.begin(), tensors.copies.end(), d));
        EXPECT_EQ(tensors.home, tensors.copies.front());
      }
    }
    EXPECT_EQ(copies.size(), units(model).size()) << named.name;
    EXPECT_FALSE(stores.on(0).holds({.layer = 99, .part = UnitPart::kAttention}));
  }
}

/// Masters and moments are made anew, and the old ones are gone before: together they are more than a device
/// may have room for.
TEST(ParameterStore, InitializingTakesNoMoreThanAMaster) {
  const ModelConfig model = load_model("tiny");
  Plan plan = find_strategy("single").make(model, make_cluster(1), small_step());
  use_dtype(plan, Dtype::kBf16);
  i64 lasting = 0;
  const Bytes peak = peak_of([&] {
    Stores stores(model, plan);
    stores.on(0).initialize(1);
    lasting = stores.on(0).bytes();
  });
  const double largest = static_cast<double>(layer_weights(model, 0).experts);
  EXPECT_LE(peak - static_cast<Bytes>(lasting), 4 * largest);  // master and moments are 12 bytes for each
}

TEST(ParameterStore, AFrozen16BitUnitIsItsValueAlone) {
  const ModelConfig model = load_model("tiny");
  Plan plan = find_strategy("single").make(model, load_cluster("one"), small_step());
  use_dtype(plan, Dtype::kBf16);
  Stores stores(model, plan, {Unit{}});
  const LogicalTensor frozen = stores.on(0).tensors(Unit{}).tensors[0];
  EXPECT_EQ(frozen.value.scalar_type(), at::kBFloat16);
  EXPECT_FALSE(frozen.grad.defined() || frozen.master.defined() || frozen.exp_avg.defined());
  const LogicalTensor trained = stores.on(0).tensors({.layer = 0, .part = UnitPart::kAttention}).tensors[0];
  EXPECT_EQ(trained.grad.scalar_type(), at::kFloat);
  EXPECT_EQ(trained.master.scalar_type(), at::kFloat);
}

TEST(ParameterStore, ThereAndBackLeavesEveryBit) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = make_cluster(4, 3);
  std::vector<Unit> every_second;
  for (const Unit& unit : units(model)) {
    if (unit.expert % 2 == 1) every_second.push_back(unit);
  }
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
    std::vector<NamedPlan> plans = strategy_plans(model, cluster, small_step());
    for (NamedPlan& named : plans) use_dtype(named.plan, dtype);
    for (const std::vector<Unit>& frozen : {std::vector<Unit>{}, every_second}) {
      for (const NamedPlan& named : plans) {
        Stores stores(model, plans[4].plan, frozen);  // zebra
        stores.fill();
        const std::vector<Stores::Bits> before = stores.bits();
        const i64 bytes = stores.bytes();
        Stores fresh(model, named.plan, frozen);
        fresh.fill();
        const i64 received = stores.move_to(named.plan);
        expect_same(stores.bits(), fresh.bits());
        EXPECT_EQ(stores.bytes(), fresh.bytes()) << named.name;
        if (named.name == "zebra") {
          EXPECT_EQ(received, 0);
        }
        stores.move_to(plans[4].plan);
        expect_same(stores.bits(), before);
        EXPECT_EQ(stores.bytes(), bytes);
      }
    }
  }
}

TEST(ParameterStore, RefusesStatesThatAreElsewhere) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = make_cluster(4, 3);
  const std::vector<NamedPlan> plans = strategy_plans(model, cluster, small_step());
  Stores stores(model, plans[4].plan);
  EXPECT_THROW(stores.on(3).bind(make_states(plans[1].plan, model)), std::exception);
}

}  // namespace
}  // namespace hetermoe::testing
