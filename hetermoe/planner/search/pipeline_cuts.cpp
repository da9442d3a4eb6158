#include "hetermoe/planner/search/pipeline_cuts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/search/sketches.h"

namespace hetermoe {
namespace {

constexpr i64 kMostUneven = 16;         ///< devices of a stage where one more or less matters
constexpr i64 kLeftOver = 4;            ///< at most a part of so many stays idle
constexpr i64 kWorthRest = 8;           ///< a rest of less than such a part of a group stays idle
constexpr i64 kFewPipelines = 8;        ///< up to so many are tried whether or not they divide
constexpr std::size_t kMostSizes = 16;  ///< of stages on one set of devices
constexpr std::size_t kManyClasses = 3;
constexpr std::size_t kPermuted = 3;  ///< classes of few devices

using Order = std::vector<std::size_t>;  ///< classes as they follow each other along a pipeline

/// Each set of classes, in the order of advantage and the other way round; few classes of few devices in
/// every order.
std::vector<Order> class_orders(const std::vector<ClassSet>& sets, bool every) {
  std::vector<Order> all;
  for (const ClassSet& set : sets) {
    Order order = set;
    if (every && set.size() <= kPermuted) {
      std::sort(order.begin(), order.end());
      do {
        all.push_back(order);
      } while (std::next_permutation(order.begin(), order.end()));
      continue;
    }
    all.push_back(set);
    if (set.size() > 1) all.emplace_back(set.rbegin(), set.rend());
  }
  return all;
}

/// So many groups have room for weights and gradients of their own, and for a sharded optimizer together; of
/// gathered weights no group has its own.
i64 most_groups(const Rates& rates) {
  const ModelConfig& model = rates.request().model;
  const double experts = rates.moe_layers() * real(model.num_experts) * real(rates.counts().expert);
  const bool gathers = rates.request().limits.gather_weights;
  const double others = rates.attention_parameters();
  StateBytes of_experts = rates.state_of(UnitPart::kExperts),
             of_others = rates.state_of(UnitPart::kAttention);
  if (rates.request().limits.host_use != HostUse::kNone) {
    if (!rates.trained().adapts())
      of_experts.master = of_experts.moments = of_others.master = of_others.moments = 0;
    if (rates.visits(UnitPart::kExperts)) of_experts = rates.housed(UnitPart::kExperts).stays;
    if (rates.visits(UnitPart::kAttention)) of_others = rates.housed(UnitPart::kAttention).stays;
  }
  const Bytes each_experts = experts * of_experts.weights_and_gradients();
  const Bytes each_others = others * of_others.weights_and_gradients();
  const Bytes of_group = gathers ? each_experts : each_experts + each_others;
  Bytes room =
      -experts * (of_experts.master + of_experts.moments) - others * (of_others.master + of_others.moments);
  if (gathers) room -= each_others;
  for (std::size_t c = 0; c < rates.num_classes(); ++c)
    room += rates.usable_memory(c) * real(rates.classes()[c].size());
  return static_cast<i64>(std::max(0.0, room) / std::max(1.0, of_group));
}

/// Numbers of groups worth a look: few, those that divide devices or sequences, and that take round numbers
/// of devices of a single class.
std::set<i64> group_counts(const Rates& rates, const ClassSet& used) {
  std::set<i64> counts;
  i64 least = std::numeric_limits<i64>::max();
  for (const std::size_t c : used) least = std::min(least, rates.classes()[c].size());
  const i64 sequences = rates.request().sequences;
  const i64 limit = std::min({std::max<i64>(1, most_groups(rates)), sequences, least});
  for (i64 groups = 1; groups <= limit; ++groups) {
    const bool divides = std::all_of(used.begin(), used.end(),
                                     [&](std::size_t c) { return rates.classes()[c].size() % groups == 0; });
    if (divides || groups <= kFewPipelines || sequences % groups == 0) counts.insert(groups);
  }
  if (used.size() > 1) return counts;
  const auto per_node = static_cast<i64>(rates.classes()[used[0]].per_node);
  for (const i64 number : kRoundNumbers) {
    for (const i64 each : {number, number * per_node})
      if (const i64 groups = least / each; groups >= 1 && groups <= limit) counts.insert(groups);
  }
  return counts;
}

/// Devices of each class that a group may take of those that are there for it: all, whole nodes, a power of
/// two of a single class; a single group also all but one of a small class.
std::set<std::vector<i64>> spans_of(const Rates& rates, const ClassSet& used, i64 groups) {
  std::vector<i64> all(rates.num_classes(), 0), nodes = all, power = all;
  for (const std::size_t c : used) {
    const DeviceClass& cls = rates.classes()[c];
    const auto per_node = static_cast<i64>(cls.per_node);
    all[c] = nodes[c] = power[c] = cls.size() / groups;
    if (all[c] >= per_node) nodes[c] = all[c] / per_node * per_node;
    if (used.size() == 1)
      for (power[c] = 1; 2 * power[c] <= all[c];) power[c] *= 2;
  }
  std::set<std::vector<i64>> spans = {all, nodes, power};
  for (const std::size_t c : used) {
    if (groups > 1 || all[c] < 2 || all[c] > kMostUneven) continue;
    std::vector<i64> fewer = all;
    --fewer[c];
    spans.insert(std::move(fewer));
  }
  return spans;
}

/// Stages of some classes one after another.
class StageCutter {
 public:
  StageCutter(const Rates& rates, const Order& order, const std::vector<i64>& devices)
      : order_(order), devices_(devices), layers_(rates.request().model.num_layers) {
    for (const std::size_t c : order) {
      Shape one(rates.num_classes(), 0);
      one[c] = 1;
      speed_.push_back(ideal_rate(rates, one));
    }
  }

