#include "hetermoe/train/run/parts.h"
#include "hetermoe/train/run/step_figures.h"

namespace hetermoe {
namespace {

class PicturePart : public RunPart {
 public:
  explicit PicturePart(RunState& run) : run_(run) {}

  void after_step(StepDone& done) override {
    if (done.all.picture) done.picture = whole_timeline(run_);
  }

 private:
  RunState& run_;
};

}  // namespace

std::unique_ptr<RunPart> picture_part(RunState& run) { return std::make_unique<PicturePart>(run); }

}  // namespace hetermoe
