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
struct Scored {
  Plan plan;
  Prediction prediction;
  std::vector<Bytes> memory;
  Sketch sketch;
  bool has_sketch = false;
  bool exact = false;  ///< the prediction is of all layers
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

/// Op-device visits of one simulation, roughly.
i64 visits(const Plan& plan) {
  i64 sum = 0;
  for (const Group& group : plan.groups) {
    i64 microbatches = static_cast<i64>(group.microbatches.size());
    if (plan.window == 1)
      microbatches = std::min<i64>(microbatches, 5);  // the predictor extrapolates the rest
    sum += microbatches * static_cast<i64>(group.layers.size()) * static_cast<i64>(group.devices.size()) *
           (4 + 4 * plan.chunks);
  }
  return sum;
}

class Search {
 public:
  explicit Search(const PlanRequest& request)
      : request_(request),
        rates_(request),
        predictor_(request.model, request.cluster, request.software),
        short_(request.model, request.cluster, request.software) {
    budget_ = request.limits.simulation_budget;
    if (budget_ == 0) budget_ = 60000 + 4000 * static_cast<i64>(request.cluster.num_devices());
  }

  PlanResult run() {
    std::string nearest_miss;
    weighed_ = weigh_sketches(rates_, nearest_miss);
    result_.num_sketches = static_cast<i64>(weighed_.size());
    simulate_named();
    simulate_promising(kFirst);
    simulate_fixed();
    if (scored_.empty()) {
      result_.infeasible = !nearest_miss.empty() ? nearest_miss : last_overfill_;
    } else {
      improve();
      // Where simulations are cheap, the budget allows a second, deeper look.
      if (budget_ > 0) simulate_promising(kDeeper);
      if (budget_ > 0) improve();
    }
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
    seen_[key] = -1;
    std::vector<Bytes> memory = estimate_memory(plan, request_.model);
    std::vector<Bytes> with_reserve = memory;
    for (Bytes& bytes : with_reserve) bytes += bytes > 0 ? request_.limits.memory_reserve : 0;
    const std::string over = overfilled_device(with_reserve, request_.cluster);
    if (!over.empty()) {
      last_overfill_ = over;
      return -1;
    }
    budget_ -= visits(plan) * short_.layers_simulated() / request_.model.num_layers;
    ++result_.num_simulated;
    Scored scored{std::move(plan), {}, std::move(memory), {}, sketch != nullptr, !short_.shortens()};
    if (sketch != nullptr) scored.sketch = *sketch;
    scored.prediction = short_.predict(scored.plan);
    scored.plan.predicted_step_s = scored.prediction.step;
    scored_.push_back(std::move(scored));
    const i64 index = static_cast<i64>(scored_.size()) - 1;
    if (best_ < 0 || step_of(index) < step_of(best_)) best_ = index;
    if (current_ >= 0 && step_of(index) < step_of(current_)) current_ = index;
    return seen_[key] = index;
  }

  /// Estimates of memory are a little lower than the check: a second try leaves experts less room.
  i64 judge(const Sketch& sketch) {
    for (const double squeeze : {1.0, 0.9, 0.75}) {
      const i64 index = judge(realize(rates_, sketch, squeeze), &sketch);
      if (index >= 0) return index;
    }
    return -1;
  }

  /// Replaces an extrapolated prediction by that of all layers.
  void confirm(i64 index) {
    Scored& scored = scored_[at(index)];
    if (scored.exact) return;
    scored.exact = true;
    scored.prediction = predictor_.predict(scored.plan);
    scored.plan.predicted_step_s = scored.prediction.step;
  }

  Seconds step_of(i64 index) const { return scored_[at(index)].prediction.step; }

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

  /// How far down the list of sketches simulation goes.
  struct Depth {
    int per_structure;  ///< sketches that differ in microbatches and order only
    double hopeless;    ///< estimate over the best simulated step
  };