  std::vector<Stages> all() {
    i64 sum = 0;
    for (const std::size_t c : order_) sum += devices_[c];
    std::set<i64> sizes;
    for (i64 stages = 2; stages <= std::min(layers_, sum); ++stages) {
      const i64 size = sum / stages;
      sizes.insert(size);
      if (order_.size() == 1 && size <= kMostUneven && sum % stages > 0) add(spread(order_[0], sum, stages));
    }
    for (const i64 size : thinned(sizes)) add_of_size(size);
    return std::move(out_);
  }

 private:
  static std::vector<i64> thinned(const std::set<i64>& sizes) {
    const std::vector<i64> all(sizes.begin(), sizes.end());
    std::vector<i64> some;
    for (std::size_t i = 0; i < all.size(); i += 1 + all.size() / kMostSizes) some.push_back(all[i]);
    return some;
  }

  /// The first of so many stages have one device more.
  static Stages spread(std::size_t cls, i64 devices, i64 stages) {
    Stages out;
    for (i64 s = 0; s < stages; ++s) out.push_back({cls, devices / stages + (s < devices % stages ? 1 : 0)});
    return out;
  }

  /// What devices do that are too few for one stage more of their class: stay idle; join the first stages,
  /// which have most microbatches in flight; or make smaller stages, each half as large as the one before.
  enum class Left { kIdle, kJoin, kSmaller };

  /// Stages of equally many devices, or of equally fast ones.
  void add_of_size(i64 size) {
    std::vector<i64> equal(order_.size(), size), fast;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const auto alike = static_cast<i64>(std::llround(real(size) * speed_[0] / speed_[i]));
      fast.push_back(std::clamp<i64>(alike, 1, std::max<i64>(1, devices_[order_[i]])));
    }
    for (const std::vector<i64>& sizes : std::set<std::vector<i64>>{equal, fast}) {
      add_of_sizes(sizes, Left::kIdle);
      add_of_sizes(sizes, Left::kSmaller);
      if (order_.size() > 1) add_of_sizes(sizes, Left::kJoin);
    }
  }

