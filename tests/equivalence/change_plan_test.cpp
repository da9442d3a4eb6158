#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <iostream>
#include <mutex>
#include <set>

#include "hetermoe/balance/trace_balance.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/run/health.h"
#include "hetermoe/train/session/session.h"
#include "tests/support/faults.h"
#include "tests/support/one_thread.h"
#include "tests/support/strategy_plans.h"

// A session that goes over to another plan between two steps: nothing of the model may change by it.
namespace hetermoe::testing {
namespace {

/// Three device types and seven experts, which divide nothing.
struct World {
  ModelConfig model = [] {
    ModelConfig m = tiny_mixtral();
    m.num_experts = 7;
    return m;
  }();
  Cluster cluster = make_cluster(5, 3, 2);
  StepOptions step = {.balance = true, .aux_group = 1};

  Plan plan(const std::string& strategy, Dtype dtype = Dtype::kFp64) const {
    Plan plan = find_strategy(strategy).make(model, cluster, small_step());
    use_dtype(plan, dtype);
    return plan;
  }
  std::unique_ptr<Session> session(const Plan& plan, const HookedTransport::Hook& on_send = {}) const {
    Session::Options options;
    options.step = step;
    return std::make_unique<Session>(model, cluster, plan, options, [&](const Schedule&) {
      return std::make_unique<HookedTransport>(make_in_process_transport(cluster.num_devices()), on_send,
                                               HookedTransport::Hook(), std::function<void()>());
    });
  }
};

StepResult train(Session& session, i64 step) {
  StepInput input = random_input(session.plan(), session.model(), 100 + static_cast<u64>(step));
  input.step = step;
  input.learning_rate = 1e-2;
  input.max_grad_norm = 1;
  return session.train_step(input);
}

/// Everything that training keeps of every device, by unit and name.
std::map<std::string, std::vector<at::Tensor>> contents(Session& session) {
  std::map<std::string, std::vector<at::Tensor>> all;
  for (DeviceState* state : session.states()) {
    for (const Unit& unit : state->store().units()) {
      const UnitTensors of_unit = state->store().tensors(unit);
      for (const LogicalTensor& t : of_unit.tensors) {
        std::vector<at::Tensor>& list = all[fmt::format("{} {}", state->device(), t.name)];
        for (const at::Tensor& tensor : {t.value, t.exp_avg, t.exp_avg_sq, t.master})
          list.push_back(tensor.defined() ? tensor.clone() : at::zeros({0}));
        list.push_back(at::scalar_tensor(of_unit.updates, at::kLong));
      }
    }
  }
  return all;
}

void expect_bit_equal(const std::map<std::string, std::vector<at::Tensor>>& got,
                      const std::map<std::string, std::vector<at::Tensor>>& expected,
                      const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (const auto& [name, tensors] : expected) {
    ASSERT_EQ(got.count(name), 1U) << what << " " << name;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      EXPECT_TRUE(at::equal(got.at(name)[i], tensors[i])) << what << " " << name << " " << i;
  }
}

TEST(ChangePlan, LossesAreThoseOfTheRunWithoutAChange) {
  const World world;
  const Plan zebra = world.plan("zebra"), ep = world.plan("ep");
  const std::unique_ptr<Session> steady = world.session(zebra), changing = world.session(zebra);
  steady->initialize(1);
  changing->initialize(1);
  double worst = 0;
  for (i64 step = 0; step < 12; ++step) {
    if (step == 4) changing->change_plan(ep, {});
    if (step == 8) changing->change_plan(zebra, {});
    const StepResult expected = train(*steady, step), got = train(*changing, step);
    worst = std::max(worst, relative(got.loss, expected.loss));
    worst = std::max(worst, relative(got.grad_norm, expected.grad_norm));
    EXPECT_TRUE(at::equal(got.counts_LE, expected.counts_LE)) << step;
  }
  std::cout << fmt::format("zebra -> ep -> zebra, 3 device types, 7 experts: largest difference {:.2e}\n",
                           worst);
  EXPECT_LE(worst, 1e-9);
  EXPECT_GT(worst, 0) << "ep adds in another order: equal bits would mean that nothing changed";
}

TEST(ChangePlan, ThereAndBackLeavesEveryTensorAndMomentBitEqual) {
  const World world;
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    const std::vector<NamedPlan> plans = strategy_plans(world.model, world.cluster, small_step());
    for (const NamedPlan& from : plans) {
      Plan first = from.plan;
      use_dtype(first, dtype);
      const std::unique_ptr<Session> session = world.session(first);
      session->initialize(1);
      for (i64 step = 0; step < 2; ++step) train(*session, step);
      const auto before = contents(*session);
      for (const NamedPlan& to : plans) {
        Plan second = to.plan;
        use_dtype(second, dtype);
        session->change_plan(second, {});
        session->values();  // replicas are compared
        session->change_plan(first, {});
        expect_bit_equal(contents(*session), before,
                         fmt::format("{} {} {}", name_of(dtype), from.name, to.name));
      }
    }
  }
}

/// Experts with several owners, and owners by every rule that a run may have.
TEST(ChangePlan, ThereAndBackOfABalancersOwnersLeavesEveryTensorAndMomentBitEqual) {
  const World world;
  for (const std::string strategy : {"zebra", "ep"}) {
    const Plan first = world.plan(strategy);
    std::set<DeviceId> owners;
    for (const ExpertOwners& of_expert : first.groups[0].layers[0].experts)
      owners.insert(of_expert[0].device);
    const TraceBalance balance(world.model, world.cluster, first, world.step, {});
    std::vector<std::vector<double>> loads(layers_with_experts(world.model).size());
    for (std::size_t l = 0; l < loads.size(); ++l) {
      for (i64 e = 0; e < world.model.num_experts; ++e)
        loads[l].push_back(static_cast<double>((3 * e + static_cast<i64>(l)) % 7 + 1));
    }
    const std::unique_ptr<Session> session = world.session(first);
    session->initialize(1);
    for (i64 step = 0; step < 2; ++step) train(*session, step);
    const auto before = contents(*session);
    Plan last = first;
    for (const std::string name : {"lpt", "eplb", "lplb", "relibra", "locality"}) {
      const Plan second = with_owners(first, balance.placed({.balancer = name,
                                                             .replicas = static_cast<i64>(owners.size()),
                                                             .weigh = Weigh::kCount,
                                                             .topology = "ring"},
                                                            loads));
      EXPECT_NE(to_json(second), to_json(first)) << name;
      session->change_plan(second, {});
      session->values();  // replicas are compared
      // From one balancer's owners to the next one's, and home.
      session->change_plan(with_owners(first, last), {});
      session->change_plan(second, {});
      session->change_plan(first, {});
      expect_bit_equal(contents(*session), before, strategy + " " + name);
      last = second;
    }
  }
}

TEST(ChangePlan, TheStepAfterItEqualsThatOfASessionWhichBeganWithThePlan) {
  const World world;
  for (const NamedPlan& to : strategy_plans(world.model, world.cluster, small_step())) {
    const std::unique_ptr<Session> changed = world.session(world.plan("zebra")),
                                   fresh = world.session(to.plan);
    changed->initialize(1);
    fresh->initialize(1);
    changed->change_plan(to.plan, {});
    const StepResult got = train(*changed, 0), expected = train(*fresh, 0);
    EXPECT_EQ(got.loss, expected.loss) << to.name;
    EXPECT_EQ(got.grad_norm, expected.grad_norm) << to.name;
    expect_bit_equal(contents(*changed), contents(*fresh), to.name);
    EXPECT_EQ(changed->evaluate(random_input(to.plan, world.model)).loss,
              fresh->evaluate(random_input(to.plan, world.model)).loss);
  }
}

/// Bytes of tensors in the messages of migrate ops from one device to another.
struct Counter {
  std::mutex mutex;
  double bytes = 0;
  i64 calls = 0;

