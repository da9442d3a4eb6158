#include "hetermoe/train/run/parts.h"

namespace hetermoe {
namespace {

class RoutingFiguresPart : public RunPart {
 public:
  explicit RoutingFiguresPart(RunState& run) : run_(run) {}

  void after_step(StepDone& done) override {
    if (!watch_) watch_.emplace(*run_.priced->truth, run_.priced->placement, run_.model, run_.cluster);
    done.record.routing = watch_->of(copies_of(run_.last.counts_LE), done.all.copies);
  }

  void plan_changed() override { watch_.reset(); }

 private:
  RunState& run_;
  std::optional<RoutingWatch> watch_;  // of the plan in force, made at its first step
};

}  // namespace

std::unique_ptr<RunPart> routing_figures_part(RunState& run) {
  return std::make_unique<RoutingFiguresPart>(run);
}

}  // namespace hetermoe
