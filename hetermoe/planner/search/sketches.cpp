#include "hetermoe/planner/search/sketches.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

constexpr std::size_t kMicrobatchCounts = 9;  ///< of a single group, in a first look
constexpr std::size_t kBiased = 60;           ///< sketches, from the best on, whose bias is chosen
constexpr std::size_t kAllSets = 5;           ///< up to so many classes every set of them is tried
constexpr std::size_t kUnsharded = 400;  ///< sketches, from the best on, that are tried with whole optimizers
constexpr std::size_t kResending = 200;  ///< sketches, from the best on, that are tried with rows sent twice
constexpr std::size_t kRefined = 8;      ///< sketches, from the best on, whose blocks are varied
constexpr int kRefinements = 12;         ///< of one sketch, one after another
constexpr std::size_t kOptions = 2;      ///< numbers of groups that a block of a partition may have
constexpr std::size_t kMostSketches = 4000;  ///< that are handed on; more than are ever simulated
constexpr double kHopeless = 1.5;  ///< bound over the best estimate, of sets of classes that are left out
constexpr i64 kMostOwners = 10'000'000;  ///< entries of a plan: more do not fit into memory with their copies

/// All with a sharded optimizer, where that may be proposed: what fits without one fits with it too. The best
/// are tried without it at last.
std::vector<GroupOrder> group_orders(const PlanLimits& limits) {
  std::vector<GroupOrder> all;
  for (const i32 window : {1, 2, 4, 0}) {
    for (const Recompute recompute : {Recompute::kLocal, Recompute::kOff})
      all.push_back({window, recompute, limits.shard_optimizer});
  }
  return all;
}

class SketchRanker {
 public:
  explicit SketchRanker(const Rates& rates) : rates_(rates), request_(rates.request()), choice_(rates) {}

  SketchRanking run() {
    const std::vector<ClassSet> sets = class_sets(rates_);
    for (const ClassSet& used : sets) add_single_group(used);
    for (const GroupOrder& order : group_orders(request_.limits)) {
      for (const ClassSet& used : sets) add_parts(order, used), add_equal_groups(order, used);
    }
    for (const GroupOrder& order : group_orders(request_.limits)) {
      for (const std::vector<ClassSet>& parts : partitions(rates_.num_classes())) add_partition(order, parts);
    }
    sort();
    refine();
    sort();
    for (std::size_t i = 0; i < std::min(ranked_.size(), kBiased); ++i) choose_bias(ranked_[i]);
    add_without_sharding();
    add_with_resending();
    sort();
    SketchRanking out;
    if (ranked_.size() > kMostSketches) ranked_.resize(kMostSketches);
    out.sketches = std::move(ranked_);
    out.shortage = choice_.nearest_miss();
    for (std::size_t c = 0; c < rates_.num_classes(); ++c)
      out.shortage_besides.push_back(choice_.nearest_miss_besides(c));
    out.most_groups = groups_bind_ ? most_groups() : 0;
    return out;
  }

 private:
  void sort() {
    std::stable_sort(ranked_.begin(), ranked_.end(), [](const RankedSketch& a, const RankedSketch& b) {
      return a.estimate.step < b.estimate.step;
    });
  }

  /// Balancing whole steps ignores what no lane can do at the same time; the estimate knows some of it.
  void choose_bias(RankedSketch& ranked) const {
    const bool mixed = std::any_of(ranked.sketch.groups.begin(), ranked.sketch.groups.end(),
                                   [](const SketchGroup& group) { return group.mixed; });
    if (!mixed) return;
    Sketch next = ranked.sketch;
    for (const double bias : {0.7, 0.8, 0.9, 1.1, 1.2}) {
      next.bias = bias;
      Estimate e = estimate(rates_, next);
      if (!e.feasible() || e.step >= ranked.estimate.step) continue;
      ranked.sketch.bias = bias;
      ranked.estimate = std::move(e);
    }
  }

  /// Devices that keep all of the optimizer's state have no weights to tell each other at the end of the
  /// step.
  void add_without_sharding() {
    const std::size_t most = std::min(ranked_.size(), kUnsharded);
    for (std::size_t i = 0; i < most; ++i) {
      Sketch next = ranked_[i].sketch;
      if (!std::exchange(next.shard_optimizer, false)) continue;
      Estimate e = estimate(rates_, next);
      if (e.feasible()) ranked_.push_back({std::move(next), ranked_[i].classes, std::move(e)});
    }
  }

