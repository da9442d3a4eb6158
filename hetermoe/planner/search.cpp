#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "hetermoe/plan/strategies.h"
#include "hetermoe/planner/explain.h"
#include "hetermoe/planner/memory_estimate.h"
#include "hetermoe/planner/short_model.h"
#include "hetermoe/planner/sketches.h"

// Weigh sketches, simulate the promising ones and every fixed strategy that could win, then improve the
// winner.
namespace hetermoe {
namespace {

double real(i64 value) { return static_cast<double>(value); }
std::size_t at(i64 index) { return static_cast<std::size_t>(index); }

constexpr std::size_t kReported = 10;  ///< candidates in a result, named ones apart
constexpr std::size_t kConfirmed =
    5;  ///< of them, by speed alone, if they are as close to the best as kClose
constexpr double kClose = 1.02;
/// A candidate on the way to the result.
struct Scored {
  Candidate candidate;
  Sketch sketch;
  bool has_sketch = false;
  bool exact = false;  ///< the prediction is of all layers
  i64 work = 0;        ///< op-device visits of the prediction
};

/// FNV-1a over what distinguishes plans.
u64 key_of(const Plan& plan) {
  u64 hash = 0xcbf29ce484222325ULL;
  const auto mix = [&](i64 value) { hash = (hash ^ static_cast<u64>(value)) * 0x100000001b3ULL; };
  mix(static_cast<i64>(plan.order));
  mix(plan.window), mix(plan.chunks), mix(static_cast<i64>(plan.recompute));
  for (const Group& group : plan.groups) {
    mix(-1);
    for (const i64 size : group.microbatches) mix(size);
    for (const LayerPlacement& layer : group.layers) {
      mix(-2);
      for (const ShareRow& row : layer.attention) {
        for (const Share& share : row) mix(share.device), mix(share.sequences);
      }
      for (const auto& owners : layer.experts) {
        for (const ExpertOwner& owner : owners) mix(owner.device);
      }
    }
  }
  return hash;
}

class Search {
 public:
  explicit Search(const PlanRequest& request)
      : request_(request),
        rates_(request),
        predictor_(request.model, request.cluster, request.software),
        short_(request.model, request.cluster, request.software) {
    whole_budget_ = request.limits.simulation_budget;
    if (whole_budget_ == 0) {
      const auto devices = static_cast<i64>(request.cluster.num_devices());
      whole_budget_ = devices <= kSmallCluster ? kSmallBudget : 24000 + 2000 * devices;
    }
    budget_ = whole_budget_;
  }

  PlanResult run() {
    std::optional<Shortage> nearest_miss;
    weighed_ = weigh_sketches(rates_, nearest_miss);
    result_.num_sketches = static_cast<i64>(weighed_.size());
    simulate_named();
    for (const Round& round : kRounds) {
      simulate_promising(round);
      if (&round == kRounds) simulate_fixed();
      improve(round);
    }
    if (scored_.empty())
      result_.infeasible = nearest_miss ? to_string(rates_, *nearest_miss) : last_overfill_;
    collect();
    explain(result_);
    return std::move(result_);
  }

 private:
  // --- judging ---

  /// Memory and validity are checked before anything is simulated. Returns the index into scored_, -1 when
  /// rejected, the earlier index for a plan seen before.
  i64 judge(Plan plan, const Sketch* sketch) {
    const u64 key = key_of(plan);
    const auto seen = seen_.find(key);
    if (seen != seen_.end()) return seen->second;
    if (current_ >= 0 && lane_bound(plan) >= step_of(current_)) return -1;
    seen_[key] = -1;
    budget_ -=
        (size_of(plan) + static_cast<i64>(request_.cluster.num_devices()) * short_.layers_simulated()) /
        kEntriesPerVisit;
    std::vector<Bytes> memory = estimate_memory(plan, request_.model);
    std::vector<Bytes> with_reserve = memory;
    for (Bytes& bytes : with_reserve) bytes += bytes > 0 ? request_.limits.memory_reserve : 0;
    const std::string over = overfilled_device(with_reserve, request_.cluster);
    if (!over.empty()) {
      last_overfill_ = over;
      return -1;
    }
    Scored scored;
    scored.candidate.plan = std::move(plan);
    scored.candidate.memory = std::move(memory);
    scored.has_sketch = sketch != nullptr;
    if (sketch != nullptr) scored.sketch = *sketch;
    scored.exact = !short_.shortens();
    const i64 before = short_.work();
    const i64 most = best_ < 0 ? whole_budget_ : std::min(budget_, whole_budget_ / kDearest);
    std::optional<Prediction> prediction = short_.predict_within(most, scored.candidate.plan);
    if (!prediction) return -1;
    ++result_.num_simulated;
    scored.work = short_.work() - before;
    budget_ -= scored.work;
    settle(scored.candidate, std::move(*prediction));
    scored_.push_back(std::move(scored));
    const i64 index = static_cast<i64>(scored_.size()) - 1;
    if (best_ < 0 || step_of(index) < step_of(best_)) best_ = index;
    if (current_ >= 0 && step_of(index) < step_of(current_)) current_ = index;
    return seen_[key] = index;
  }

