#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/schedule/order_policy.h"
#include "hetermoe/schedule/waves.h"

// A list schedule by expected times (Plan::expected): AF-Pipe, arXiv 2605.11005. A station is the set of
// devices that compute one part (attention or experts) of the same layers. Each microbatch has its way from
// stop to stop; the station that can begin first takes one of those that wait for it.
namespace hetermoe {
namespace {

/// What a station does for a microbatch at one go: the compute op of a wave, or the experts of its exchange.
struct Stop {
  Wave wave;
  bool experts = false, forward = true;
  std::size_t station = 0;
  double length = 0;
  std::vector<Wave> sends;  ///< exchanges whose way to the experts begins when the stop ends
  i32 input = -1;           ///< stage whose input may have to move before the stop, -1 = none
  bool travels = true;      ///< its result goes to another part
};

using Devices = std::vector<DeviceId>;

class Way {
 public:
  Way(const Placement& placement, i32 group)
      : p_(placement), group_(group), expected_(placement.plan().expected.value_or(ExpectedTimes{})) {
    const std::vector<Wave> waves = make_waves(placement, group);
    // Stations with attention come first.
    for (const Wave& wave : waves)
      if (wave.has_compute && wave.compute.kind != OpKind::kHead) station_of(computing(wave));
    for (const Wave& wave : waves)
      if (wave.has_exchange) station_of(p_.owners(group_, wave.layer, 0, wave.phase));
    bool forward = true;
    for (const Wave& wave : waves) add(wave, forward);
  }

  const std::vector<Stop>& all() const { return stops_; }
  std::size_t num_stations() const { return stations_.size(); }

  /// Until the result of a stop is where the next one begins.
  double after(std::size_t stop) const { return stops_[stop].travels ? expected_.transfer : 0; }

 private:
  void add(const Wave& wave, bool& forward) {
    if (wave.has_compute) add_compute(wave, forward);
    if (!wave.has_exchange) return;
    stops_.back().sends.push_back(wave);
    stops_.back().travels = true;
    if (brings_rows_alone(p_, group_, wave)) return;
    Stop stop;
    stop.wave = wave, stop.forward = forward, stop.experts = true;
    stop.station = station_of(p_.owners(group_, wave.layer, 0, wave.phase));
    stop.length = length(expected_.experts, wave.layer, wave.phase);
    stops_.push_back(std::move(stop));
  }

  void add_compute(const Wave& wave, bool& forward) {
    const bool head = wave.compute.kind == OpKind::kHead;
    const i32 stage = stage_of(wave.compute, p_.num_layers());
    Stop stop;
    stop.wave = wave, stop.forward = forward;
    stop.station = station_of(computing(wave));
    stop.length = head ? expected_.head : length(expected_.attention, stage, wave.compute.phase);
    // An input that moves does so when it is there, not when its turn has come.
    if (forward && stage > 0 && p_.may_move_into(stage)) {
      stop.input = stage;
      stop.wave.sends_input = false;
    }
    const i32 next = forward && !head ? stage + 1 : stage;  // whose border the result crosses
    stop.travels = p_.may_move_into(next);
    stops_.push_back(std::move(stop));
    forward = forward && !head;
  }

  double length(const std::vector<double>& of_layers, i32 layer, Phase phase) const {
    const double forward = of_layers[of_layers.size() == 1 ? 0 : idx(layer)];
    return phase == Phase::kBackward ? forward * expected_.backward : forward;
  }

  Devices computing(const Wave& wave) const {
    Devices devices;
    const i32 stage = stage_of(wave.compute, p_.num_layers());
    for (const auto& range : p_.ranges(group_, stage, 0, wave.compute.phase)) devices.push_back(range.device);
    std::sort(devices.begin(), devices.end());
    return devices;
  }

  std::size_t station_of(const Devices& devices) {
    const auto at = std::find(stations_.begin(), stations_.end(), devices);
    if (at == stations_.end()) {
      stations_.push_back(devices);
      return stations_.size() - 1;
    }
    return static_cast<std::size_t>(at - stations_.begin());
  }

  const Placement& p_;
  i32 group_;
  ExpectedTimes expected_;
  std::vector<Stop> stops_;
  std::vector<Devices> stations_;
};

/// Something that is appended for a microbatch.
struct TimedStep {
  double time = 0;
  std::size_t stop = 0;
  i32 microbatch = 0;
  std::size_t group = 0;     ///< of those that are appended
  bool moves_input = false;  ///< before the stop begins
};

/// Who begins what when, if all takes as long as expected. At most `window` microbatches are under way.
class StationClock {
 public:
  StationClock(const Way& way, i32 microbatches, i32 window, std::size_t group)
      : way_(way),
        microbatches_(microbatches),
        group_(group),
        stations_(way.num_stations()),
        next_(std::min(window, microbatches)) {
    for (i32 m = 0; m < next_; ++m) add(0, m, 0, 0);
  }

  std::vector<TimedStep> run() {
    for (Station* station = first(); station != nullptr; station = first()) take(*station);
    return std::move(steps_);
  }