  /// Rows of experts that are sent twice leave room for fewer and larger microbatches. Where nothing has room
  /// otherwise, this may.
  void add_with_resending() {
    if (request_.model.num_moe_layers() == 0) return;
    if (ranked_.empty()) {
      resends_ = true;
      for (const ClassSet& used : class_sets(rates_)) add_single_group(used);
      resends_ = false;
      return;
    }
    const std::size_t most = std::min(ranked_.size(), kResending);
    for (std::size_t i = 0; i < most; ++i) {
      if (ranked_[i].sketch.recompute != Recompute::kLocal) continue;
      for (const i64 divisor : {1, 2, 4}) {
        Sketch next = ranked_[i].sketch;
        next.recompute = Recompute::kResend;
        bool divides = true;
        for (SketchGroup& group : next.groups) {
          divides = divides && group.microbatches % divisor == 0;
          group.microbatches = std::max<i64>(1, group.microbatches / divisor);
        }
        if (!divides) continue;
        Estimate e = estimate(rates_, next);
        if (e.feasible()) ranked_.push_back({std::move(next), ranked_[i].classes, std::move(e)});
      }
    }
  }

  /// Groups that a plan can list.
  i64 most_groups() const {
    return std::max<i64>(
        1, kMostOwners / std::max<i64>(1, request_.model.num_moe_layers() * request_.model.num_experts));
  }

  // --- one group ---

  /// Every sketch of a single group of all devices of these classes.
  void add_single_group(const ClassSet& used) {
    const Shape shape = share_of(used, 1);
    const std::vector<i64> counts =
        thin(microbatch_choices(request_.sequences, request_.limits.max_microbatches), kMicrobatchCounts);
    for (const i64 microbatches : counts) {
      std::set<i64> windows;
      for (const i64 window : {i64{1}, i64{2}, i64{4}, i64{0}}) {
        if (window < microbatches || window == 1) windows.insert(window >= microbatches ? 0 : window);
      }
      for (const i64 window : windows) {
        for (const GroupOrder& order : group_orders(request_.limits)) {
          if (order.window != window || (resends_ && order.recompute != Recompute::kLocal)) continue;
          Sketch base;
          base.window = order.window;
          base.recompute = resends_ ? Recompute::kResend : order.recompute;
          base.shard_optimizer = order.shard_optimizer;
          for (SketchGroup& group : patterns(shape, microbatches)) {
            base.groups = {std::move(group)};
            add(base);
          }
        }
      }
    }
  }

  /// Ways to give attention to some devices of a group: to the first ones in the order of advantage, or to
  /// one class.
  std::vector<SketchGroup> patterns(const Shape& shape, i64 microbatches) const {
    std::vector<SketchGroup> bases = later_class_groups(shape), out;
    for (const i64 cut : attention_cuts(shape)) bases.push_back(cut_group(shape, cut));
    for (SketchGroup& base : bases) {
      base.sequences = request_.sequences;
      base.microbatches = microbatches;
      const auto spanned =
          std::count_if(base.attention.begin(), base.attention.end(), [](i64 count) { return count > 0; });
      for (const bool by_speed : {false, true}) {
        if (by_speed && spanned < 2) continue;
        for (const bool mixed : {false, true}) {
          if (!mixed && base.attention == shape && request_.model.num_moe_layers() > 0) continue;
          base.by_speed = by_speed;
          base.mixed = mixed;
          out.push_back(base);
        }
      }
    }
    return out;
  }

  /// Devices on this share of a class's full nodes, on one of them at least.
  static i64 nodes_of(const DeviceClass& cls, double share) {
    const auto per_node = static_cast<i64>(cls.per_node);
    return std::max<i64>(1, static_cast<i64>(share * real(cls.on_full_nodes / per_node))) * per_node;
  }

  /// So many of a class's devices as a group may take: one, half of the nodes, full nodes; round numbers of
  /// nodes, and a device more, whose memory may be what a node lacks.
  static std::set<i64> parts_of(const DeviceClass& cls) {
    const auto per_node = static_cast<i64>(cls.per_node);
    std::set<i64> parts = {1, nodes_of(cls, 0.5), cls.on_full_nodes};
    for (const i64 nodes : kRoundNumbers) {
      const i64 count = nodes * per_node;
      if (count < cls.size()) parts.insert({count, count + 1});
    }
    return parts;
  }

  /// The fewest devices of a class that have room for a group of their own; 0 = not all of them have.
  i64 fewest(const GroupOrder& order, std::size_t cls) {
    const auto has_room = [&](i64 count) {
      Shape shape(rates_.num_classes(), 0);
      shape[cls] = count;
      return choice_.best(order, shape, 1, request_.sequences) != nullptr;
    };
    i64 low = 0, high = rates_.classes()[cls].size();
    if (!has_room(high)) return 0;
    while (high - low > 1) (has_room((low + high) / 2) ? high : low) = (low + high) / 2;
    return high;
  }

