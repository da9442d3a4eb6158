#include "hetermoe/train/run/parts.h"
#include "hetermoe/train/run/route_recorder.h"

namespace hetermoe {
namespace {

class RecorderPart : public RunPart, public RouteReader {
 public:
  explicit RecorderPart(RunState& run) : run_(run) { run.route_readers.push_back(this); }

  void begin_run() override {
    const std::string& record = run_.job.routing.record;
    const i64 first_step = run_.outcome.first_step;
    const bool replaces = first_step == 0 && std::filesystem::exists(record);
    recorder_.emplace(run_.job, run_.model, run_.processes, first_step,
                      run_.text.recorded(TextCondition::kText));
    // Not before: a file that is no trace is refused.
    if (replaces) run_.tell(fmt::format("routing.record: {} is there and is written anew", record));
    if (!recorder_->note().empty()) run_.tell(recorder_->note());
  }

  void end_run() override {
    recorder_->finish();
    recorder_.reset();
  }

  /// The trace of a run that goes on from here has all steps before.
  void save(CheckpointInfo&) override { recorder_->sync(); }

  bool reads(i64 step) const override { return recorder_ && recorder_->records(step); }
  void read(i64 step, i64 first, const std::vector<TakenRoutes>& taken) override {
    recorder_->write(step, first, run_.plan(), taken);
  }

 private:
  RunState& run_;
  std::optional<RouteRecorder> recorder_;  // of the run that goes on
};

}  // namespace

std::unique_ptr<RunPart> recorder_part(RunState& run) {
  if (run.job.routing.record.empty()) return nullptr;
  return std::make_unique<RecorderPart>(run);
}

}  // namespace hetermoe