  /// Entries of a plan: making, checking and copying them takes time too.
  static i64 size_of(const Plan& plan) {
    i64 sum = 0;
    for (const Group& group : plan.groups) {
      for (const LayerPlacement& layer : group.layers) sum += static_cast<i64>(layer.experts.size());
    }
    return sum;
  }

  /// Estimates of memory are a little lower than the check: a second try leaves experts less room.
  i64 judge(const Sketch& sketch) {
    for (const double squeeze : {1.0, 0.9, 0.75}) {
      const i64 index = judge(realize(rates_, sketch, squeeze), &sketch);
      if (index >= 0) return index;
    }
    return -1;
  }

  /// Op-device visits of a prediction of all layers.
  i64 work_to_confirm(i64 index) const {
    const Scored& scored = scored_[at(index)];
    return scored.exact ? 0 : scored.work * request_.model.num_layers / short_.layers_simulated();
  }

  /// Replaces an extrapolated prediction by that of all layers.
  void confirm(i64 index) {
    Scored& scored = scored_[at(index)];
    if (scored.exact) return;
    scored.exact = true;
    settle(scored.candidate, predictor_.predict(scored.candidate.plan));
  }

  void settle(Candidate& candidate, Prediction prediction) const {
    candidate.prediction = std::move(prediction);
    candidate.plan.predicted_step_s = candidate.prediction.step;
    describe(request_, candidate);
  }

  const Plan& plan_of(i64 index) const { return scored_[at(index)].candidate.plan; }
  Seconds step_of(i64 index) const { return scored_[at(index)].candidate.prediction.step; }

  // --- which sketches are simulated ---

  /// One type alone, the newest among them: reported whatever else wins.
  void simulate_named() {
    std::vector<int> taken(rates_.num_classes(), 0);
    for (const Weighed& w : weighed_) {
      if (__builtin_popcount(w.classes) != 1) continue;
      int& count = taken[at(__builtin_ctz(w.classes))];
      if (count < 2 && judge(w.sketch) >= 0) ++count;
    }
  }

  /// How wide the search is. Rounds go on while the budget lasts: on small instances, where simulations are
  /// cheap, to the sketches that the estimate misjudges.
  struct Round {
    i64 per_structure;  ///< sketches simulated that differ in microbatches and order only
    double hopeless;    ///< estimate over the best simulated step of sketches that are left out
    i64 climbs;
    double far;    ///< step over the best of plans that are not improved
    double spent;  ///< by climbs, of the budget that is left
    bool swaps;    ///< of experts between layers: many to try, little to gain
  };

  void simulate_promising(const Round& round) {
    std::map<std::string, i64> structures;
    const i64 reserve = budget_ / 3;  // for improving the winner
    for (const Weighed& w : weighed_) {
      if (budget_ <= reserve && best_ >= 0) break;
      if (best_ >= 0 && w.estimate.step > round.hopeless * step_of(best_)) break;
      i64& count = structures[structure_of(w)];
      if (count >= round.per_structure) continue;
      if (judge(w.sketch) >= 0) ++count;
    }
  }

  static std::string structure_of(const Weighed& w) {
    std::string key = fmt::format("{}/{}", w.classes, w.sketch.groups.size());
    for (const i64 count : w.sketch.groups[0].attention) key += fmt::format(",{}", count);
    key += w.sketch.groups[0].mixed ? "m" : "";
    return key + (w.sketch.groups[0].by_speed ? "s" : "");
  }

  // --- fixed strategies ---