  /// A group of a part of one of these classes and of all of the others, and of a part of each.
  void add_parts(const GroupOrder& order, const ClassSet& used) {
    const Shape all = share_of(used, 1);
    const auto add = [&](const Shape& shape) {
      if (shape != all) add_blocks(order, {{shape, 1}});
    };
    for (const std::size_t c : used) {
      std::set<i64> parts = parts_of(rates_.classes()[c]);
      if (used.size() == 1) parts.insert(std::max<i64>(1, fewest(order, c)));
      for (const i64 part : parts) {
        Shape shape = all;
        shape[c] = part;
        add(shape);
      }
    }
    if (used.size() == 1) return;
    for (const double share : {0.0, 0.5, 1.0}) {
      Shape shape = all;
      for (const std::size_t c : used) shape[c] = nodes_of(rates_.classes()[c], share);
      add(shape);
    }
  }

  // --- several groups ---

  /// Equal groups of these classes, with all their devices and without those that do not divide.
  void add_equal_groups(const GroupOrder& order, const ClassSet& used) {
    Shape all(rates_.num_classes(), 0);
    for (const std::size_t c : used) all[c] = rates_.classes()[c].size();
    const Seconds bound = real(request_.sequences) / ideal_rate(rates_, all);
    if (used.size() > 1 && !ranked_.empty() && bound > kHopeless * least_) return;
    for (const i64 groups : counts_of(used, request_.sequences)) {
      if (groups == 1) continue;
      add_blocks(order, equal_blocks(rates_, used, groups));
      const Shape shape = share_of(used, groups);
      const bool divides = std::all_of(
          used.begin(), used.end(), [&](std::size_t c) { return rates_.classes()[c].size() % groups == 0; });
      if (!divides) add_blocks(order, {{shape, groups}});
    }
  }

  std::vector<i64> counts_of(const ClassSet& used, i64 sequences) {
    std::vector<i64> counts = group_counts(rates_, used, sequences);
    while (!counts.empty() && counts.back() > most_groups()) {
      groups_bind_ = true;
      counts.pop_back();
      if (counts.empty() || counts.back() < most_groups()) {
        counts.push_back(most_groups());
        break;
      }
    }
    return counts;
  }

  Shape share_of(const ClassSet& used, i64 groups) const {
    Shape shape(rates_.num_classes(), 0);
    for (const std::size_t c : used) shape[c] = rates_.classes()[c].size() / groups;
    return shape;
  }

  /// Blocks of their own for each set of classes: the best numbers of groups of each, one of them changed at
  /// a time.
  void add_partition(const GroupOrder& order, const std::vector<ClassSet>& parts) {
    Blocks best;
    for (const ClassSet& used : parts) {
      if (options(order, used).empty()) return;
      best.push_back(options(order, used).front());
    }
    add_blocks(order, best);
    for (std::size_t p = 0; p < parts.size(); ++p) {
      for (std::size_t i = 1; i < options(order, parts[p]).size(); ++i) {
        Blocks next = best;
        next[p] = options(order, parts[p])[i];
        add_blocks(order, next);
      }
    }
  }

  /// The numbers of groups with which these classes are fastest beside all others.
  const Blocks& options(const GroupOrder& order, const ClassSet& used) {
    const auto [entry, fresh] = options_.try_emplace({order, used});
    if (!fresh) return entry->second;
    Shape all(rates_.num_classes(), 0);
    for (std::size_t c = 0; c < all.size(); ++c) all[c] = rates_.classes()[c].size();
    const double share = ideal_rate(rates_, share_of(used, 1)) / ideal_rate(rates_, all);
    std::vector<std::pair<double, Block>> ranked;
    for (const i64 groups : counts_of(used, request_.sequences)) {
      const i64 each = static_cast<i64>(std::round(real(request_.sequences) * share / real(groups)));
      const Block block{share_of(used, groups), groups};
      const GroupChoice::Chosen* chosen = each > 0 ? choice_.best(order, block.shape, groups, each) : nullptr;
      if (chosen != nullptr) ranked.emplace_back(chosen->time.step / real(groups * each), block);
    }
    std::stable_sort(ranked.begin(), ranked.end(), [](auto& a, auto& b) { return a.first < b.first; });
    for (std::size_t i = 0; i < std::min(ranked.size(), kOptions); ++i)
      entry->second.push_back(ranked[i].second);
    return entry->second;
  }

  bool add_blocks(const GroupOrder& order, const Blocks& blocks) {
    if (blocks.empty() || !seen_.insert({order, blocks}).second) return false;
    const std::optional<Sketch> sketch = make_sketch(rates_, choice_, order, blocks);
    return sketch && add(*sketch);
  }