  void simulate_promising(const Depth& depth) {
    std::map<std::string, int> structures;
    const i64 reserve = budget_ / 3;  // for improving the winner
    for (const Weighed& w : weighed_) {
      if (budget_ < reserve && best_ >= 0) break;
      if (best_ >= 0 && w.estimate.step > depth.hopeless * step_of(best_)) break;
      int& count = structures[structure_of(w)];
      if (count >= depth.per_structure) continue;
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
    const double layers = real(request_.model.num_layers);
    const Shares& shares = group.layers[0].attention;
    const double times = real(static_cast<i64>(shares.size() == 1 ? group.microbatches.size() : 1));
    for (const ShareRow& row : shares) {
      for (const Share& share : row) {
        if (share.sequences == 0) continue;
        load[at(share.device)] +=
            times * layers *
            rates_.attention(cls[at(share.device)], real(share.sequences), plan.recompute).sum();
      }
    }
    std::vector<i64> owned(load.size(), 0);
    for (const LayerPlacement& layer : group.layers) {
      for (const auto& owners : layer.experts) ++owned[at(owners[0].device)];
    }
    const double moe = std::max(1.0, real(request_.model.num_moe_layers()));
    const double tokens =
        real(total_sequences(group) * request_.seq_len) / real(static_cast<i64>(group.microbatches.size()));
    for (std::size_t d = 0; d < load.size(); ++d) {
      if (owned[d] == 0) continue;
      const double each = real(owned[d]) / moe;
      const double copies = tokens * real(request_.model.top_k) * each / real(request_.model.num_experts);
      load[d] += moe * real(static_cast<i64>(group.microbatches.size())) *
                 rates_.experts(cls[d], copies, each, plan.recompute).sum();
    }
  }

  // --- improving the winner ---

  /// Climbs from the best plan, then from the best plans of other kinds.
  void improve() {
    std::vector<i64> order(scored_.size());
    std::iota(order.begin(), order.end(), i64{0});
    std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) { return step_of(a) < step_of(b); });
    std::set<std::string> kinds;
    for (const i64 start : order) {
      if (budget_ <= 0 || kinds.size() >= kClimbs || step_of(start) > kFarFromBest * step_of(best_)) return;
      if (!kinds.insert(make_candidate(start).name).second) continue;
      climb(start);
    }
  }

  void climb(i64 start) {
    current_ = start;
    // Experts of single layers do not show in the first layers.
    while (budget_ > 0 &&
           (improve_sketch() || (!short_.shortens() && improve_experts()) || improve_sequences())) {
    }
    current_ = -1;
  }

