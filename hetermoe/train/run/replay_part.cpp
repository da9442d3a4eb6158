#include "hetermoe/train/run/parts.h"
#include "hetermoe/train/run/route_replay.h"

namespace hetermoe {
namespace {

class ReplayPart : public RunPart {
 public:
  explicit ReplayPart(RunState& run) : run_(run), replay_(run.job, run.model, run.text.name()) {
    run.foresight = [this](i64) {
      LayerCopies copies = replay_.copies(run_.next_sequence, run_.job.train.sequences);
      return ForeseenStep{std::move(copies), replay_.routing(run_.model)};
    };
  }

  void begin_run() override {
    for (const std::string& note : replay_.notes(run_.model)) run_.tell("routing.replay: " + note);
  }

  void add_to(StepInput& input) override {
    input.choices = replay_.choices(run_.first_sequence(), run_.job.train.sequences);
    if (divides_copies(run_.plan()) && !run_.plan().tally) replay_.check_all();
  }

  void step_ended(StepRecord& record) override {
    replay_.check_counts(run_.last.counts_LE);
    record.replayed_choices = replay_.coverage();
  }

  bool ends_before_next(i64) const override { return true; }

 private:
  RunState& run_;
  RouteReplay replay_;
};

}  // namespace

std::unique_ptr<RunPart> replay_part(RunState& run) {
  if (run.job.routing.replay.empty()) return nullptr;
  return std::make_unique<ReplayPart>(run);
}

}  // namespace hetermoe
