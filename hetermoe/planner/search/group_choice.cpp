#include "hetermoe/planner/search/group_choice.h"

#include <algorithm>
#include <set>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

constexpr double kUnevenCount = 1.02;  ///< what a count that does not divide the sequences costs, about
constexpr i64 kAllCounts = 9;          ///< up to so many sequences every number of microbatches is tried
constexpr i64 kAllCuts = 8;            ///< groups up to this size try every number of attention devices

}  // namespace

GroupOrder order_of(const Sketch& sketch) {
  return {sketch.window, sketch.recompute, sketch.shard_optimizer};
}

std::vector<i64> microbatch_choices(i64 sequences, i64 limit) {
  const i64 most = limit > 0 ? std::min(sequences, limit) : sequences;
  if (sequences <= kAllCounts) {
    std::vector<i64> all(idx(most));
    std::iota(all.begin(), all.end(), i64{1});
    return all;
  }
  std::set<i64> divisors;
  for (i64 count = 1; count * count <= sequences; ++count) {
    if (sequences % count == 0) divisors.insert({count, sequences / count});
  }
  std::vector<i64> choices;
  for (const i64 divisor : divisors) {
    while (!choices.empty() && divisor > 2 * choices.back() && 2 * choices.back() <= most)
      choices.push_back(2 * choices.back());
    if (divisor > most) break;
    choices.push_back(divisor);
  }
  return choices;
}

std::vector<i64> thin(const std::vector<i64>& values, std::size_t limit) {
  if (values.size() <= limit) return values;
  std::vector<i64> kept;
  for (std::size_t i = 0; i < limit; ++i) kept.push_back(values[i * (values.size() - 1) / (limit - 1)]);
  return kept;
}

std::vector<i64> attention_cuts(const Shape& shape) {
  const i64 total = sum_of(shape);
  std::set<i64> cuts;
  i64 border = 0;
  for (const i64 count : shape) {
    const i64 step = std::max<i64>(1, total <= kAllCuts ? 1 : count / 6);
    for (i64 i = step; i < count; i += step) cuts.insert(border + i);
    border += count;
    if (border > 0) cuts.insert(border);
  }
  return {cuts.begin(), cuts.end()};
}

SketchGroup cut_group(const Shape& shape, i64 cut) {
  SketchGroup group;
  group.first.assign(shape.size(), 0);
  group.count = shape;
  for (const i64 count : shape) {
    group.attention.push_back(std::min(cut, count));
    cut -= group.attention.back();
  }
  return group;
}

std::vector<SketchGroup> later_class_groups(const Shape& shape) {
  std::vector<SketchGroup> groups;
  bool first = true;
  for (std::size_t c = 0; c < shape.size(); ++c) {
    if (shape[c] == 0) continue;
    if (!first) {
      groups.push_back(cut_group(shape, 0));
      groups.back().attention[c] = shape[c];
    }
    first = false;
  }
  return groups;
}

double ideal_rate(const Rates& rates, const Shape& shape) {
  const PlanRequest& request = rates.request();
  const double many = 8, layers = real(request.model.num_layers);
  const double copies = many * real(request.seq_len * request.model.top_k);
  std::vector<Seconds> attention, experts;  // per sequence
  for (std::size_t c = 0; c < shape.size(); ++c) {
    attention.push_back(layers * rates.attention(c, many, Recompute::kOff).sum() / many);
    experts.push_back(rates.moe_layers() * rates.experts(c, copies, 1, Recompute::kOff).sum() / many);
  }
  // Every class gives a price of the two kinds of work; what all devices earn at the least price is a bound.
  double least = kNever;
  for (std::size_t p = 0; p < shape.size(); ++p) {
    if (shape[p] == 0) continue;
    double earned = 0;
    for (std::size_t c = 0; c < shape.size(); ++c) {
      const double by_experts = experts[c] > 0 ? experts[p] / experts[c] : 0;
      earned += real(shape[c]) * std::max(attention[p] / attention[c], by_experts);
    }
    least = std::min(least, earned / (attention[p] + experts[p]));
  }
  return least;
}

/// Climbs over cut, kind and microbatches of one group.
class GroupChoice::Climber {
 public:
  Climber(GroupChoice& owner, const GroupOrder& order, const Shape& shape, i64 groups, i64 sequences)
      : owner_(owner),
        shape_(shape),
        groups_(groups),
        sequences_(sequences),
        total_(sum_of(shape)),
        counts_(owner.choices(sequences)) {
    base_.window = order.window;
    base_.recompute = order.recompute;
    base_.shard_optimizer = order.shard_optimizer;
    has_experts_ = owner.rates_.moe_layers() > 0;
  }

