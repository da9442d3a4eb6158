#include <algorithm>

#include "hetermoe/base/rows.h"
#include "hetermoe/train/run/parts.h"

namespace hetermoe {
namespace {

class ValidationPart : public RunPart {
 public:
  explicit ValidationPart(RunState& run) : run_(run) {}

  void after_step(StepDone& done) override {
    if (is_due_after(done.record.step - 1)) done.record.validation = validate(done.record.step);
  }

  bool ends_before_next(i64 step) const override { return is_due_after(step); }

 private:
  bool is_due_after(i64 step) const {
    const TrainOptions& train = run_.job.train;
    const bool due = train.validate_every > 0 && (step + 1) % train.validate_every == 0;
    return (due || step + 1 == train.steps) && step < train.steps;
  }

  Validation validate(i64 step) const {
    Validation out;
    out.step = step;
    const std::vector<RunText::ValidationSource>& sources = run_.text.validation();
    for (const RunText::ValidationSource& source : sources) {
      const double loss = loss_on(source.sampler);
      out.loss += source.share * loss;
      if (sources.size() > 1) out.sources.push_back({source.name, loss});
    }
    return out;
  }

  double loss_on(const Sampler& sampler) const {
    const TrainOptions& train = run_.job.train;
    double sum = 0, targets = 0;
    const i64 batches = std::max<i64>(1, train.validation_sequences / train.sequences);
    for (i64 b = 0; b < batches; ++b) {
      const StepInput input = run_.input_of(sampler, b, b * train.sequences);
      sum += run_.session->evaluate(input).loss;
      targets += real(input.target_count);
    }
    double all = 0;
    for (const std::string& text : run_.processes.gather(fmt::format("{}", sum))) all += std::stod(text);
    return all / targets;
  }

  RunState& run_;
};

}  // namespace

std::unique_ptr<RunPart> validation_part(RunState& run) {
  if (run.text.validation().empty()) return nullptr;
  return std::make_unique<ValidationPart>(run);
}

}  // namespace hetermoe