  /// Varies the blocks of the best sketches as long as that is faster by estimate.
  void refine() {
    std::set<std::pair<GroupOrder, Blocks>> starts;
    for (std::size_t i = 0; i < ranked_.size() && starts.size() < kRefined; ++i)
      starts.insert({order_of(ranked_[i].sketch), blocks_of(ranked_[i].sketch)});
    for (const auto& [order, start] : starts) {
      Blocks best = start;
      for (int step = 0; step < kRefinements && refine_once(order, best); ++step) {
      }
    }
  }

  bool refine_once(const GroupOrder& order, Blocks& best) {
    const Seconds before = step_of(order, best);
    Seconds least = before;
    for (const Blocks& next : neighbours(rates_, best)) {
      if (!add_blocks(order, next) || ranked_.back().estimate.step >= least) continue;
      least = ranked_.back().estimate.step;
      best = next;
    }
    return least < before;
  }

  Seconds step_of(const GroupOrder& order, const Blocks& blocks) {
    const std::optional<Sketch> sketch = make_sketch(rates_, choice_, order, blocks);
    return sketch ? estimate(rates_, *sketch).step : least_;
  }

  bool add(Sketch sketch) {
    sketch.shard_optimizer = sketch.shard_optimizer && has_replicas(sketch);
    Estimate e = estimate(rates_, sketch);
    if (!e.feasible()) {
      choice_.miss(*e.shortage, sketch.groups.front().count);
      return false;
    }
    least_ = ranked_.empty() ? e.step : std::min(least_, e.step);
    ClassSet classes = classes_of(sketch);
    ranked_.push_back({std::move(sketch), std::move(classes), std::move(e)});
    return true;
  }

  static bool has_replicas(const Sketch& sketch) {
    return sketch.groups.size() > 1 || sum_of(sketch.groups[0].attention) > 1;
  }

  static ClassSet classes_of(const Sketch& sketch) {
    std::set<std::size_t> classes;
    for (const SketchGroup& group : sketch.groups) {
      for (std::size_t c = 0; c < group.count.size(); ++c) {
        if (group.count[c] > 0) classes.insert(c);
      }
    }
    return {classes.begin(), classes.end()};
  }

  const Rates& rates_;
  const PlanRequest& request_;
  GroupChoice choice_;
  std::vector<RankedSketch> ranked_;
  Seconds least_ = 0;  ///< of all estimates
  std::map<std::pair<GroupOrder, ClassSet>, Blocks> options_;
  std::set<std::pair<GroupOrder, Blocks>> seen_;
  bool groups_bind_ = false;
  bool resends_ = false;  ///< orders that are asked for do
};

}  // namespace

namespace {

/// Every union of a few sets; of many, one of them, the first few, or all but one.
std::vector<ClassSet> unions_of(const std::vector<ClassSet>& sets) {
  std::vector<ClassSet> unions;
  const auto add = [&](auto has) {
    ClassSet all;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      if (has(i)) all.insert(all.end(), sets[i].begin(), sets[i].end());
    }
    std::sort(all.begin(), all.end());
    unions.push_back(std::move(all));
  };
  if (sets.size() <= kAllSets) {
    for (unsigned bits = 1; bits < 1u << sets.size(); ++bits)
      add([&](std::size_t i) { return (bits >> i & 1u) != 0; });
    return unions;
  }
  for (std::size_t last = 0; last < sets.size(); ++last) {
    add([&](std::size_t i) { return i == last; });
    add([&](std::size_t i) { return i <= last; });
    add([&](std::size_t i) { return i != last; });
  }
  return unions;
}

}  // namespace

std::vector<ClassSet> class_sets(const std::vector<i32>& types) {
  std::vector<ClassSet> single, of_types;
  std::map<i32, ClassSet> by_type;
  for (std::size_t c = 0; c < types.size(); ++c) {
    single.push_back({c});
    by_type[types[c]].push_back(c);
  }
  for (auto& [type, classes] : by_type) of_types.push_back(std::move(classes));
  std::vector<ClassSet> sets = unions_of(single);
  for (ClassSet& set : unions_of(of_types)) sets.push_back(std::move(set));
  // In the order of the numbers whose bits they are.
  std::sort(sets.begin(), sets.end(), [](const ClassSet& a, const ClassSet& b) {
    return std::lexicographical_compare(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  });
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  return sets;
}

std::vector<ClassSet> class_sets(const Rates& rates) {
  std::vector<i32> types;
  for (const DeviceClass& cls : rates.classes()) types.push_back(cls.type);
  return class_sets(types);
}

SketchRanking rank_sketches(const Rates& rates) { return SketchRanker(rates).run(); }

}  // namespace hetermoe
