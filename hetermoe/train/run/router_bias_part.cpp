#include "hetermoe/train/job/router_bias.h"
#include "hetermoe/train/run/parts.h"

namespace hetermoe {
namespace {

class RouterBiasPart : public RunPart {
 public:
  explicit RouterBiasPart(RunState& run) : run_(run) {}

  void step_ended(StepRecord&) override {
    if (run_.last.updated)
      adjust_router_bias(run_.session->states(), run_.model, run_.last.counts_LE,
                         run_.job.train.router_bias_rate);
  }

  bool ends_before_next(i64) const override { return true; }

 private:
  RunState& run_;
};

}  // namespace

std::unique_ptr<RunPart> router_bias_part(RunState& run) {
  if (run.job.train.router_bias_rate <= 0) return nullptr;
  return std::make_unique<RouterBiasPart>(run);
}

}  // namespace hetermoe
