#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/schedule/builder.h"
#include "hetermoe/schedule/expected_ops.h"
#include "hetermoe/schedule/residency.h"

// Checks a schedule against the rules, without the builder's bookkeeping: the order that each device sees is
// worked out from lanes and dependencies alone, then every pair of conflicting accesses must follow it.
namespace hetermoe {
namespace {

constexpr std::size_t kMaxScheduleFaults = 100;

class Checker {
 public:
  Checker(const Schedule& schedule, const Plan& plan, const ModelConfig& model, const StepOptions& options)
      : s_(schedule), model_(model), placement_(plan, model, options) {}

  std::vector<std::string> run() {
    check_shape();
    if (!faults_.empty()) return faults_;
    check_ops();
    check_dependencies();
    if (!faults_.empty()) return faults_;  // the order below indexes with what was checked above
    check_orders();
    if (faults_.empty() && placement_.options().staleness > 0) check_next_step();
    return faults_;
  }

 private:
  struct Stand {
    OpId op;
    LaneId lane;  ///< on the place in question
  };

  void check_orders() {
    std::vector<std::vector<Stand>> ops_of(idx(s_.num_places()));
    for (OpId op = 0; op < s_.num_ops(); ++op) {
      for (const LaneId lane : s_.lanes_of(op)) ops_of[idx(device_of(lane))].push_back({op, lane});
    }
    clock_.resize(s_.ops.size());
    position_.resize(s_.ops.size());
    lane_here_.resize(s_.ops.size());
    necessary_.assign(s_.deps.size(), false);
    for (PlaceId place = 0; place < s_.num_places(); ++place) check_device(place, ops_of[idx(place)]);
    check_no_extra_dependency();
  }

  /// What is sound in one step must be so in two that overlap.
  void check_next_step() {
    check_lag();
    const Schedule both = repeat(s_, 2);
    Checker checker(both, placement_.plan(), model_, placement_.options());
    checker.next_step_ = s_.num_ops();
    checker.check_orders();
    faults_.insert(faults_.end(), checker.faults_.begin(), checker.faults_.end());
  }

  /// Hazards keep any order of these; one alone is a lag of one step.
  void check_lag() {
    std::set<std::pair<i32, PlaceId>> published, taken, updated;  // (state, host)
    std::vector<Access> touched;
    for (OpId op = 0; op < s_.num_ops(); ++op) {
      const Op& o = s_.ops[idx(op)];
      if (o.state < 0 || !placement_.states().lags(o.state)) continue;
      for (const LaneId lane : s_.lanes_of(op)) {
        if (device_of(lane) < placement_.num_devices()) continue;
        const std::pair<i32, PlaceId> key{o.state, device_of(lane)};
        touched.clear();
        accesses(o, device_of(lane), placement_, touched);
        const auto has = [&](Buffer buffer, Mode mode) {
          return std::ranges::any_of(touched,
                                     [&](const Access& a) { return a.buffer() == buffer && a.mode == mode; });
        };
        const bool publishes = has(Buffer::kPublished, Mode::kWrite), takes = has(Buffer::kGrad, Mode::kTake);
        if (has(Buffer::kPublished, Mode::kRead) && published.count(key) > 0)
          fault("{} comes after its state is published: it would bring the weights of the next step",
                name(op));
        if (has(Buffer::kGrad, Mode::kAdd) && taken.count(key) > 0)
          fault("{} comes after the gradients of its state are taken", name(op));
        if (publishes && updated.count(key) > 0) fault("{} comes after the update of its step", name(op));
        if (publishes) published.insert(key);
        if (takes) taken.insert(key);
        if (has(Buffer::kParams, Mode::kAdd)) updated.insert(key);
      }
    }
  }

  /// Per queue, how many ops at its front have ended on this device.
  using Clock = std::array<i32, kLanesOfPlace>;

