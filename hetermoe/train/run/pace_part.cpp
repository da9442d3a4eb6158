#include <algorithm>
#include <cmath>

#include "hetermoe/base/median.h"
#include "hetermoe/cost/price.h"
#include "hetermoe/sim/simulator.h"
#include "hetermoe/train/run/parts.h"
#include "hetermoe/train/session/start.h"

namespace hetermoe {
namespace {

/// A paced step further than this from the simulation of what it routed has lost its pace.
constexpr double kPaceTolerance = 0.02;

class PacePart : public RunPart {
 public:
  explicit PacePart(RunState& run) : run_(run), paced_(run.job.clock.kind == ClockKind::kPaced) {}

  void begin_run() override {
    running_ = true;
    times_ = {};
    changes_ = 0;
  }

  void before_step(i64 step) override {
    // The first step runs unpaced and tells how much processor time a step takes.
    const i64 done = step - run_.outcome.first_step;
    if (!running_ || done == 0 || !((paced_ && done == 1) || (run_.timed_steps > 0 && step == job_steps())))
      return;
    const std::vector<StepRecord>& records = run_.outcome.records;
    set_paced(run_.outcome.pace.emplace(), records.empty() ? 0 : records.back().wall_s);
    times_ = {};
  }

  void after_step(StepDone& done) override {
    // Steps of an earlier plan do not count.
    if (const std::size_t changes = run_.outcome.changes.size(); changes != changes_) {
      times_ = {};
      changes_ = changes;
    }
    times_.executed.push_back(done.record.step_s);
    if (run_.session->executor().clock() != ClockKind::kReal && run_.processes.alone()) {
      times_.replayed.push_back(replay());
      times_.ratios.push_back(done.record.step_s / times_.replayed.back());
    }
    if (run_.outcome.pace)
      run_.outcome.pace->cpu_share = run_.last.cpu_seconds / (done.record.wall_s * num_cores());
  }

  void plan_changed() override {
    if (run_.outcome.pace) run_.session->executor().set_clock(ClockKind::kPaced, run_.outcome.pace->scale);
  }

  void end_run() override {
    TrainOutcome& out = run_.outcome;
    out.executed_step = median(times_.executed);
    out.replayed_step = median(times_.replayed);
    out.executed_over_replayed = median(times_.ratios);
    if (!out.pace) return;
    out.pace->lag = out.executed_over_replayed - 1;
    out.pace->kept_up = std::abs(out.pace->lag) < kPaceTolerance;
  }

  /// The clock is set between two steps.
  bool ends_before_next(i64 step) const override {
    return (paced_ && step == run_.outcome.first_step) || step + 1 == job_steps();
  }

 private:
  i64 job_steps() const { return std::max<i64>(run_.job.train.steps, 1); }

  /// A step's numerics took `wall` real seconds at full speed; they may fill max_cpu_share of the paced step.
  void set_paced(PaceReport& pace, Seconds wall) {
    const ClockOptions& clock = run_.job.clock;
    pace.scale = clock.pace_scale > 0 ? clock.pace_scale
                                      : wall / (clock.max_cpu_share * std::max(run_.last.step, 1e-9));
    run_.session->executor().set_clock(ClockKind::kPaced, pace.scale);
  }

  /// Simulation of what was routed in the last step: the difference to the execution is the cost model's, not
  /// the routing's.
  Seconds replay() const {
    const OpCosts costs = price(run_.session->schedule(), run_.priced->placement, run_.model, run_.cluster,
                                *run_.priced->truth, run_.session->executor().recorded_routing());
    const Schedule& schedule = run_.session->schedule();
    if (!schedule.overlaps()) return longest_path(schedule, costs.seconds).step;
    std::vector<Seconds> seconds;
    for (i32 step = 0; step < kSteadySteps; ++step)
      seconds.insert(seconds.end(), costs.seconds.begin(), costs.seconds.end());
    return steady_step(schedule, longest_path(repeat(schedule, kSteadySteps), seconds)).step;
  }

  RunState& run_;
  const bool paced_;
  bool running_ = false;
  struct {
    std::vector<double> executed, replayed, ratios;
  } times_;  // of the steps under the final clock and plan
  std::size_t changes_ = 0;
};

}  // namespace

std::unique_ptr<RunPart> pace_part(RunState& run) { return std::make_unique<PacePart>(run); }

}  // namespace hetermoe