  std::optional<Chosen> run() {
    i64 border = 0;
    for (const i64 count : shape_) {
      border += count;
      if (count > 0) try_cut(border);
    }
    for (const SketchGroup& group : later_class_groups(shape_)) try_group(group);
    if (total_ == *std::max_element(shape_.begin(), shape_.end())) try_cut((total_ + 1) / 2);
    if (best_step_ == kNever) {
      for (const i64 cut : attention_cuts(shape_)) try_cut(cut);
    }
    if (best_step_ == kNever) return {};
    i64 step = 1;
    while (4 * step < total_) step *= 2;
    for (; step >= 1; step /= 2) {
      while (move_cut(step)) {
      }
    }
    return best_;
  }

 private:
  i64 cut_of(const SketchGroup& group) const { return sum_of(group.attention); }

  bool move_cut(i64 step) {
    const Seconds before = best_step_;
    const i64 cut = cut_of(best_.group);
    for (const i64 next : {cut - step, cut + step}) {
      if (next >= 1 && next <= total_) try_cut(next);
    }
    return best_step_ < before;
  }

  void try_cut(i64 cut) { try_group(cut_group(shape_, cut)); }

  void try_group(SketchGroup group) {
    const i64 cut = cut_of(group);
    group.sequences = sequences_;
    const auto spanned =
        std::count_if(group.attention.begin(), group.attention.end(), [](i64 n) { return n > 0; });
    for (const bool mixed : {true, false}) {
      if (!mixed && cut == total_ && has_experts_) continue;
      for (const bool by_speed : {false, true}) {
        if (by_speed && spanned < 2) continue;
        group.mixed = mixed;
        group.by_speed = by_speed;
        climb_counts(group, cut);
      }
    }
  }

  /// From about a sequence per attention device on, or from the count of the best group so far.
  void climb_counts(SketchGroup& group, i64 cut) {
    const i64 wanted =
        best_step_ < kNever ? best_.group.microbatches : std::max<i64>(1, sequences_ / (2 * cut));
    auto at = static_cast<std::ptrdiff_t>(std::lower_bound(counts_.begin(), counts_.end(), wanted) -
                                          counts_.begin());
    const auto last = static_cast<std::ptrdiff_t>(counts_.size()) - 1;
    at = std::min(at, last);
    Seconds step = try_count(group, at);
    while (step == kNever && at < last) step = try_count(group, ++at);
    if (step == kNever) return;
    const std::ptrdiff_t from = at;
    for (const std::ptrdiff_t by : {-1, 1}) {
      if (by == 1 && at != from) break;
      for (std::ptrdiff_t next = at + by; next >= 0 && next <= last; next += by) {
        const Seconds found = try_count(group, next);
        if (found >= step) break;
        step = found, at = next;
      }
    }
  }

  Seconds try_count(SketchGroup& group, std::ptrdiff_t at) {
    group.microbatches = counts_[idx(at)];
    std::optional<Shortage> shortage;
    const GroupTime time = estimate_group(owner_.rates_, base_, group, idx(groups_), shortage);
    if (shortage) {
      owner_.miss(*shortage, shape_);
      return kNever;
    }
    // Microbatches of two sizes wait for each other.
    const Seconds step = sequences_ % group.microbatches == 0 ? time.step : kUnevenCount * time.step;
    if (step < best_step_) best_ = {group, time}, best_step_ = step;
    return step;
  }

  GroupChoice& owner_;
  const Shape& shape_;
  i64 groups_, sequences_, total_;
  const std::vector<i64>& counts_;
  Sketch base_;
  bool has_experts_ = true;
  Chosen best_;
  Seconds best_step_ = kNever;
};

const GroupChoice::Chosen* GroupChoice::best(const GroupOrder& order, const Shape& shape, i64 groups,
                                             i64 sequences) {
  if (!order.shard_optimizer) groups = 1;
  const auto [entry, fresh] = known_.try_emplace({order, groups, sequences, shape});
  if (fresh) entry->second = Climber(*this, order, shape, groups, sequences).run();
  return entry->second ? &*entry->second : nullptr;
}

const std::vector<i64>& GroupChoice::choices(i64 sequences) {
  const auto [entry, fresh] = choices_.try_emplace(sequences);
  if (fresh) entry->second = microbatch_choices(sequences, rates_.request().limits.max_microbatches);
  return entry->second;
}

void GroupChoice::miss(const Shortage& shortage, const Shape& shape) {
  const double ratio = shortage.need / std::max(1.0, rates_.usable_memory(shortage.cls));
  const auto keep = [&](Miss& nearest) {
    if (!nearest.shortage || ratio < nearest.ratio) nearest = {shortage, ratio};
  };
  keep(nearest_);
  for (std::size_t c = 0; c < shape.size(); ++c) {
    if (sum_of(shape) > shape[c]) keep(besides_[c]);
  }
}

const std::optional<Shortage>& GroupChoice::nearest_miss_besides(std::size_t cls) const {
  static const std::optional<Shortage> none;
  const auto found = besides_.find(cls);
  return found == besides_.end() ? none : found->second.shortage;
}

}  // namespace hetermoe
