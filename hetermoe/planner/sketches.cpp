#include "hetermoe/planner/sketches.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/planner/integer_split.h"

namespace hetermoe {
namespace {

constexpr std::size_t kMaxMicrobatchChoices = 9;
constexpr std::size_t kBiased = 60;  ///< sketches, from the best on, whose bias is chosen
constexpr std::size_t kAllSets = 5;  ///< up to so many classes every set of them is tried
constexpr i64 kAllCuts = 8;          ///< groups up to this size try every number of attention devices

/// Keeps at most `limit` of sorted values, both ends included.
std::vector<i64> thin(const std::vector<i64>& values, std::size_t limit) {
  if (values.size() <= limit) return values;
  std::vector<i64> kept;
  for (std::size_t i = 0; i < limit; ++i) kept.push_back(values[i * (values.size() - 1) / (limit - 1)]);
  return kept;
}

/// Which device counts of each class form the groups.
using Shape = std::vector<i64>;

class Ranker {
 public:
  explicit Ranker(const Rates& rates) : rates_(rates), request_(rates.request()) {}

  std::vector<RankedSketch> run(std::optional<Shortage>& shortage) {
    for (const ClassSet& used : class_sets(rates_.num_classes())) {
      for (const std::vector<Shape>& shapes : groupings(used)) add_grouping(used, shapes);
    }
    sort();
    for (std::size_t i = 0; i < std::min(ranked_.size(), kBiased); ++i) choose_bias(ranked_[i]);
    sort();
    shortage = shortage_;
    return std::move(ranked_);
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

  i64 available(const ClassSet& used, std::size_t c) const {
    const bool is_used = std::binary_search(used.begin(), used.end(), c);
    return is_used ? static_cast<i64>(rates_.classes()[c].devices.size()) : 0;
  }

  /// Equal groups (as equal as the counts allow), and a group for each class.
  std::vector<std::vector<Shape>> groupings(const ClassSet& used) const {
    i64 total = 0;
    for (std::size_t c = 0; c < rates_.num_classes(); ++c) total += available(used, c);
    std::vector<std::vector<Shape>> out;
    for (const i64 groups : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64}) {
      if (groups > total || groups > request_.sequences) break;
      out.push_back(equal_shapes(used, groups));
    }
    if (used.size() > 1) {
      std::vector<Shape> by_class;
      for (std::size_t c = 0; c < rates_.num_classes(); ++c) {
        if (available(used, c) == 0) continue;
        by_class.emplace_back(rates_.num_classes(), 0);
        by_class.back()[c] = available(used, c);
      }
      if (static_cast<i64>(by_class.size()) <= request_.sequences) out.push_back(by_class);
    }
    return out;
  }

  std::vector<Shape> equal_shapes(const ClassSet& used, i64 groups) const {
    std::vector<Shape> shapes(idx(groups), Shape(rates_.num_classes(), 0));
    i64 turn = 0;  // leftovers of the next class go to the groups after those that got one
    for (std::size_t c = 0; c < rates_.num_classes(); ++c) {
      const i64 count = available(used, c);
      for (i64 g = 0; g < groups; ++g) shapes[idx(g)][c] = count / groups;
      for (i64 i = 0; i < count % groups; ++i) ++shapes[idx(turn++ % groups)][c];
    }
    std::sort(shapes.begin(), shapes.end(), std::greater<>());
    if (std::accumulate(shapes.back().begin(), shapes.back().end(), i64{0}) == 0) shapes.clear();
    return shapes;
  }

  void add_grouping(const ClassSet& used, const std::vector<Shape>& shapes) {
    if (shapes.empty()) return;
    const std::vector<i64> sequences = shares_of_groups(shapes);
    if (*std::min_element(sequences.begin(), sequences.end()) == 0) return;
    for (const i64 microbatches : microbatch_choices(sequences.back(), request_.limits.max_microbatches)) {
      std::set<i64> windows;
      for (const i64 window : {i64{1}, i64{2}, i64{4}, i64{0}}) {
        if (window < microbatches || window == 1) windows.insert(window >= microbatches ? 0 : window);
      }
      for (const i64 window : windows) {
        for (const Recompute recompute : {Recompute::kLocal, Recompute::kOff}) {
          Sketch base;
          base.window = static_cast<i32>(window);
          base.recompute = recompute;
          if (shapes.size() == 1) {
            add_patterns(used, base, shapes[0], sequences[0], microbatches);
          } else {
            add_groups(used, base, shapes, sequences, microbatches);
          }
        }
      }
    }
  }

  /// Sequences of each group, in proportion to the rate at which its devices could do everything.
  std::vector<i64> shares_of_groups(const std::vector<Shape>& shapes) const {
    std::vector<double> speeds;
    const ModelConfig& model = request_.model;
    const double copies = real(request_.seq_len * model.top_k);
    for (const Shape& shape : shapes) {
      double speed = 0;
      for (std::size_t c = 0; c < shape.size(); ++c) {
        const Seconds each =
            rates_.attention(c, 1, Recompute::kLocal).sum() +
            rates_.experts(c, copies, std::max<double>(1, real(model.num_experts) / 4), Recompute::kLocal)
                .sum();
        speed += real(shape[c]) / each;
      }
      speeds.push_back(speed);
    }
    return proportional_split(request_.sequences, speeds);
  }