  void add_of_sizes(const std::vector<i64>& sizes, Left left) {
    Stages stages;
    i64 idle = 0;
    bool differs = false;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const i64 devices = devices_[order_[i]], count = devices / sizes[i];
      if (count == 0) return;
      idle = devices - count * sizes[i];
      differs = differs || idle > 0;
      const Stages more = spread(order_[i], left == Left::kJoin ? devices : count * sizes[i], count);
      stages.insert(stages.end(), more.begin(), more.end());
      i64 over = left == Left::kSmaller ? idle : 0;
      for (i64 size = sizes[i] / 2; size >= 1; size /= 2)
        if (over >= size) stages.push_back({order_[i], size}), over -= size;
    }
    if (left != Left::kIdle && !differs) return;
    if (order_.size() == 1) stages.resize(std::min(stages.size(), idx(layers_)));
    add(stages);
    if (left != Left::kIdle || stages.size() < 2) return;
    // A last stage twice as large, for the head.
    const i64 size = sizes.back();
    if (idle < size && (stages.size() < 3 || stages[stages.size() - 2].cls != order_.back())) return;
    if (idle < size) stages.pop_back();
    stages.back().count += size;
    add(std::move(stages));
  }

  void add(Stages stages) {
    const auto count = static_cast<i64>(stages.size());
    if (count >= 2 && count <= layers_) out_.push_back(std::move(stages));
  }

  const Order& order_;
  const std::vector<i64>& devices_;
  i64 layers_;
  std::vector<double> speed_;  ///< [place in the order]
  std::vector<Stages> out_;
};

/// What so many groups of a span leave of some classes; nothing where it is too little for a group, or just
/// what one more of these groups has.
std::vector<i64> rest_of(const Rates& rates, const ClassSet& used, const std::vector<i64>& span, i64 groups,
                         i64& idle) {
  std::vector<i64> rest(rates.num_classes(), 0);
  idle = 0;
  for (const std::size_t c : used) idle += rest[c] = rates.classes()[c].size() - groups * span[c];
  if (kWorthRest * idle < sum_of(span) || idle == 0 || rest == span) rest.clear();
  return rest;
}

/// Equal for cuts that make equal plans: of a single group it matters only which devices its stages have.
std::vector<i64> key_of(i64 groups, const std::vector<i64>& span, const Stages& stages,
                        const std::vector<i64>& rest) {
  std::vector<i64> key = {groups};
  for (const StageDevices& stage : stages) key.insert(key.end(), {static_cast<i64>(stage.cls), stage.count});
  if (groups == 1 && rest.empty()) return key;
  key.push_back(-1);
  key.insert(key.end(), span.begin(), span.end());
  key.insert(key.end(), rest.begin(), rest.end());
  return key;
}

}  // namespace

std::vector<Stages> stage_cuts(const Rates& rates, const std::vector<i64>& devices) {
  ClassSet used;
  for (std::size_t c = 0; c < devices.size(); ++c)
    if (devices[c] > 0) used.push_back(c);
  std::vector<Stages> all;
  for (const Order& order : class_orders({used}, rates.request().cluster.num_devices() <= kMiddleCluster)) {
    for (Stages& stages : StageCutter(rates, order, devices).all()) all.push_back(std::move(stages));
  }
  return all;
}

std::vector<PipelineCut> pipeline_cuts(const Rates& rates, Seconds most) {
  std::vector<PipelineCut> cuts;
  const auto sequences = real(rates.request().sequences);
  for (const ClassSet& used : class_sets(rates)) {
    Shape all(rates.num_classes(), 0);
    for (const std::size_t c : used) all[c] = rates.classes()[c].size();
    if (sequences / ideal_rate(rates, all) > most) continue;
    std::set<std::pair<std::vector<i64>, i64>> seen;
    std::set<std::vector<i64>> known;
    for (const i64 groups : group_counts(rates, used)) {
      for (const std::vector<i64>& span : spans_of(rates, used, groups)) {
        if (!seen.insert({span, groups}).second) continue;
        i64 idle = 0;
        const std::vector<i64> rest = rest_of(rates, used, span, groups, idle);
        const bool fills = idle <= 1 || kLeftOver * idle <= sum_of(all);
        for (const Stages& stages : stage_cuts(rates, span)) {
          const auto add = [&](const std::vector<i64>& left) {
            if (known.insert(key_of(groups, span, stages, left)).second)
              cuts.push_back({groups, span, stages, left});
          };
          if (fills) add({});
          if (!rest.empty() && used.size() < kManyClasses) add(rest);
        }
      }
    }
  }
  return cuts;
}

}  // namespace hetermoe