  void simulate_fixed() {
    for (const Strategy& strategy : strategies()) {
      const bool reported = strategy.name == "ep" || strategy.name == "single";
      std::vector<std::pair<Seconds, Plan>> plans = fixed_plans(strategy);
      std::stable_sort(plans.begin(), plans.end(), [](auto& a, auto& b) { return a.first < b.first; });
      bool one = false;
      for (auto& [bound, plan] : plans) {
        const bool may_win = best_ < 0 || bound < step_of(best_);
        if (!may_win && (one || !reported)) continue;
        const i64 index = judge(std::move(plan), nullptr);
        if (index < 0) continue;
        one = true;
        if (reported) keep_best(strategy.name == "ep" ? plain_ep_ : single_, index);
      }
      if (reported && !one && !plans.empty()) unfit_[strategy.name] = last_overfill_;
    }
  }

  void keep_best(i64& kept, i64 index) const {
    if (kept < 0 || step_of(index) < step_of(kept)) kept = index;
  }

  /// Plans of a strategy as anyone would ask for it, with a lower bound of their step.
  std::vector<std::pair<Seconds, Plan>> fixed_plans(const Strategy& strategy) const {
    std::vector<std::pair<Seconds, Plan>> out;
    if (!request_.limits.idle.empty()) return out;
    if (request_.cluster.num_devices() < 2 && strategy.name != "single") return out;
    for (const i64 microbatches : microbatch_choices(request_.sequences, request_.limits.max_microbatches)) {
      StrategyRequest ask;
      ask.seq_len = request_.seq_len;
      ask.sequences = request_.sequences;
      ask.microbatches = microbatches;
      Plan plan = strategy.make(request_.model, request_.cluster, ask);
      const Plan blank = blank_plan(request_, plan.recompute);
      plan.dtype = blank.dtype;
      plan.wire_forward = blank.wire_forward, plan.wire_backward = blank.wire_backward;
      const Seconds bound = lane_bound(plan);
      out.emplace_back(bound, std::move(plan));
    }
    return out;
  }

  /// No step is shorter than the compute ops of one device.
  Seconds lane_bound(const Plan& plan) const {
    std::vector<Seconds> load(request_.cluster.devices.size(), 0);
    std::vector<std::size_t> cls(load.size(), 0);
    for (std::size_t c = 0; c < rates_.num_classes(); ++c) {
      for (const DeviceId d : rates_.classes()[c].devices) cls[at(d)] = c;
    }
    for (const Group& group : plan.groups) add_loads(plan, group, cls, load);
    return *std::max_element(load.begin(), load.end());
  }

  void add_loads(const Plan& plan, const Group& group, const std::vector<std::size_t>& cls,
                 std::vector<Seconds>& load) const {
    const auto microbatches = static_cast<i64>(group.microbatches.size());
    const auto add_shares = [&](const Shares& shares, auto seconds) {
      const double times = real(shares.size() == 1 ? microbatches : 1);
      for (const ShareRow& row : shares) {
        for (const Share& share : row) {
          if (share.sequences > 0)
            load[at(share.device)] += times * seconds(cls[at(share.device)], share.sequences);
        }
      }
    };
    for (const LayerPlacement& layer : group.layers) {
      add_shares(layer.attention, [&](std::size_t c, i64 sequences) {
        return rates_.attention(c, real(sequences), plan.recompute).sum();
      });
    }
    add_shares(group.head, [&](std::size_t c, i64 sequences) { return rates_.head(c, real(sequences)); });
    add_experts(plan, group, cls, load);
  }

  void add_experts(const Plan& plan, const Group& group, const std::vector<std::size_t>& cls,
                   std::vector<Seconds>& load) const {
    const double times = real(static_cast<i64>(group.microbatches.size()));
    const double tokens = real(total_sequences(group) * request_.seq_len) / times;
    const double copies = tokens * real(request_.model.top_k) / real(request_.model.num_experts);
    std::map<std::pair<std::size_t, i64>, Seconds> known;
    std::vector<i64> owned(load.size());
    for (const LayerPlacement& layer : group.layers) {
      std::fill(owned.begin(), owned.end(), 0);
      for (const auto& owners : layer.experts) ++owned[at(owners[0].device)];
      for (const DeviceId device : group.devices) {
        const i64 count = owned[at(device)];
        if (count == 0) continue;
        const auto [entry, fresh] = known.try_emplace({cls[at(device)], count});
        if (fresh)
          entry->second =
              rates_.experts(cls[at(device)], copies * real(count), real(count), plan.recompute).sum();
        load[at(device)] += times * entry->second;
      }
    }
  }

