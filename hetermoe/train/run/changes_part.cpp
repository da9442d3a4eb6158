#include <algorithm>

#include "hetermoe/train/run/parts.h"
#include "hetermoe/train/run/takeover.h"

namespace hetermoe {
namespace {

class ChangesPart : public RunPart {
 public:
  explicit ChangesPart(RunState& run) : run_(run) {}

  void before_step(i64 step) override {
    const auto change = std::find_if(run_.changes.begin(), run_.changes.end(),
                                     [&](const PlannedChange& c) { return c.step == step + 1; });
    if (change != run_.changes.end()) take_over(run_, change->plan, step, change->name);
  }

  std::optional<Plan> plan_after(const CheckpointInfo& info) const override {
    std::optional<Plan> of_job;
    for (const PlannedChange& change : run_.changes) {
      if (info.plan == to_json(change.plan)) return change.plan;
      if (change.step <= info.step) of_job = change.plan;
    }
    return of_job;
  }

  bool ends_before_next(i64) const override { return true; }

 private:
  RunState& run_;
};

}  // namespace

std::unique_ptr<RunPart> changes_part(RunState& run) {
  if (run.changes.empty()) return nullptr;
  return std::make_unique<ChangesPart>(run);
}

}  // namespace hetermoe
