#include "hetermoe/train/job/router_training.h"
#include "hetermoe/train/run/parts.h"
#include "hetermoe/train/run/route_probe.h"

namespace hetermoe {
namespace {

class ProbePart : public RunPart {
 public:
  explicit ProbePart(RunState& run) : run_(run) {
    run.foresight = [this](i64 step) { return foresee(step); };
  }

  void add_to(StepInput& input) override { input.choices = probe_.choices(); }
  void step_ended(StepRecord&) override { run_.last.step += probe_.seconds(); }
  bool ends_before_next(i64) const override { return true; }

 private:
  ForeseenStep foresee(i64 step) {
    StepInput input = run_.input_of(run_.text.train(), step, run_.next_sequence);
    input.router = router_training(run_.job.train, step, run_.next_sequence);
    probe_.run(*run_.session, std::move(input), run_.processes);
    return {copies_of_choices(probe_.choices(), run_.model.num_experts),
            routing_of_choices(probe_.choices(), run_.model, "balancer.probe")};
  }

  RunState& run_;
  RouteProbe probe_;
};

}  // namespace

std::unique_ptr<RunPart> probe_part(RunState& run) {
  if (!run.job.balancer.on() || !run.job.balancer.probe) return nullptr;
  check_choices_are_whole(run);
  return std::make_unique<ProbePart>(run);
}

}  // namespace hetermoe