  template <class... Args>
  void fault(fmt::format_string<Args...> format, Args&&... args) {
    if (faults_.size() < kMaxScheduleFaults)
      faults_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  std::string name(OpId op) const {
    const bool next = next_step_ > 0 && op >= next_step_;
    return fmt::format("op {} {}{}", next ? op - next_step_ : op, to_string(s_.ops[idx(op)]),
                       next ? " of the next step" : "");
  }

  void check_shape() {
    const auto check_csr = [&](const char* what, const std::vector<i64>& begin, std::size_t size) {
      const bool sound = begin.size() == s_.ops.size() + 1 && begin.front() == 0 &&
                         begin.back() == static_cast<i64>(size) && std::is_sorted(begin.begin(), begin.end());
      if (!sound) fault("{} does not cut {} entries into {} ops", what, size, s_.ops.size());
    };
    check_csr("lane_begin", s_.lane_begin, s_.lanes.size());
    check_csr("dep_begin", s_.dep_begin, s_.deps.size());
    if (s_.overlaps() != (placement_.options().staleness > 0 && placement_.options().backward))
      fault("the schedule {} with the step before it", s_.overlaps() ? "overlaps" : "does not overlap");
    if (s_.overlaps()) check_csr("carry_begin", s_.carry_begin, s_.carry.size());
    if (s_.num_devices != static_cast<i32>(placement_.plan().dtype.size())) {
      fault("the schedule has {} devices, the plan {}", s_.num_devices, placement_.plan().dtype.size());
    }
    if (s_.num_hosts != placement_.num_hosts())
      fault("the schedule has {} hosts, the plan {}", s_.num_hosts, placement_.num_hosts());
    if (s_.states != placement_.states().all()) fault("the states are not those of the plan");
  }

  using Found = std::vector<std::pair<ExpectedOp, OpId>>;

  void check_ops() {
    Found visits, others;
    for (OpId op = 0; op < s_.num_ops(); ++op) {
      const bool compute = is_compute(s_.ops[idx(op)].kind) && !s_.lanes_of(op).empty();
      Found& found = is_visit(s_.ops[idx(op)], placement_) ? visits : others;
      found.push_back({{s_.ops[idx(op)], compute ? device_of(s_.lanes_of(op)[0]) : -1}, op});
    }
    check_found(std::move(others), expected_ops(placement_));
    if (faults_.empty()) check_visits(std::move(visits));
  }

  /// Which visits there are follows from the order of the compute ops.
  void check_visits(Found found) {
    std::vector<std::pair<Op, DeviceId>> computed;
    std::vector<OpId> ids;
    for (OpId op = 0; op < s_.num_ops(); ++op) {
      if (!is_compute(s_.ops[idx(op)].kind)) continue;
      computed.push_back({s_.ops[idx(op)], device_of(s_.lanes_of(op)[0])});
      ids.push_back(op);
    }
    const VisitReplay replay = replay_visits(placement_, computed);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Op &got = computed[i].first, &expected = replay.computed[i];
      if (got.slot != expected.slot)
        fault("{} uses slot {}, expected {}", name(ids[i]), got.slot, expected.slot);
      if (got.saved != expected.saved)
        fault("{} uses slot {} of saved activations, expected {}", name(ids[i]), got.saved, expected.saved);
    }
    std::map<ExpectedOp, std::vector<std::int16_t>> slots;  // of equal copies, in their order
    for (const Op& visit : replay.visits) slots[{visit, -1}].push_back(visit.slot);
    for (auto& [of, queue] : slots) std::reverse(queue.begin(), queue.end());
    for (const auto& [op, id] : found) {
      std::vector<std::int16_t>& queue = slots[op];
      if (!queue.empty() && queue.back() != op.op.slot)
        fault("{} goes to slot {}, expected {}", name(id), op.op.slot, queue.back());
      if (!queue.empty()) queue.pop_back();
    }
    std::vector<ExpectedOp> expected;
    for (const Op& visit : replay.visits) expected.push_back({visit, -1});
    std::sort(expected.begin(), expected.end());
    check_found(std::move(found), expected);
  }

  void check_found(Found found, const std::vector<ExpectedOp>& expected) {
    std::sort(found.begin(), found.end());
    std::size_t f = 0;
    for (const ExpectedOp& want : expected) {
      for (; f < found.size() && found[f].first < want; ++f)
        fault("{} is not part of the step", name(found[f].second));
      if (f == found.size() || !(found[f].first == want)) {
        fault("{}{} is missing", to_string(want.op),
              want.device < 0 ? "" : fmt::format(" on device {}", want.device));
      } else {
        check_lanes(found[f++].second);
      }
    }
    for (; f < found.size(); ++f) fault("{} is not part of the step, or there twice", name(found[f].second));
  }

  /// `op` is one that the step has, so that its layer, group and state may be used.
  void check_lanes(OpId id) {
    const Op& op = s_.ops[idx(id)];
    const std::span<const LaneId> lanes = s_.lanes_of(id);
    const Queue queue = queue_of_op(op, placement_.plan().queue_binding);
    std::vector<LaneId> expected;
    if (is_compute(op.kind)) {
      expected.push_back(lane_of(device_of(lanes[0]), queue));
    } else {
      for (const PlaceId place : participants(op, placement_)) expected.push_back(lane_of(op, place, queue));
    }
    if (!std::equal(lanes.begin(), lanes.end(), expected.begin(), expected.end())) {
      fault("{} has lanes {}, expected {}", name(id), lane_list(lanes), lane_list(expected));
    }
  }

  static std::string lane_list(std::span<const LaneId> lanes) {
    std::string text;
    for (const LaneId lane : lanes) {
      text += fmt::format("{}{}.{}", text.empty() ? "" : " ", device_of(lane), lane_name(lane));
    }
    return text.empty() ? "none" : text;
  }

  void check_dependencies() {
    for (OpId op = 0; op < s_.num_ops(); ++op) {
      OpId previous = -1;
      for (const OpId dep : s_.deps_of(op)) {
        if (dep < 0 || dep >= op) {
          fault("{} depends on op {}, which is not before it", name(op), dep);
        } else if (!share_device(op, dep)) {
          fault("{} depends on {}, but they share no device", name(op), name(dep));
        }
        if (dep <= previous) fault("{} lists its dependencies out of order or twice", name(op));
        previous = dep;
      }
      for (const OpId dep : s_.carry_of(op)) {
        if (dep < 0 || dep >= s_.num_ops() || !share_device(op, dep))
          fault("{} depends on op {} of the step before, which shares no device with it", name(op), dep);
      }
    }
  }