  void add(const ExchangeCall& call, const std::vector<Message>& out) {
    if (!call.name.starts_with("migrate")) return;
    const std::lock_guard lock(mutex);
    ++calls;
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (call.participants[i] == call.self) continue;
      for (const at::Tensor& tensor : out[i].tensors) bytes += static_cast<double>(tensor.nbytes());
    }
  }
};

TEST(ChangePlan, AsManyBytesCrossTheTransportAsPredicted) {
  const World world;
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    Counter counter;
    const Plan zebra = world.plan("zebra", dtype), ep = world.plan("ep", dtype);
    const std::unique_ptr<Session> session = world.session(
        zebra, [&](const ExchangeCall& call, std::vector<Message>& out) { counter.add(call, out); });
    session->initialize(1);
    const Session::Change change = session->change_plan(ep, {});
    const UnitMoves predicted = moves_between(zebra, ep, world.model, world.cluster);
    EXPECT_GT(predicted.bytes(), 0);
    EXPECT_EQ(counter.bytes, predicted.bytes()) << name_of(dtype);
    EXPECT_EQ(change.migration.moves, predicted.moves);
    EXPECT_EQ(change.executed.ops.size(), change.migration.schedule.ops.size());
    EXPECT_EQ(counter.calls, static_cast<i64>(change.executed.spans.size()));
    std::cout << fmt::format("{}: {} bytes in {} moves, predicted {}\n", name_of(dtype), counter.bytes,
                             change.migration.moves.size(), predicted.bytes());
  }
}

