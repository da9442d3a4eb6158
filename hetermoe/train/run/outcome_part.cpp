#include "hetermoe/base/rows.h"
#include "hetermoe/train/run/parts.h"

namespace hetermoe {

std::vector<Validation> TrainOutcome::validations() const {
  std::vector<Validation> all;
  for (const StepRecord& record : records) {
    if (record.validation) all.push_back(*record.validation);
  }
  return all;
}

namespace {

class OutcomePart : public RunPart {
 public:
  explicit OutcomePart(RunState& run) : run_(run) {}

  void after_step(StepDone& done) override {
    TrainOutcome& out = run_.outcome;
    const StepRecord& record = done.record;
    for (const std::string& warning : record.warnings)
      out.warnings.push_back(fmt::format("step {}: {}", record.step, warning));
    out.records.push_back(record);
    hetermoe::add_to(out.expert_copies, copies_of(run_.last.counts_LE));
    if (run_.hooks.on_step) run_.hooks.on_step(record);
    if (done.picture && run_.hooks.on_picture)
      run_.hooks.on_picture({out.copies_from, record.step, *done.picture, out.expert_copies});
  }

 private:
  RunState& run_;
};

}  // namespace

std::unique_ptr<RunPart> outcome_part(RunState& run) { return std::make_unique<OutcomePart>(run); }

}  // namespace hetermoe
