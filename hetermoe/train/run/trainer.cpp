#include "hetermoe/train/run/trainer.h"

#include <algorithm>
#include <utility>

#include "hetermoe/nn/optimizer.h"
#include "hetermoe/sim/simulated_step.h"
#include "hetermoe/train/job/router_training.h"
#include "hetermoe/train/run/parts.h"
#include "hetermoe/train/run/restore.h"
#include "hetermoe/train/run/step_figures.h"
#include "hetermoe/train/session/batch.h"

namespace hetermoe {
namespace {

/// While it lives, parts of the run are asked when another process is lost.
class HearsOfLost {
 public:
  explicit HearsOfLost(const RunState& run) : processes_(run.processes) {
    processes_.on_lost([&run](const LostProcess& lost) {
      return std::any_of(run.parts.begin(), run.parts.end(),
                         [&](const auto& part) { return part->take_lost(lost); });
    });
  }
  ~HearsOfLost() { processes_.on_lost({}); }
  HearsOfLost(const HearsOfLost&) = delete;
  HearsOfLost& operator=(const HearsOfLost&) = delete;

 private:
  const Processes& processes_;
};

}  // namespace

Trainer::Trainer(const Job& job, ModelConfig model, Cluster cluster, Plan plan, const Dataset& data,
                 const Processes& processes, Checkpoints checkpoints)
    : run_(job, std::move(model), std::move(cluster), std::move(plan), data, processes, checkpoints) {
  run_.parts = make_parts(run_);
}

PredictedStep Trainer::predict() const {
  const Session& session = *run_.session;
  SimulatedStep step =
      simulate_step(session.schedule(), run_.priced->placement, session.placement(), run_.model, run_.cluster,
                    *run_.priced->truth, ExpectedRouting(run_.model));
  return {make_timeline(session.schedule(), step.times, plan(), run_.cluster, "simulated"), step.times.step,
          std::move(step.memory)};
}

std::string Trainer::overfilled() const {
  const Placement& priced = run_.priced->placement;
  std::vector<Bytes> memory;
  for (const MemoryPeak& peak : simulate_step(run_.session->schedule(), priced, priced, run_.model,
                                              run_.cluster, *run_.priced->truth, ExpectedRouting(run_.model))
                                    .memory)
    memory.push_back(peak.use.total());
  return overfilled_device(memory, run_.cluster);
}

TrainOutcome Trainer::run(const RunHooks& hooks, i64 timed_steps) {
  run_.hooks = hooks;
  run_.timed_steps = timed_steps;
  run_.outcome = {};
  const HearsOfLost hears(run_);
  begin_run();
  const i64 end = run_.end + timed_steps;
  const i32 stop = train_steps(end);
  for (const auto& part : run_.parts) part->end_run();
  TrainOutcome& out = run_.outcome;
  if (run_.steps_done() < end) out.stopped_by = stop;
  if (!out.records.empty()) out.executed = whole_timeline(run_);
  return std::move(out);
}

void Trainer::begin_run() {
  TrainOutcome& out = run_.outcome;
  const TrainOptions& train = run_.job.train;
  out.unigram_entropy = run_.text.unigram_entropy();
  if (train.staleness > 0) tell_staleness();
  if (run_.checkpoints == Checkpoints::kOn) resume(run_);
  out.copies_from = out.first_step + 1;
  if (out.first_step == 0) start_weights(run_);
  for (const auto& part : run_.parts) part->begin_run();
}

void Trainer::tell_staleness() {
  run_.tell(
      "train.staleness 1: each step computes with weights that lack the last update. That training converges "
      "as "
      "well as with staleness 0 is not shown: compare the losses");
  if (!run_.text.validation().empty() && run_.job.train.validate_every == 1)
    run_.tell("train.validate_every 1: every validation waits for the last update, so no steps overlap");
}

/// Steps up to `end`, or until some rank is asked to stop. Returns the signal that asked, 0 = none did.
i32 Trainer::train_steps(i64 end) {
  const i64 first = run_.outcome.first_step;
  i32 stop = run_.processes.alone() ? stop_asked() : 0;
  if (run_.hooks.on_begin && first < end && stop == 0) run_.hooks.on_begin(first);
  for (i64 step = first; step < end && (stop == 0 || !begun_.empty()); ++step) {
    for (const auto& part : run_.parts) part->before_step(step);
    if (begun_.empty()) begin_step(step);
    if (stop == 0 && step + 1 < end && may_begin_next(step)) begin_step(step + 1);
    stop = finish_step(end_step());
  }
  return stop;
}

/// The next step may begin before this one has ended.
bool Trainer::may_begin_next(i64 step) const {
  return run_.session->may_overlap() &&
         std::none_of(run_.parts.begin(), run_.parts.end(),
                      [&](const auto& part) { return part->ends_before_next(step); });
}

void Trainer::begin_step(i64 step) {
  const TrainOptions& train = run_.job.train;
  const i64 first = run_.next_sequence;
  StepInput input = run_.input_of(run_.text.train(), step, first);
  run_.next_sequence += train.sequences;
  input.learning_rate = learning_rate_at(learning_rate_of(train), step);
  input.max_grad_norm = train.max_grad_norm;
  input.adamw = {train.beta1, train.beta2, train.adam_eps, train.weight_decay};
  input.router = router_training(train, step, first);
  input.choices = forced_choices(train, run_.model, first);
  begun_.push_back({step, input.learning_rate, hash_of(input), std::chrono::steady_clock::now()});
  for (const auto& part : run_.parts) part->add_to(input);
  run_.sent.take(step);  // what a probe or a validation sent under its number
  run_.session->begin_step(input);
}

/// On this rank.
StepRecord Trainer::end_step() {
  const BegunStep begun = begun_.front();
  begun_.pop_front();
  run_.last = run_.session->end_step();
  if (!run_.last.updated) run_.session->executor().settle();  // gradients will be looked at
  StepRecord record;
  record.step = begun.step + 1;
  record.learning_rate = begun.learning_rate;
  record.tokens_hash = begun.tokens_hash;
  record.marks = std::exchange(run_.marks, {});
  for (const auto& part : run_.parts) part->step_ended(record);
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<double> wall = now - std::max(begun.at, ended_at_);
  ended_at_ = now;
  record.wall_s = wall.count();
  add_figures(run_, record);
  return record;
}

/// On all ranks. Returns the signal by which any rank was asked to stop.
i32 Trainer::finish_step(StepRecord record) {
  const StepReport all = gather_reports(run_.processes, report_of(run_, record));
  add_figures_of_all(run_, all, record);
  StepDone done{.record = std::move(record), .all = all};
  for (const auto& part : run_.parts) part->after_step(done);
  return all.stop;
}

StepRecord Trainer::replay_step(const std::optional<FoundCheckpoint>& checkpoint, i64 step) {
  if (checkpoint &&
      (checkpoint->info.text != run_.text.checksum() || checkpoint->info.seed != run_.job.train.seed)) {
    fail<InputError>(checkpoint->path.string(),
                     "the training text or the seed is not that of the checkpoint: the step cannot be "
                     "repeated");
  }
  StepRecord record;
  for (i64 next = go_back_to(run_, checkpoint); next < step; ++next) {
    for (const auto& part : run_.parts) part->before_step(next);
    begin_step(next);
    record = end_step();
  }
  return record;
}

RecordedRoutes Trainer::record_routes(const std::optional<FoundCheckpoint>& checkpoint, i64 steps,
                                      TextCondition condition) {
  RecordedRoutes out;
  out.steps_done = go_back_to(run_, checkpoint);
  out.first_sequence = run_.next_sequence;
  RouteCollector collector(run_.job, run_.model);
  RouteRecorder recorder(run_.job, run_.model, run_.processes, 0, run_.text.recorded(condition));
  double sum = 0, targets = 0;
  for (i64 step = out.steps_done; step < out.steps_done + steps && stop_asked() == 0; ++step) {
    StepInput input = input_of(run_.text.batch(condition, run_.next_sequence, run_.model.vocab));
    input.step = step;
    input.routes = &collector;
    sum += run_.session->evaluate(input).loss;
    targets += real(input.target_count);
    recorder.write(step, run_.next_sequence, plan(), collector.finish());
    run_.next_sequence += run_.job.train.sequences;
    ++out.steps;
  }
  recorder.finish();
  out.loss = out.steps > 0 ? sum / targets : 0;
  return out;
}

}  // namespace hetermoe