TEST(ChangePlan, ToThePlanInForceMovesNothing) {
  const World world;
  const std::unique_ptr<Session> session = world.session(world.plan("zebra"));
  session->initialize(1);
  const auto before = contents(*session);
  EXPECT_TRUE(session->change_plan(world.plan("zebra"), {}).migration.moves.empty());
  expect_bit_equal(contents(*session), before, "zebra");
}

TEST(ChangePlan, DevicesMayLeaveAndComeBack) {
  const World world;
  const Plan single = world.plan("single"), ep = world.plan("ep");
  const std::unique_ptr<Session> session = world.session(ep), steady = world.session(ep);
  session->initialize(1);
  steady->initialize(1);
  EXPECT_EQ(session->states().size(), 5U);
  session->change_plan(single, {});
  EXPECT_EQ(session->states().size(), 1U);
  session->change_plan(ep, {});
  EXPECT_EQ(session->states().size(), 5U);
  EXPECT_EQ(train(*session, 0).loss, train(*steady, 0).loss);
}

TEST(ChangePlan, FrozenUnitsTravelWithoutMomentsAndStayFrozen) {
  World world;
  world.step.frozen = {{.layer = 0, .part = UnitPart::kAttention},
                       {.layer = 1, .part = UnitPart::kExperts, .expert = 3}};
  const Plan zebra = world.plan("zebra"), ep = world.plan("ep");
  Counter counter;
  const std::unique_ptr<Session> session = world.session(
      zebra, [&](const ExchangeCall& call, std::vector<Message>& out) { counter.add(call, out); });
  const std::unique_ptr<Session> steady = world.session(zebra);
  session->initialize(1);
  steady->initialize(1);
  train(*session, 0);
  train(*steady, 0);
  const auto before = contents(*session);
  session->change_plan(ep, {});
  MoveOptions options;
  options.frozen = world.step.frozen;
  EXPECT_EQ(counter.bytes, moves_between(zebra, ep, world.model, world.cluster, options).bytes());
  EXPECT_LT(counter.bytes, moves_between(zebra, ep, world.model, world.cluster).bytes());
  EXPECT_LE(relative(train(*session, 1).loss, train(*steady, 1).loss), 1e-9);
  session->change_plan(zebra, {});
  for (const auto& [name, tensors] : contents(*session)) {
    if (name.find("layers.1.block_sparse_moe.experts.3.") == std::string::npos) continue;
    EXPECT_TRUE(at::equal(tensors[0], before.at(name)[0])) << name;
    EXPECT_EQ(tensors[1].numel(), 0) << name;
  }
}

/// Parts that stay where they are, in two ways.
struct Fixed {
  std::string name;
  bool shards_optimizer = false, shards_weights = false;
  std::vector<std::string> on_hosts = {};

