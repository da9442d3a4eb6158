#include <algorithm>
#include <cmath>

#include "hetermoe/base/index.h"
#include "hetermoe/train/checkpoint/loss_scale.h"
#include "hetermoe/train/run/parts.h"

namespace hetermoe {
namespace {

bool computes_in_fp16(const Plan& plan) {
  const std::vector<DeviceId> devices = devices_of(plan);
  return std::any_of(devices.begin(), devices.end(),
                     [&](DeviceId d) { return plan.dtype[idx(d)] == Dtype::kFp16; });
}

bool some_computes_in_fp16(const Plan& first, const std::vector<PlannedChange>& changes) {
  return computes_in_fp16(first) ||
         std::any_of(changes.begin(), changes.end(),
                     [](const PlannedChange& change) { return computes_in_fp16(change.plan); });
}

class LossScalePart : public RunPart {
 public:
  explicit LossScalePart(RunState& run)
      : run_(run), scale_(run.job.train.loss_scale, some_computes_in_fp16(run.first_plan, run.changes)) {}

  void add_to(StepInput& input) override { input.loss_scale = scale_.value(); }

  void step_ended(StepRecord& record) override {
    const StepResult& last = run_.last;
    // A loss that is not finite says nothing of the scale, neither that it is too high nor that it is good.
    record.overflowed = std::isfinite(last.loss + last.aux_loss) && scale_.lower_after(!last.updated);
  }

  void after_step(StepDone& done) override {
    if (done.record.updated || !done.record.overflowed) return;
    done.record.warnings.push_back(fmt::format(
        "fp16 gradients overflowed at loss scale {:.0f}, which is {:.0f} from now on. The step is "
        "skipped, weights stay as they are",
        2 * scale_.value(), scale_.value()));
  }

  void save(CheckpointInfo& info) override { info.loss_scale = scale_.state(); }
  void load(const CheckpointInfo& info) override { scale_.restore(info.loss_scale); }

  /// The step before leaves a loss scale that adapts.
  bool ends_before_next(i64) const override { return scale_.adapts(); }

 private:
  RunState& run_;
  LossScale scale_;
};

}  // namespace

std::unique_ptr<RunPart> loss_scale_part(RunState& run) { return std::make_unique<LossScalePart>(run); }

}  // namespace hetermoe