  // --- improving the winner ---

  /// Climbs from the best plan, then from the best plans of other kinds.
  void improve(const Round& round) {
    std::vector<i64> order(scored_.size());
    std::iota(order.begin(), order.end(), i64{0});
    std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) { return step_of(a) < step_of(b); });
    std::set<std::string> kinds;
    kept_ = budget_ - static_cast<i64>(round.spent * static_cast<double>(budget_));
    for (const i64 start : order) {
      if (!may_climb() || static_cast<i64>(kinds.size()) >= round.climbs ||
          step_of(start) > round.far * step_of(best_))
        return;
      if (!kinds.insert(scored_[at(start)].candidate.name).second) continue;
      climb(start, round.swaps);
    }
  }

  bool may_climb() const { return budget_ > kept_; }

  void climb(i64 start, bool swaps) {
    current_ = start;
    // Experts of single layers do not show in the first layers.
    while (may_climb() && (improve_sketch() || improve_order() || improve_devices() || improve_columns() ||
                           (!short_.shortens() && (improve_experts() || (swaps && improve_layers()))) ||
                           improve_sequences())) {
    }
    current_ = -1;
  }

  /// Tries neighbours of the current plan's sketch, the promising ones first. True when one is better.
  bool improve_sketch() {
    const i64 before = current_;
    if (!scored_[at(current_)].has_sketch) return false;
    const Sketch sketch = scored_[at(current_)].sketch;
    const Seconds most = kHopelessNeighbour * estimate(rates_, sketch).step;
    std::vector<std::pair<Seconds, Sketch>> all;
    for (Sketch& next : neighbours(sketch)) {
      const Estimate e = estimate(rates_, next);
      if (e.feasible() && e.step < most) all.emplace_back(e.step, std::move(next));
    }
    std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.first < b.first; });
    for (const auto& [step, next] : all) {
      if (!may_climb()) break;
      judge(next);
    }
    return current_ != before;
  }

  std::vector<Sketch> neighbours(const Sketch& sketch) const {
    std::vector<Sketch> all;
    const auto add = [&](auto change) {
      Sketch next = sketch;
      change(next);
      all.push_back(std::move(next));
    };
    for (const double factor : {0.97, 1.03, 0.9, 1.1}) {
      if (std::any_of(sketch.groups.begin(), sketch.groups.end(),
                      [](const SketchGroup& g) { return g.mixed; })) {
        add([&](Sketch& s) { s.bias *= factor; });
      }
    }
    const bool by_part = sketch.rounding == Rounding::kByPart;
    add([&](Sketch& s) { s.rounding = by_part ? Rounding::kByDevice : Rounding::kByPart; });
    for (const i64 count : neighbour_counts(sketch)) {
      add([&](Sketch& s) {
        for (SketchGroup& g : s.groups) g.microbatches = std::min(count, g.sequences);
      });
    }
    for (int c = 0; c < 2 * static_cast<int>(rates_.num_classes()); ++c) {
      const auto cls = static_cast<std::size_t>(c / 2);
      const i64 change = c % 2 == 0 ? 1 : -1;
      const SketchGroup& group = sketch.groups[0];
      const i64 count = group.attention[cls] + change;
      const i64 sum = std::accumulate(group.attention.begin(), group.attention.end(), i64{0}) + change;
      if (sketch.groups.size() > 1 || count < 0 || count > group.count[cls] || sum == 0) continue;
      if (!group.mixed && sum == std::accumulate(group.count.begin(), group.count.end(), i64{0})) continue;
      add([&](Sketch& s) { s.groups[0].attention[cls] = count; });
    }
    return all;
  }

  /// Tries other orders of the current plan: parts of an exchange, microbatches in flight, recomputation.
  bool improve_order() {
    const i64 before = current_;
    const Plan plan = plan_of(before);
    const auto microbatches = static_cast<i32>(plan.groups[0].microbatches.size());
    if (plan.order != OrderPolicy::kLayerMajor) return false;
    const auto consider = [&](i32 window, i32 chunks, Recompute recompute) {
      if (!may_climb()) return;
      Plan next = plan;
      Sketch sketch = scored_[at(before)].sketch;
      next.window = sketch.window = window;
      next.chunks = sketch.chunks = chunks;
      next.recompute = sketch.recompute = recompute;
      judge(std::move(next), scored_[at(before)].has_sketch ? &sketch : nullptr);
    };
    for (const Recompute recompute : {Recompute::kOff, Recompute::kLocal}) {
      if (recompute != plan.recompute) consider(plan.window, plan.chunks, recompute);
    }
    for (const i32 chunks : {plan.chunks * 2, plan.chunks / 2}) {
      if (chunks >= 1 && chunks <= kMostChunks) consider(plan.window, chunks, plan.recompute);
    }
    for (const i32 window : {0, 1, 2, 3, plan.window * 2}) {
      if (window != plan.window && window < microbatches) consider(window, plan.chunks, plan.recompute);
    }
    return current_ != before;
  }

  std::vector<i64> neighbour_counts(const Sketch& sketch) const {
    const i64 now = sketch.groups[0].microbatches, sequences = sketch.groups[0].sequences;
    std::vector<i64> counts;
    for (const i64 step : {-1, 1}) {
      for (i64 count = now + step;
           count >= 1 && count <= std::min(sequences, request_.limits.max_microbatches); count += step) {
        if (sequences % count != 0) continue;
        counts.push_back(count);
        break;
      }
    }
    for (const i64 count : {now - 1, now + 1}) {
      if (count >= 1 && count <= std::min(sequences, request_.limits.max_microbatches))
        counts.push_back(count);
    }
    return counts;
  }

  /// Devices of no group that may be used.
  std::vector<DeviceId> free_devices(const Plan& plan) const {
    std::vector<bool> used(request_.cluster.devices.size(), false);
    for (const DeviceId d : request_.limits.idle) used[at(d)] = true;
    for (const Group& group : plan.groups) {
      for (const DeviceId d : group.devices) used[at(d)] = true;
    }
    std::vector<DeviceId> free;
    for (DeviceId d = 0; d < request_.cluster.num_devices(); ++d) {
      if (!used[at(d)]) free.push_back(d);
    }
    return free;
  }

  /// Who could give work to whom: in a small group everyone, else the busiest to the least busy; unused
  /// devices take.
  std::vector<std::pair<DeviceId, DeviceId>> exchanges(i64 index, std::size_t g) const {
    const Plan& plan = plan_of(index);
    const std::vector<double>& busy = scored_[at(index)].candidate.prediction.busy;
    std::vector<DeviceId> from = plan.groups[g].devices;
    std::stable_sort(from.begin(), from.end(),
                     [&](DeviceId a, DeviceId b) { return busy[at(a)] > busy[at(b)]; });
    std::vector<DeviceId> to(from.rbegin(), from.rend());
    const std::vector<DeviceId> free = free_devices(plan);
    to.insert(to.begin(), free.begin(), free.end());
    if (to.size() > kSmallGroup) {
      from.resize(std::min(from.size(), kMovesFrom));
      to.resize(kMovesFrom);
    }
    std::vector<std::pair<DeviceId, DeviceId>> pairs;
    for (const DeviceId a : from) {
      for (const DeviceId b : to) {
        if (a != b) pairs.emplace_back(a, b);
      }
    }
    return pairs;
  }

  static void join_group(Group& group, DeviceId device) {
    const auto place = std::lower_bound(group.devices.begin(), group.devices.end(), device);
    if (place == group.devices.end() || *place != device) group.devices.insert(place, device);
  }

  /// Groups that may be changed device by device: in larger ones a single device does not matter.
  template <class Try>
  bool improve_groups(Try try_pairs) {
    const i64 before = current_;
    const std::vector<i32> alike = alike_groups(plan_of(before), request_.cluster);
    for (std::size_t g = 0; g < alike.size(); ++g) {
      if (at(alike[g]) != g || plan_of(before).groups[g].devices.size() > kMediumGroup) continue;
      try_pairs(g, exchanges(before, g));
    }
    return current_ != before;
  }

  /// Leaves a device out: another one takes all that it does.
  bool improve_devices() {
    const i64 before = current_;
    return improve_groups([&](std::size_t g, const std::vector<std::pair<DeviceId, DeviceId>>& pairs) {
      for (const auto& [from, to] : pairs) {
        if (may_climb()) try_change(before, g, from, to, retire);
      }
    });
  }

  static bool retire(Group& group, DeviceId from, DeviceId to) {
    if (!has_same_shares(group)) return false;
    for (LayerPlacement& layer : group.layers) {
      while (move_expert(layer.experts, from, to)) {
      }
    }
    give_sequences(group, from, to, kAll);
    std::erase(group.devices, from);
    return true;
  }

  /// Swaps experts between layers: as many on each device, at another time of the step.
  bool improve_layers() {
    const i64 before = current_;
    return improve_groups([&](std::size_t g, const std::vector<std::pair<DeviceId, DeviceId>>& pairs) {
      for (i64 l = 0; l < request_.model.num_layers; ++l) {
        for (i64 other = 0; other < request_.model.num_layers; ++other) {
          if (l == other) continue;
          for (const auto& [from, to] : pairs) {
            if (may_climb())
              try_change(before, g, from, to, [&](Group& group, DeviceId a, DeviceId b) {
                return move_expert(group.layers[at(l)].experts, a, b) &&
                       move_expert(group.layers[at(other)].experts, b, a);
              });
          }
          if (current_ != before) return;
        }
      }
    });
  }

  /// Gives an expert of every layer to another device.
  bool improve_columns() {
    const i64 before = current_;
    return improve_groups([&](std::size_t g, const std::vector<std::pair<DeviceId, DeviceId>>& pairs) {
      for (const auto& [from, to] : pairs) {
        if (may_climb())
          try_change(before, g, from, to, [](Group& group, DeviceId a, DeviceId b) {
            i64 moved = 0;
            for (LayerPlacement& layer : group.layers) moved += move_expert(layer.experts, a, b);
            return moved > 0;
          });
      }
    });
  }

  /// Gives an expert of a layer to another device.
  bool improve_experts() {
    const i64 before = current_;
    return improve_groups([&](std::size_t g, const std::vector<std::pair<DeviceId, DeviceId>>& pairs) {
      for (i64 l = 0; l < request_.model.num_layers; ++l) {
        for (const auto& [from, to] : pairs) {
          if (may_climb())
            try_change(before, g, from, to, [&](Group& group, DeviceId a, DeviceId b) {
              return move_expert(group.layers[at(l)].experts, a, b);
            });
        }
        if (current_ != before) return;
      }
    });
  }

  static bool move_expert(std::vector<std::vector<ExpertOwner>>& experts, DeviceId from, DeviceId to) {
    for (std::size_t e = experts.size(); e-- > 0;) {
      if (experts[e].size() != 1 || experts[e][0].device != from) continue;
      experts[e][0].device = to;
      return true;
    }
    return false;
  }

  /// Gives a sequence of every microbatch to another device.
  bool improve_sequences() {
    const i64 before = current_;
    return improve_groups([&](std::size_t g, const std::vector<std::pair<DeviceId, DeviceId>>& pairs) {
      for (const auto& [from, to] : pairs) {
        if (may_climb() && gives_sequences(plan_of(before).groups[g], from))
          try_change(before, g, from, to, shift_sequences);
      }
    });
  }

  /// No pipeline.
  static bool has_same_shares(const Group& group) {
    return group.head == group.embed &&
           std::all_of(group.layers.begin(), group.layers.end(),
                       [&](const LayerPlacement& layer) { return layer.attention == group.embed; });
  }

  static bool gives_sequences(const Group& group, DeviceId from) {
    return has_same_shares(group) &&
           std::all_of(group.embed.begin(), group.embed.end(),
                       [&](const ShareRow& row) { return sequences_of(row, from) > 0; });
  }

  static bool shift_sequences(Group& group, DeviceId from, DeviceId to) {
    give_sequences(group, from, to, 1);
    return true;
  }

  /// Of every microbatch, as many as `from` has but no more than `most`.
  static void give_sequences(Group& group, DeviceId from, DeviceId to, i64 most) {
    Shares shares = group.embed;
    for (ShareRow& row : shares) {
      const i64 given = std::min(most, sequences_of(row, from));
      const auto same = [&](const Share& share) { return share.device == to; };
      if (given > 0 && std::none_of(row.begin(), row.end(), same)) row.push_back({to, 0});
      for (Share& share : row)
        share.sequences += share.device == to ? given : share.device == from ? -given : 0;
      std::erase_if(row, [](const Share& share) { return share.sequences == 0; });
    }
    group.embed = group.head = shares;
    for (LayerPlacement& layer : group.layers) layer.attention = shares;
  }

  /// Judges a plan with a change to a group and, the same, to all that are arranged alike. `to` may be a
  /// device of no group; then only the one group changes.
  template <class Change>
  void try_change(i64 from_plan, std::size_t g, DeviceId from, DeviceId to, Change change) {
    Plan plan = plan_of(from_plan);
    const std::vector<DeviceId> devices = plan.groups[g].devices;
    const auto place = [&](DeviceId d) {
      return std::find(devices.begin(), devices.end(), d) - devices.begin();
    };
    const bool joins = at(place(to)) == devices.size();
    if (joins) join_group(plan.groups[g], to);
    if (!change(plan.groups[g], from, to)) return;
    const std::vector<i32> alike = alike_groups(plan_of(from_plan), request_.cluster);
    for (std::size_t other = 0; other < alike.size() && !joins; ++other) {
      if (other == g || at(alike[other]) != g) continue;
      const std::vector<DeviceId>& theirs = plan_of(from_plan).groups[other].devices;
      change(plan.groups[other], theirs[at(place(from))], theirs[at(place(to))]);
    }
    judge(std::move(plan), nullptr);
  }

  // --- result ---

  void collect() {
    std::vector<i64> chosen = choose_reported();
    for (const i64 i : chosen) confirm(i);
    std::stable_sort(chosen.begin(), chosen.end(), [&](i64 a, i64 b) { return step_of(a) < step_of(b); });
    for (const i64 i : chosen) {
      Candidate candidate = std::move(scored_[at(i)].candidate);
      candidate.limited_by =
          result_.tried.empty() ? critical_path(request_, candidate.plan) : busiest_type(candidate);
      if (i == plain_ep_) candidate.name += ", equal shares";
      result_.tried.push_back(std::move(candidate));
    }
    for (const auto& [name, why] : unfit_) {
      add_unfit(name == "single" ? "single device" : name + " on all devices", why);
    }
  }

  /// The first few, the best of every name, and the named ones; those that are neither the best nor named
  /// only as far as there is time to confirm them.
  std::vector<i64> choose_reported() {
    std::vector<i64> order(scored_.size()), chosen;
    std::iota(order.begin(), order.end(), i64{0});
    std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) { return step_of(a) < step_of(b); });
    std::set<std::string> names;
    bool newer = false, homogeneous = false;
    i64 budget = whole_budget_ / 4;
    for (const i64 i : order) {
      const Candidate& candidate = scored_[at(i)].candidate;
      const bool named = i == plain_ep_ || i == single_ || (candidate.newer_only && !newer) ||
                         (candidate.homogeneous && !homogeneous);
      const bool close = chosen.size() < kConfirmed && step_of(i) < kClose * step_of(order[0]);
      const bool other = chosen.size() < kReported && !names.contains(candidate.name);
      if (!named && !close && !other) continue;
      if (!named && !chosen.empty() && work_to_confirm(i) > budget) continue;
      budget -= work_to_confirm(i);
      names.insert(candidate.name);
      newer = newer || candidate.newer_only;
      homogeneous = homogeneous || candidate.homogeneous;
      chosen.push_back(i);
    }
    return chosen;
  }

  void add_unfit(const std::string& name, const std::string& why) {
    Candidate candidate;
    candidate.name = name;
    candidate.infeasible = why;
    result_.tried.push_back(std::move(candidate));
  }

  static constexpr i64 kSmallBudget = 120000;  ///< of small clusters, where devices are told apart by node
  static constexpr i32 kMostChunks = 8;
  static constexpr i64 kAll = 1 << 30;
  /// Most estimates are 20 % below to 5 % above the simulator.
  static constexpr Round kRounds[] = {
      {2, 1.1, 4, 1.2, 0.4, false}, {8, 1.6, 4, 1.2, 0.4, false}, {kAll, 1e30, kAll, 1.6, 1, true}};
  static constexpr i64 kDearest = 8;  ///< no simulation takes more than this part of the budget
  static constexpr std::size_t kMovesFrom = 3, kSmallGroup = 6, kMediumGroup = 24;
  static constexpr double kHopelessNeighbour = 1.1;  ///< estimate over that of the current sketch
  static constexpr i64 kEntriesPerVisit = 2;
  const PlanRequest& request_;
  Rates rates_;
  Predictor predictor_;
  ShortModel short_;
  i64 whole_budget_ = 0, budget_ = 0;  ///< op-device visits of all simulations; what is left
  i64 kept_ = 0;                       ///< of the budget, for later rounds
  std::vector<Weighed> weighed_;
  std::vector<Scored> scored_;
  std::map<u64, i64> seen_;
  i64 current_ = -1;  ///< where the climb is
  i64 best_ = -1, plain_ep_ = -1, single_ = -1;
  std::map<std::string, std::string> unfit_;
  std::string last_overfill_;
  PlanResult result_;
};