  Plan plan(const World& world, Dtype dtype) const {
    Plan plan = world.plan("ep", dtype);
    plan.shard_optimizer = shards_optimizer;
    if (shards_weights) shard_weights(plan);
    offload(plan, world.model, world.cluster, on_hosts, "test");
    return plan;
  }
};

const Fixed kFixed[] = {
    {.name = "sharded optimizer", .shards_optimizer = true},
    {.name = "sharded weights", .shards_weights = true},
    {.name = "optimizers on hosts", .on_hosts = {"embed.optimizer", "attention.optimizer", "head.optimizer"}},
    {.name = "weights on hosts", .on_hosts = {"attention.weights", "head.weights"}},
    {.name = "both", .shards_optimizer = true, .on_hosts = {"attention.weights"}}};

/// Each expert with another owner, activations in fewer bytes, exchanges in two parts.
Plan rearranged(Plan plan, const World& world) {
  for (LayerPlacement& layer : plan.groups[0].layers)
    std::rotate(layer.experts.begin(), layer.experts.begin() + 1, layer.experts.end());
  plan.chunks = 2;
  plan.recompute = Recompute::kResend;
  if (uses_hosts(plan)) offload(plan, world.model, world.cluster, {"saved"}, "test");
  return plan;
}

World world_with_hosts() {
  World world;
  for (Node& node : world.cluster.nodes) node.host = NodeHost{.memory_gib = 64};
  return world;
}

std::unique_ptr<Session> session_of(const World& world, const Plan& plan) {
  Session::Options options;
  options.step = world.step;
  return std::make_unique<Session>(world.model, world.cluster, plan, options);
}

TEST(ChangePlan, WhatIsDividedOrOnHostsStaysAndAllElseMayMove) {
  const World world = world_with_hosts();
  for (const Fixed& fixed : kFixed) {
    for (const Dtype dtype : {Dtype::kFp64, Dtype::kBf16}) {
      const std::string what = fixed.name + " " + name_of(dtype);
      const Plan first = fixed.plan(world, dtype), second = rearranged(first, world);
      ASSERT_EQ(validate(second, world.model, world.cluster), std::vector<std::string>{}) << what;
      const std::unique_ptr<Session> session = session_of(world, first), steady = session_of(world, first);
      session->initialize(1), steady->initialize(1);
      for (i64 step = 0; step < 2; ++step) train(*session, step), train(*steady, step);
      const auto before = contents(*session);
      EXPECT_GT(session->change_plan(second, {}).migration.moves.size(), 0U) << what;
      session->change_plan(first, {});
      expect_bit_equal(contents(*session), before, what);
      session->change_plan(second, {});
      const double tolerance = dtype == Dtype::kFp64 ? 1e-9 : 1e-2;
      for (i64 step = 2; step < 5; ++step) {
        const StepResult got = train(*session, step), expected = train(*steady, step);
        EXPECT_LE(relative(got.loss, expected.loss), tolerance) << what;
        EXPECT_LE(relative(got.grad_norm, expected.grad_norm), tolerance) << what;
      }
      session->change_plan(first, {});
      EXPECT_EQ(contents(*session).size(), before.size()) << what;
    }
  }
}

TEST(ChangePlan, AHundredChangesLeaveNoMemoryBehind) {
  const World world;
  const Plan zebra = world.plan("zebra"), ep = world.plan("ep");
  const std::unique_ptr<Session> session = world.session(zebra);
  session->initialize(1);
  const auto bytes = [&] {
    i64 sum = 0;
    for (DeviceState* state : session->states()) sum += state->store().bytes();
    return sum;
  };
  const i64 before = bytes();
  Bytes settled = 0;
  for (i64 change = 0; change < 100; ++change) {
    session->change_plan(change % 2 == 0 ? ep : zebra, {});
    train(*session, change);
    if (change == 19) settled = resident_watermark();
  }
  EXPECT_EQ(bytes(), before);
  const Bytes grown = resident_watermark() - settled;
  std::cout << fmt::format("100 changes: {} resident after 20, {} more after 100\n", format_bytes(settled),
                           format_bytes(grown));
  EXPECT_LT(grown, 4.0 * 1024 * 1024);
}

}  // namespace
}  // namespace hetermoe::testing