  /// Tries neighbours of the current plan's sketch. True when one is better.
  bool improve_sketch() {
    const i64 before = current_;
    if (!scored_[at(current_)].has_sketch) return false;
    for (const Sketch& next : neighbours(scored_[at(current_)].sketch)) {
      if (budget_ <= 0) break;
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
    for (const i32 chunks : {sketch.chunks * 2, sketch.chunks / 2}) {
      if (chunks >= 1 && chunks <= 8) add([&](Sketch& s) { s.chunks = chunks; });
    }
    for (const i32 window : {0, 2, 3, sketch.window * 2}) {
      if (window != sketch.window) add([&](Sketch& s) { s.window = window; });
    }
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
    const Plan& plan = scored_[at(index)].plan;
    const std::vector<double>& busy = scored_[at(index)].prediction.busy;
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

  /// Gives an expert of a layer to another device.
  bool improve_experts() {
    const i64 before = current_;
    const std::size_t groups = scored_[at(before)].plan.groups.size();
    for (std::size_t g = 0; g < groups; ++g) {
      const auto pairs = exchanges(before, g);
      for (i64 l = 0; l < request_.model.num_layers; ++l) {
        if (!request_.model.is_moe(l)) continue;
        for (const auto& [from, to] : pairs) {
          if (budget_ > 0) try_move(before, g, l, from, to);
        }
        if (current_ != before) return true;
      }
    }
    return false;
  }

  void try_move(i64 from_plan, std::size_t group, i64 layer, DeviceId from, DeviceId to) {
    Plan plan = scored_[at(from_plan)].plan;
    join_group(plan.groups[group], to);
    std::vector<std::vector<ExpertOwner>>& experts = plan.groups[group].layers[at(layer)].experts;
    for (std::size_t e = experts.size(); e-- > 0;) {
      if (experts[e].size() != 1 || experts[e][0].device != from) continue;
      experts[e][0].device = to;
      judge(std::move(plan), nullptr);
      return;
    }
  }

  /// Gives a sequence of every microbatch to another device.
  bool improve_sequences() {
    const i64 before = current_;
    const std::size_t groups = scored_[at(before)].plan.groups.size();
    for (std::size_t g = 0; g < groups; ++g) {
      for (const auto& [from, to] : exchanges(before, g)) {
        if (budget_ > 0) try_shift(before, g, from, to);
      }
    }
    return current_ != before;
  }

  void try_shift(i64 from_plan, std::size_t group_index, DeviceId from, DeviceId to) {
    Plan plan = scored_[at(from_plan)].plan;
    Group& group = plan.groups[group_index];
    join_group(group, to);
    Shares shares = group.embed;
    for (ShareRow& row : shares) {
      Share *giver = nullptr, *taker = nullptr;
      for (Share& share : row) {
        if (share.device == from) giver = &share;
        if (share.device == to) taker = &share;
      }
      if (giver == nullptr || giver->sequences == 0) return;
      --giver->sequences;
      if (taker != nullptr) {
        ++taker->sequences;
      } else {
        row.push_back({to, 1});
      }
      std::erase_if(row, [](const Share& share) { return share.sequences == 0; });
    }
    group.embed = group.head = shares;
    for (LayerPlacement& layer : group.layers) layer.attention = shares;
    judge(std::move(plan), nullptr);
  }

  // --- result ---

  void collect() {
    std::vector<i64> chosen = choose_reported();
    for (const i64 i : chosen) confirm(i);
    std::stable_sort(chosen.begin(), chosen.end(), [&](i64 a, i64 b) { return step_of(a) < step_of(b); });
    for (const i64 i : chosen) {
      Candidate candidate = make_candidate(i);
      candidate.limited_by =
          result_.tried.empty() ? critical_path(request_, candidate.plan) : busiest_type(candidate);
      if (i == plain_ep_) candidate.name += ", equal shares";
      result_.tried.push_back(std::move(candidate));
    }
    for (const auto& [name, why] : unfit_) {
      add_unfit(name == "single" ? "single device" : name + " on all devices", why);
    }
  }

  /// The first few, the best of every name, and the named ones.
  std::vector<i64> choose_reported() {
    std::vector<i64> order(scored_.size()), chosen;
    std::iota(order.begin(), order.end(), i64{0});
    std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) { return step_of(a) < step_of(b); });
    std::set<std::string> names;
    bool newer = false, homogeneous = false;
    for (const i64 i : order) {
      const Candidate candidate = make_candidate(i);
      const bool named = i == plain_ep_ || i == single_ || (candidate.newer_only && !newer) ||
                         (candidate.homogeneous && !homogeneous);
      const bool close = chosen.size() < kConfirmed && step_of(i) < kClose * step_of(order[0]);
      const bool other = chosen.size() < kReported && !names.contains(candidate.name);
      if (!named && !close && !other) continue;
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

  Candidate make_candidate(i64 index) {
    Candidate candidate;
    candidate.plan = scored_[at(index)].plan;
    candidate.prediction = scored_[at(index)].prediction;
    candidate.memory = scored_[at(index)].memory;
    describe(request_, candidate);
    return candidate;
  }

  /// Estimates are 20 % below to 5 % above the simulator.
  static constexpr Depth kFirst = {2, 1.1}, kDeeper = {8, 1.6};
  static constexpr std::size_t kMovesFrom = 3, kSmallGroup = 6;
  static constexpr std::size_t kClimbs = 4;
  static constexpr double kFarFromBest = 1.2;
  const PlanRequest& request_;
  Rates rates_;
  Predictor predictor_;
  ShortModel short_;
  i64 budget_ = 0;
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
