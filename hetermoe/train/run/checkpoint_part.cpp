#include "hetermoe/base/version.h"
#include "hetermoe/train/checkpoint/checkpoint_folder.h"
#include "hetermoe/train/checkpoint/checkpoint_room.h"
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
    if (!run.job.checkpoint.resume) check_room(0);  // before others' checkpoints are set aside
  }

  void begin_run() override {
    if (run_.job.checkpoint.resume)
      check_room(std::ssize(checkpoint_paths(checkpoint_folder(run_.job.output))));
  }

  void after_step(StepDone& done) override {
    const i64 step = done.record.step;
    if (!is_due_after(step - 1)) return;
    const std::string lacks = save_after(step);
    if (lacks.empty()) return;
    run_.tell(
        fmt::format("step {}: no checkpoint: {} {}. The training goes on, and the newest checkpoint is "
                    "{}: free that much before the next one is due",
                    step, checkpoint_folder(run_.job.output).string(), lacks,
                    saved_step_ == 0 ? "none" : fmt::format("that of step {}", saved_step_)));
  }

  void end_run() override {
    const i64 steps = run_.steps_done();
    if (saves() && steps > saved_step_) {
      const std::string lacks = save_after(steps);
      if (!lacks.empty())
        fail<WriteError>(checkpoint_folder(run_.job.output).string(),
                         "{} for the checkpoint of step {}: free that much and start again, the run goes on "
                         "from its newest checkpoint",
                         lacks, steps);
    }
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

  /// For the steps that come, beside so many checkpoints of this run.
  void check_room(i64 there) const {
    if (!saves() || run_.end <= saved_step_) return;
    const Bytes most = most_checkpoint_bytes(run_.job.checkpoint, run_.end - saved_step_, there,
                                             bytes_of_all(tensors(), run_.processes));
    check_checkpoint_room(run_.job, most, "checkpoints", run_.processes);
  }

  CheckpointShard tensors() const {
    CheckpointShard shard;
    collect_tensors(run_.session->states(), shard);
    return shard;
  }

  /// Why not, empty = it is being written.
  std::string save_after(i64 steps_done) {
    writer_.finish();  // which makes room by removing an older one
    CheckpointShard shard = tensors();
    const std::string lacks = lack_of_room_for(bytes_of_all(shard, run_.processes),
                                               checkpoint_folder(run_.job.output), run_.processes);
    if (!lacks.empty()) return lacks;
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
    writer_.write(std::move(shard));
    saved_step_ = steps_done;
    return "";
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