void check_cluster(const Cluster& cluster) {
  if (cluster.devices.empty())
    fail<ConfigError>("plan", "cluster {} has no devices, expected at least one", cluster.name);
  for (const Node& node : cluster.nodes) {
    if (node.network < 0 || node.local < 0 || node.latency < 0 || node.local_latency < 0) {
      fail<ConfigError>("plan", "node {}: got a negative bandwidth or latency, expected >= 0", node.name);
    }
    if (cluster.nodes.size() > 1 && node.network == 0) {
      fail<ConfigError>("plan", "node {}: got no network bandwidth, expected > 0 in a cluster of {} nodes",
                        node.name, cluster.nodes.size());
    }
  }
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    if (cluster.devices[at(d)].speed <= 0) {
      fail<ConfigError>("plan", "device {}: got speed {}, expected > 0", d, cluster.devices[at(d)].speed);
    }
  }
}

/// The request with `sequences` settled.
PlanRequest checked(PlanRequest request) {
  check_cluster(request.cluster);
  if (request.model.num_layers < 1) fail<ConfigError>("plan", "model {} has no layers", request.model.name);
  if (request.seq_len < 1) fail<ConfigError>("plan", "seq_len: got {}, expected >= 1", request.seq_len);
  if (request.model.max_positions > 0 && request.seq_len > request.model.max_positions) {
    fail<ConfigError>("plan", "seq_len: got {}, expected at most the {} positions of model {}",
                      request.seq_len, request.model.max_positions, request.model.name);
  }
  if (request.sequences == 0) request.sequences = request.tokens / request.seq_len;
  if (request.sequences < 1) {
    fail<ConfigError>("plan",
                      "got {} sequences and {} tokens per step, expected at least one sequence of {} tokens",
                      request.sequences, request.tokens, request.seq_len);
  }
  for (const DeviceId d : request.limits.idle) {
    if (d < 0 || d >= request.cluster.num_devices()) {
      fail<ConfigError>("plan", "idle: got device {}, expected 0 to {}", d,
                        request.cluster.num_devices() - 1);
    }
  }
  const std::set<DeviceId> idle(request.limits.idle.begin(), request.limits.idle.end());
  if (static_cast<i32>(idle.size()) == request.cluster.num_devices()) {
    fail<ConfigError>("plan", "idle: all {} devices must stay out, expected at least one to remain",
                      idle.size());
  }
  return request;
}

}  // namespace

PlanResult find_plan(const PlanRequest& request) {
  const PlanRequest settled = checked(request);
  return Search(settled).run();
}

Json to_json(const PlanResult& result) {
  Json rows = Json::array();
  for (const Candidate& c : result.tried) {
    Json row = {{"name", c.name}, {"verdict", c.verdict}};
    if (!c.infeasible.empty()) {
      row["infeasible"] = c.infeasible;
    } else {
      row["step_s"] = c.prediction.step;
      row["tokens_per_s"] = c.prediction.tokens_per_s;
      row["memory_bytes"] = c.memory;
      row["busy"] = c.prediction.busy;
      row["limited_by"] = c.limited_by;
      row["newer_only"] = c.newer_only;
      row["homogeneous"] = c.homogeneous;
      row["plan"] = to_json(c.plan);
    }
    rows.push_back(std::move(row));
  }
  return {{"infeasible", result.infeasible},
          {"explanation", result.explanation},
          {"num_sketches", result.num_sketches},
          {"num_simulated", result.num_simulated},
          {"candidates", std::move(rows)}};
}

}  // namespace hetermoe