 private:
  struct Waiting {
    double ready;
    std::size_t stop;
    i32 microbatch;
  };
  struct Station {
    double free = 0;
    bool was_forward = false;
    std::vector<Waiting> waiting;

    double begin() const {
      const auto by_ready = [](const Waiting& a, const Waiting& b) { return a.ready < b.ready; };
      return std::max(free, std::min_element(waiting.begin(), waiting.end(), by_ready)->ready);
    }
  };

  /// The station that can begin first; null when all is done.
  Station* first() {
    Station* best = nullptr;
    double begin = 0;
    for (Station& station : stations_) {
      if (station.waiting.empty()) continue;
      const double at = station.begin();
      if (best == nullptr || at < begin) best = &station, begin = at;
    }
    return best;
  }

  /// Of what is ready, what goes the other way than the stop before; then the first stop, then microbatch.
  void take(Station& station) {
    const double begin = station.begin();
    const auto key = [&](const Waiting& w) {
      const bool same_way = way_.all()[w.stop].forward == station.was_forward;
      return std::tuple(w.ready > begin, same_way, w.stop, w.microbatch);
    };
    const auto at = std::min_element(station.waiting.begin(), station.waiting.end(),
                                     [&](const Waiting& a, const Waiting& b) { return key(a) < key(b); });
    const Waiting taken = *at;
    station.waiting.erase(at);
    const Stop& stop = way_.all()[taken.stop];
    for (; !moves_.empty() && moves_.begin()->first <= begin; moves_.erase(moves_.begin()))
      steps_.push_back(moves_.begin()->second);
    steps_.push_back({begin, taken.stop, taken.microbatch, group_, false});
    station.free = begin + stop.length;
    station.was_forward = stop.forward;
    if (taken.stop + 1 < way_.all().size())
      add(taken.stop + 1, taken.microbatch, station.free, way_.after(taken.stop));
    else if (next_ < microbatches_)
      add(0, next_++, station.free, 0);
  }

  void add(std::size_t stop, i32 microbatch, double end, double transfer) {
    const Stop& of = way_.all()[stop];
    const double ready = end + transfer;
    if (of.input >= 0) moves_.emplace(ready, TimedStep{ready, stop, microbatch, group_, true});
    stations_[of.station].waiting.push_back({ready, stop, microbatch});
  }

  const Way& way_;
  i32 microbatches_;
  std::size_t group_;
  std::vector<Station> stations_;
  i32 next_;                                ///< microbatch that has not begun
  std::multimap<double, TimedStep> moves_;  ///< of inputs, by the time when they are due
  std::vector<TimedStep> steps_;
};

/// Appends the steps of one group.
class Timed {
 public:
  Timed(ScheduleBuilder& builder, i32 group)
      : p_(builder.placement()),
        group_(group),
        runner_(builder, group),
        way_(p_, group),
        left_(way_.all().size(), p_.num_microbatches(group)) {}

  std::vector<TimedStep> steps(std::size_t number) const {
    const i32 count = p_.num_microbatches(group_), window = p_.plan().window;
    return StationClock(way_, count, window > 0 ? window : count, number).run();
  }

  void run(const TimedStep& step) {
    const Stop& stop = way_.all()[step.stop];
    const i32 m = step.microbatch;
    if (step.moves_input) return runner_.send_input(stop.input, m);
    if (stop.experts) {
      runner_.experts(stop.wave, m);
      runner_.send_back(stop.wave, m);
    } else {
      runner_.compute(stop.wave, m);
    }
    for (const Wave& wave : stop.sends) runner_.send_to_experts(wave, m);
    if (!stop.experts) runner_.weights(stop.wave, m);
    if (--left_[step.stop] == 0 && !stop.experts) runner_.report_done(stop.wave);
  }

 private:
  const Placement& p_;
  i32 group_;
  WaveRunner runner_;
  Way way_;
  std::vector<i32> left_;  ///< [stop] microbatches that it has not had
};

void append_timed(ScheduleBuilder& builder) {
  std::deque<Timed> groups;
  std::vector<TimedStep> steps;
  for (i32 g = 0; g < builder.placement().num_groups(); ++g) {
    if (!builder.lists_group(g)) continue;
    groups.emplace_back(builder, g);
    const std::vector<TimedStep> of_group = groups.back().steps(groups.size() - 1);
    steps.insert(steps.end(), of_group.begin(), of_group.end());
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const TimedStep& a, const TimedStep& b) { return a.time < b.time; });
  for (const TimedStep& step : steps) groups[step.group].run(step);
}

}  // namespace

OrderPolicyTraits order_rows::timed_order() {
  return {.policy = OrderPolicy::kTimed,
          .append = append_timed,
          .appends_end_of_step = false,
          .treats_equals_alike = true,
          .has_window = true,
          .zero_window_is_all = true,
          .windows_in_sequence = false,
          .has_stages = false,
          .has_rounds = false,
          .in_flight = in_flight_of_window,
          .plan_name = "af-pipe"};
}

}  // namespace hetermoe
