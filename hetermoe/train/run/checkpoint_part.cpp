#include "hetermoe/base/version.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/train/checkpoint/shared_folder.h"
#include "hetermoe/train/run/parts.h"

namespace hetermoe {
namespace {

class CheckpointPart : public RunPart {
 public:
  explicit CheckpointPart(RunState& run)
      : run_(run), writer_(checkpoint_folder(run.job.output), run.job.checkpoint) {
    if (saves() && !run.processes.alone()) check_shared_folder(run.processes, run.job.output);
  }

  void after_step(StepDone& done) override {
    if (is_due_after(done.record.step - 1)) save_after(done.record.step);
  }

  void end_run() override {
    if (saves() && run_.steps_done() > saved_step_) save_after(run_.steps_done());
    writer_.finish();
  }

  void save(CheckpointInfo& info) override { info.forgotten = forgotten_; }
  void load(const CheckpointInfo& info) override {
    saved_step_ = info.step;
    forgotten_ = info.forgotten;
  }

  bool ends_before_next(i64 step) const override { return is_due_after(step); }

 private:
  bool saves() const { return run_.job.checkpoint.every > 0; }
  bool is_due_after(i64 step) const { return saves() && (step + 1) % run_.job.checkpoint.every == 0; }

  void save_after(i64 steps_done) {
    CheckpointShard shard;
    shard.info = {.step = steps_done,
                  .sequences = run_.next_sequence,
                  .run = run_.name,
                  .seed = run_.job.train.seed,
                  .text = run_.text.checksum(),
                  .version = version(),
                  .job = to_json(run_.job),
                  .plan = to_json(run_.plan())};
    for (const auto& part : run_.parts) part->save(shard.info);
    shard.config = to_hf(run_.model);
    shard.rank = run_.processes.rank();
    shard.num_ranks = run_.processes.num_ranks();
    shard.attempt = run_.attempt;
    copy_tensors(run_.session->states(), shard);
    writer_.write(std::move(shard));
    saved_step_ = steps_done;
  }

  RunState& run_;
  CheckpointWriter writer_;
  i64 forgotten_ = 0;  // see CheckpointInfo
  i64 saved_step_ = 0;
};

}  // namespace

std::unique_ptr<RunPart> checkpoint_part(RunState& run) {
  if (run.checkpoints == Checkpoints::kOff) return nullptr;
  return std::make_unique<CheckpointPart>(run);
}

}  // namespace hetermoe