  /// Every way to give attention to some devices of a group, in the order of advantage.
  std::vector<SketchGroup> patterns(const Shape& shape, i64 sequences, i64 microbatches) const {
    SketchGroup base;
    base.first.assign(shape.size(), 0);
    base.count = shape;
    base.sequences = sequences;
    base.microbatches = microbatches;
    std::vector<SketchGroup> out;
    const i64 total = std::accumulate(shape.begin(), shape.end(), i64{0});
    for (const i64 cut : cuts(shape)) {
      base.attention.assign(shape.size(), 0);
      i64 left = cut;
      int spanned = 0;
      for (std::size_t c = 0; c < shape.size(); ++c) {
        base.attention[c] = std::min(left, shape[c]);
        left -= base.attention[c];
        spanned += base.attention[c] > 0;
      }
      for (const bool by_speed : {false, true}) {
        if (by_speed && spanned < 2) continue;
        for (const bool mixed : {false, true}) {
          if (!mixed && cut == total && request_.model.num_moe_layers() > 0) continue;
          base.by_speed = by_speed;
          base.mixed = mixed;
          out.push_back(base);
        }
      }
    }
    return out;
  }

  /// Numbers of attention devices: borders of classes and, between them, all or a few.
  std::vector<i64> cuts(const Shape& shape) const {
    const i64 total = std::accumulate(shape.begin(), shape.end(), i64{0});
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

  void add_patterns(const ClassSet& used, Sketch base, const Shape& shape, i64 sequences, i64 microbatches) {
    for (SketchGroup& group : patterns(shape, sequences, microbatches)) {
      base.groups = {std::move(group)};
      add(used, base);
    }
  }

  /// Several groups: each shape takes the pattern that is best for it alone.
  void add_groups(const ClassSet& used, Sketch base, const std::vector<Shape>& shapes,
                  const std::vector<i64>& sequences, i64 microbatches) {
    Shape next(rates_.num_classes(), 0);
    SketchGroup chosen;
    for (std::size_t g = 0; g < shapes.size(); ++g) {
      const bool same = g > 0 && shapes[g] == shapes[g - 1] && sequences[g] == sequences[g - 1];
      if (!same && !choose(base, shapes[g], sequences[g], std::min(microbatches, sequences[g]), chosen))
        return;
      chosen.first = next;
      for (std::size_t c = 0; c < next.size(); ++c) next[c] += shapes[g][c];
      base.groups.push_back(chosen);
    }
    add(used, base);
  }

  bool choose(const Sketch& base, const Shape& shape, i64 sequences, i64 microbatches, SketchGroup& best) {
    Seconds least = -1;
    Sketch one = base;
    for (const SketchGroup& group : patterns(shape, sequences, microbatches)) {
      one.groups = {group};
      const Estimate e = estimate(rates_, one);
      if (!e.feasible()) {
        miss(*e.shortage);
      } else if (least < 0 || e.step < least) {
        least = e.step;
        best = group;
      }
    }
    return least >= 0;
  }

  void add(const ClassSet& used, const Sketch& sketch) {
    Estimate e = estimate(rates_, sketch);
    if (e.feasible()) {
      ranked_.push_back({sketch, used, std::move(e)});
    } else {
      miss(*e.shortage);
    }
  }

  void miss(const Shortage& shortage) {
    const double ratio = shortage.need / std::max(1.0, rates_.usable_memory(shortage.cls));
    if (shortage_ && ratio >= nearest_) return;
    shortage_ = shortage;
    nearest_ = ratio;
  }

  const Rates& rates_;
  const PlanRequest& request_;
  std::vector<RankedSketch> ranked_;
  std::optional<Shortage> shortage_;  ///< the nearest miss
  double nearest_ = 0;                ///< what it needs over what there is
};

}  // namespace

std::vector<ClassSet> class_sets(std::size_t num_classes) {
  std::vector<ClassSet> sets;
  const auto add = [&](auto has) {
    ClassSet set;
    for (std::size_t c = 0; c < num_classes; ++c) {
      if (has(c)) set.push_back(c);
    }
    sets.push_back(std::move(set));
  };
  if (num_classes <= kAllSets) {
    for (unsigned bits = 1; bits < 1u << num_classes; ++bits)
      add([&](std::size_t c) { return (bits >> c & 1u) != 0; });
    return sets;
  }
  for (std::size_t i = 0; i < num_classes; ++i) {
    add([&](std::size_t c) { return c == i; });
    add([&](std::size_t c) { return c <= i; });
    add([&](std::size_t c) { return c != i; });
  }
  // In the order of the numbers whose bits they are.
  std::sort(sets.begin(), sets.end(), [](const ClassSet& a, const ClassSet& b) {
    return std::lexicographical_compare(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  });
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  return sets;
}

std::vector<i64> microbatch_choices(i64 sequences, i64 limit) {
  std::vector<i64> choices;
  const i64 most = std::min(sequences, std::max<i64>(1, limit));
  for (i64 count = 1; count <= most; ++count) {
    if (sequences % count == 0) choices.push_back(count);
  }
  // Prime numbers of sequences have no useful divisor.
  for (i64 count = 2; choices.size() < 4 && count < most; count *= 2) {
    if (sequences % count != 0) choices.push_back(count);
  }
  std::sort(choices.begin(), choices.end());
  return thin(choices, kMaxMicrobatchChoices);
}

std::vector<RankedSketch> rank_sketches(const Rates& rates, std::optional<Shortage>& shortage) {
  return Ranker(rates).run(shortage);
}

}  // namespace hetermoe