  bool share_device(OpId a, OpId b) const {
    for (const LaneId lane : s_.lanes_of(a)) {
      if (has_device(b, device_of(lane))) return true;
    }
    return false;
  }
  bool has_device(OpId op, DeviceId device) const {
    const std::span<const LaneId> lanes = s_.lanes_of(op);
    const auto lane = std::lower_bound(lanes.begin(), lanes.end(), lane_of(device, Queue::kCompute));
    return lane != lanes.end() && device_of(*lane) == device;
  }
  std::size_t lane_here(OpId op) const { return lane_here_[idx(op)]; }

  bool ended_before(OpId first, OpId second) const {
    return position_[idx(first)] < clock_[idx(second)][lane_here(first)];
  }

  /// Follows one device's part of the schedule: no step of the argument may use what happens on another
  /// device.
  void check_device(DeviceId device, const std::vector<Stand>& ops) {
    Clock lane_clock[kLanesOfPlace] = {};  // of the last op on each lane, itself included
    struct Uses {
      OpId writer = -1;
      bool taken = false;  // by the writer
      std::vector<OpId> readers;
    };
    std::map<BufferKey, Uses> uses;
    std::vector<Access> touched;
    bool in_first = true;
    for (const auto& [op, stands] : ops) {
      lane_here_[idx(op)] = idx(lane_at(stands));
      if (next_step_ > 0 && op >= next_step_ && std::exchange(in_first, false))
        std::erase_if(uses, [](const auto& use) { return !spans_steps(use.first.buffer()); });
      Clock& lane = lane_clock[lane_here(op)];
      clock_[idx(op)] = lane;
      for (const OpId dep : s_.deps_of(op)) {
        if (has_device(dep, device)) join(clock_[idx(op)], dep);
      }
      position_[idx(op)] = lane[lane_here(op)];
      touched.clear();
      accesses(s_.ops[idx(op)], device, placement_, touched);
      for (const Access& access : touched) {
        Uses& use = uses[access.key];
        const bool reads = access.mode == Mode::kRead || access.mode == Mode::kTake;
        if (reads && (use.writer < 0 || use.taken) && !outlives_step(access.buffer())) {
          fault("{} on device {} reads {}, which no earlier op writes", name(op), device,
                to_string(access.key));
        }
        check_order(use.writer, op, device, access);
        if (access.mode == Mode::kRead) {
          use.readers.push_back(op);
          continue;
        }
        for (const OpId reader : use.readers) check_order(reader, op, device, access);
        use.writer = op;
        use.taken = access.mode == Mode::kTake;
        use.readers.clear();
      }
      lane = clock_[idx(op)];
      lane[lane_here(op)] = position_[idx(op)] + 1;
    }
  }

  void join(Clock& clock, OpId ended) const {
    for (std::size_t q = 0; q < clock.size(); ++q) clock[q] = std::max(clock[q], clock_[idx(ended)][q]);
    i32& own = clock[lane_here(ended)];
    own = std::max(own, position_[idx(ended)] + 1);
  }

  void check_order(OpId first, OpId second, DeviceId device, const Access& access) {
    if (first < 0 || first == second) return;
    const std::span<const OpId> deps = s_.deps_of(second);
    const auto dep = std::lower_bound(deps.begin(), deps.end(), first);
    if (dep != deps.end() && *dep == first) necessary_[idx(&*dep - s_.deps.data())] = true;
    if (ended_before(first, second)) return;
    fault("{} may start on device {} before {} has ended, though both use {}", name(second), device,
          name(first), to_string(access.key));
  }

  void check_no_extra_dependency() {
    for (OpId op = 0; op < s_.num_ops(); ++op) {
      for (i64 i = s_.dep_begin[idx(op)]; i < s_.dep_begin[idx(op) + 1]; ++i) {
        const auto d = idx(i);
        if (!necessary_[d]) fault("{} depends on {}, but they share no buffer", name(op), name(s_.deps[d]));
      }
    }
  }

  const Schedule& s_;
  const ModelConfig& model_;
  Placement placement_;
  std::vector<std::string> faults_;
  OpId next_step_ = 0;                  // first op of the second of two steps; 0 = there is one
  std::vector<Clock> clock_;            // [op] on the device being checked: what has ended when the op starts
  std::vector<i32> position_;           // [op] on its lane of that device
  std::vector<std::size_t> lane_here_;  // [op] that lane, by lane_at()
  std::vector<bool> necessary_;         // [dependency] some buffer asks for it
};

}  // namespace

std::vector<std::string> validate(const Schedule& schedule, const Plan& plan, const ModelConfig& model,
                                  const StepOptions& options) {
  return Checker(schedule, plan, model, options).run();
}

}  // namespace hetermoe
