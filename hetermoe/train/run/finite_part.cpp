#include <cmath>
#include <unordered_map>

#include "hetermoe/base/index.h"
#include "hetermoe/train/run/parts.h"

namespace hetermoe {
namespace {

/// Weights and moments of a step that was not finite are those from before it.
class FinitePart : public RunPart {
 public:
  explicit FinitePart(RunState& run) : run_(run) {}

  void after_step(StepDone& done) override {
    StepRecord& record = done.record;
    if (record.updated) {
      in_a_row_ = 0;
      return;
    }
    ++skipped_;
    if (record.overflowed) return;
    ++in_a_row_;
    const std::string what = what_of(record);
    const bool skips = run_.job.train.on_nonfinite == OnNonfinite::kSkip;
    if (skips && in_a_row_ <= run_.job.train.max_skipped) {
      record.warnings.push_back(what + ". The step is skipped, weights stay as they are");
      return;
    }
    const std::string hint =
        skips
            ? fmt::format("This is step {} in a row: train.max_skipped allows {}.", in_a_row_,
                          run_.job.train.max_skipped)
            : "The run diverged: lower train.learning_rate or raise train.warmup_steps. If single steps are "
              "bad, train.on_nonfinite: skip leaves them out; it brings back no weights.";
    fail<InputError>(fmt::format("step {}", record.step), "{}. {}", what, hint);
  }

  void end_run() override { run_.outcome.skipped_steps = skipped_; }
  void save(CheckpointInfo& info) override { info.skipped = skipped_; }
  void load(const CheckpointInfo& info) override { skipped_ = info.skipped; }

 private:
  std::string what_of(const StepRecord& record) const {
    const auto unsigned_nan = [](double x) { return std::isnan(x) ? std::abs(x) : x; };
    const std::string what = fmt::format("loss {} with gradient norm {}", unsigned_nan(record.loss),
                                         unsigned_nan(record.grad_norm));
    const std::string first = first_nonfinite();
    if (first.empty()) return what;
    return what + fmt::format(": in the backward pass {} is the first that is not finite", first);
  }

  /// The first parameter on the way of the backward pass, which goes against the model's order, whose
  /// gradient on any device is not finite; empty = none. Collective, and slow: every gradient is looked at.
  std::string first_nonfinite() const {
    const std::vector<ParamInfo> order = parameters(run_.model);
    std::unordered_map<std::string, i64> position;
    for (std::size_t i = 0; i < order.size(); ++i) position.emplace(order[i].name, static_cast<i64>(i));
    i64 first = -1;
    for (DeviceState* state : run_.session->states()) {
      for (const LogicalTensor& view : state->store().tensors()) {
        if (view.grad.defined() && !at::isfinite(view.grad).all().item<bool>())
          first = std::max(first, position.at(matrix_of(view.name)));
      }
    }
    for (const std::string& text : run_.processes.gather(std::to_string(first)))
      first = std::max<i64>(first, std::stoll(text));
    return first < 0 ? "" : order[idx(first)].name;
  }

  RunState& run_;
  i64 skipped_ = 0, in_a_row_ = 0;
};

}  // namespace

std::unique_ptr<RunPart> finite_part(RunState& run) { return std::make_unique<FinitePart>(run); }

}  // namespace hetermoe
