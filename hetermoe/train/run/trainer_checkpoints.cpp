#include <chrono>

#include "hetermoe/base/version.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/train/run/trainer.h"
#include "hetermoe/train/session/batch.h"

// A run and its checkpoints.
namespace hetermoe {

/// A run that begins anew leaves no checkpoint of another one where it or a restart of it would look.
void Trainer::name_run(TrainOutcome& out) {
  const std::filesystem::path folder = checkpoint_folder(job_.output);
  if (processes_.rank() == 0) remove_unfinished(folder);
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  attempt_ = run_ = processes_.gather(fmt::format("{:x}", static_cast<u64>(now)))[0];
  if (job_.checkpoint.resume || !saves() || processes_.rank() != 0) return;
  const std::string note = set_others_aside(folder, run_);
  if (!note.empty()) tell(note, out);
}

void Trainer::tell(const std::string& text, TrainOutcome& out) {
  out.notes.push_back(text);
  if (hooks_.on_note) hooks_.on_note(text);
}

void Trainer::tell_staleness(TrainOutcome& out) {
  tell(
      "train.staleness 1: each step computes with weights that lack the last update. That training converges "
      "as "
      "well as with staleness 0 is not shown: compare the losses",
      out);
  const TrainOptions& train = job_.train;
  if (!validation_.empty() && train.validate_every == 1)
    tell("train.validate_every 1: every validation waits for the last update, so no steps overlap", out);
}

/// What will not be as it was in the run that wrote the checkpoint.
void Trainer::tell_changes(const CheckpointInfo& info, TrainOutcome& out) {
  for (const std::string& difference : job_differences(info.job, to_json(job_))) tell(difference, out);
  if (!info.plan.is_null() && info.plan != to_json(plan())) {
    tell(fmt::format("another plan goes on: {}, it was {}", plan_text(to_json(plan())), plan_text(info.plan)),
         out);
  }
  if (info.text != text_checksum_ || info.seed != job_.train.seed)
    tell("the training text or the seed is not that of the checkpoint: the data are not continued", out);
}

/// Goes on from the newest checkpoint that can be read.
void Trainer::resume(TrainOutcome& out) {
  name_run(out);
  if (!job_.checkpoint.resume) return;
  const Resumed resumed = load_newest(checkpoint_folder(job_.output), model_, session_->states(), processes_);
  for (const std::string& text : resumed.notes) tell(text, out);
  if (!resumed.checkpoint) return;
  const CheckpointInfo& info = resumed.checkpoint->info;
  go_over_to(plan_after(info));
  run_ = info.run;
  out.first_step = info.step;
  if (marks_.empty()) marks_.push_back("the run went on from a checkpoint");
  next_sequence_ = info.sequences;
  saved_step_ = info.step;
  skipped_ = info.skipped;
  forgotten_ = info.forgotten;
  loss_scale_.restore(info.loss_scale);
  if (balancer_) balancer_->restore(info.balancer);
  tell_changes(info, out);
}

void Trainer::save(i64 steps_done) {
  if (recorder_) recorder_->sync();  // the trace of a run that goes on from here has all steps before
  CheckpointShard shard;
  shard.info = {.step = steps_done,
                .sequences = next_sequence_,
                .run = run_,
                .seed = job_.train.seed,
                .text = text_checksum_,
                .version = version(),
                .job = to_json(job_),
                .plan = to_json(plan()),
                .skipped = skipped_,
                .forgotten = forgotten_,
                .loss_scale = loss_scale_.state()};
  if (balancer_) shard.info.balancer = balancer_->history();
  shard.config = to_hf(model_);
  shard.rank = processes_.rank();
  shard.num_ranks = processes_.num_ranks();
  shard.attempt = attempt_;
  copy_tensors(session_->states(), shard);
  writer_->write(std::move(shard));
  saved_step_ = steps_done;
}

/// The run as it was after the checkpoint, or at its start when there is none. Returns the steps done.
i64 Trainer::go_back_to(const std::optional<FoundCheckpoint>& checkpoint) {
  if (!checkpoint) {
    TrainOutcome unheard;
    start_weights(unheard);
    return 0;
  }
  load_checkpoint(*checkpoint, model_, session_->states());
  go_over_to(plan_after(checkpoint->info));
  next_sequence_ = checkpoint->info.sequences;
  loss_scale_.restore(checkpoint->info.loss_scale);
  if (balancer_) balancer_->restore(checkpoint->info.balancer);
  return checkpoint->info.step;
}

StepRecord Trainer::replay_step(const std::optional<FoundCheckpoint>& checkpoint, i64 step) {
  if (checkpoint && (checkpoint->info.text != text_checksum_ || checkpoint->info.seed != job_.train.seed)) {
    fail<InputError>(checkpoint->path.string(),
                     "the training text or the seed is not that of the checkpoint: the step cannot be "
                     "repeated");
  }
  i64 done = go_back_to(checkpoint);
  StepRecord record;
  TrainOutcome changes;
  while (done < step) {
    change_plan_before(done, changes);
    record = train_one(done++);
  }
  return record;
}

RecordedText Trainer::recorded_text(TextCondition condition) const {
  const bool is_own = condition == TextCondition::kText;
  RecordedText out{.condition = name_of(condition),
                   .name = is_own ? text_name_ : text_name_ + " " + name_of(condition),
                   .domains = domains_};
  if (domains_.empty()) return out;
  if (condition != TextCondition::kHeldout) {
    out.domain_of = [this](i64 sequence) { return domain_of_source_[idx(train_.draw(sequence).source)]; };
  } else {
    out.domain_of = [this](i64 sequence) {
      return validation_[idx(sequence / job_.train.sequences) % validation_.size()].domain;
    };
  }
  return out;
}

/// The batch that a step reads under a condition; of several sources' validation texts steps take one after
/// another.
Batch Trainer::batch_of(TextCondition condition, i64 first) const {
  const i64 count = job_.train.sequences;
  if (condition == TextCondition::kHeldout && validation_.empty())
    fail<ConfigError>("--condition",
                      "got heldout, expected a job with validation text (data.validation_share, "
                      "train.validate_every)");
  const Sampler& sampler = condition == TextCondition::kHeldout
                               ? validation_[idx(first / count) % validation_.size()].sampler
                               : train_;
  Batch batch = sampler.batch(first, count, model_.vocab);
  apply_condition(condition, model_.vocab, static_cast<u64>(job_.train.seed), first, batch);
  return batch;
}

RecordedRoutes Trainer::record_routes(const std::optional<FoundCheckpoint>& checkpoint, i64 steps,
                                      TextCondition condition) {
  RecordedRoutes out;
  out.steps_done = go_back_to(checkpoint);
  out.first_sequence = next_sequence_;
  RouteRecorder recorder(job_, model_, processes_, 0, recorded_text(condition));
  double sum = 0, targets = 0;
  for (i64 step = out.steps_done; step < out.steps_done + steps && stop_asked() == 0; ++step) {
    StepInput input = hetermoe::input_of(batch_of(condition, next_sequence_));
    input.step = step;
    input.routes = routes_.get();
    sum += session_->evaluate(input).loss;
    targets += real(input.target_count);
    recorder.write(step, next_sequence_, plan(), routes_->finish());
    next_sequence_ += job_.train.sequences;
    ++out.steps;
  }
  recorder.finish();
  out.loss = out.steps > 0 ? sum / targets : 0;
  return out;
}

/// Of sequences first, first + 1, ... of the sampler: as many as a step has, so that the plan's shares serve.
StepInput Trainer::input_of(const Sampler& sampler, i64 step, i64 first) const {
  StepInput input = hetermoe::input_of(sampler.batch(first, job_.train.sequences, model_.vocab));
  input.step = step;
  return input;
}

}  // namespace hetermoe
