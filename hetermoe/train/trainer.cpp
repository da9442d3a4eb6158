#include "hetermoe/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/base/rows.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/batch.h"
#include "hetermoe/train/resume.h"
#include "hetermoe/train/router_bias.h"
#include "hetermoe/train/router_training.h"
#include "hetermoe/train/shared_folder.h"
#include "hetermoe/train/start.h"

namespace hetermoe {

std::atomic<bool> stop_requested = false;

static std::atomic<i32> stop_signal = SIGINT;  // of a stop that no signal asked for, too

i32 stop_asked() { return stop_requested ? stop_signal.load() : 0; }

std::vector<Validation> TrainOutcome::validations() const {
  std::vector<Validation> all;
  for (const StepRecord& record : records) {
    if (record.validation) all.push_back(*record.validation);
  }
  return all;
}

static void ask_to_stop(int signal) {
  stop_signal = signal;
  stop_requested = true;
  Presence::tell_stopped();
  if (signal == SIGINT) std::signal(SIGINT, SIG_DFL);
}

void stop_on_interrupt() {
  for (const int signal : kStopSignals) {
    const bool ignored = std::signal(signal, ask_to_stop) == SIG_IGN;
    if (ignored && signal == SIGHUP) std::signal(SIGHUP, SIG_IGN);  // as nohup wants it
  }
}

namespace {

/// A paced step further than this from the simulation of what it routed has lost its pace.
constexpr double kPaceTolerance = 0.02;

std::vector<double> numbers_of(const at::Tensor& counts_L) {
  const i64* next = counts_L.const_data_ptr<i64>();
  return {next, next + counts_L.numel()};
}

double max_over_mean(const LayerCopies& copies) {
  double worst = 0;
  for (const std::vector<double>& layer : copies) worst = std::max(worst, straggler_ratio(layer).value_or(0));
  return worst;
}

Cluster without_slow_devices(Cluster cluster) {
  for (Device& device : cluster.devices) device.speed = 1;
  return cluster;
}

bool computes_in_fp16(const Plan& plan) {
  const std::vector<DeviceId> devices = devices_of(plan);
  return std::any_of(devices.begin(), devices.end(),
                     [&](DeviceId d) { return plan.dtype[idx(d)] == Dtype::kFp16; });
}

/// [sources]
std::vector<std::uint32_t> domains_of_sources(const Dataset& data, const std::vector<std::string>& domains) {
  std::vector<std::uint32_t> out;
  for (const Source& source : data.sources) {
    const auto at = std::find(domains.begin(), domains.end(), source.domain);
    out.push_back(at == domains.end() ? kNoDomain : static_cast<std::uint32_t>(at - domains.begin()));
  }
  return out;
}

/// Counting costs time, which under the virtual clock nobody measures; a meter knows one step at a time. Runs
/// without checkpoints are those of `compare`, whose last steps are timed.
bool counts_tensors(const Job& job, Checkpoints checkpoints) {
  return checkpoints == Checkpoints::kOn && job.clock.kind == ClockKind::kVirtual &&
         job.run.device == "cpu" && job.train.staleness == 0;
}

bool some_computes_in_fp16(const Plan& first, const std::vector<PlannedChange>& changes) {
  return computes_in_fp16(first) ||
         std::any_of(changes.begin(), changes.end(),
                     [](const PlannedChange& change) { return computes_in_fp16(change.plan); });
}

}  // namespace

Trainer::Trainer(const Job& job, ModelConfig model, Cluster cluster, Plan plan, const Dataset& data,
                 const Processes& processes, Checkpoints checkpoints)
    : job_(job),
      processes_(processes),
      model_(std::move(model)),
      cluster_(std::move(cluster)),
      changes_(load_changes(job, plan, model_, cluster_)),
      domains_(data.domains()),
      domain_of_source_(domains_of_sources(data, domains_)),
      train_(data, {job.train.seq_len, job.train.seed}),
      profiles_(load_profiles(cluster_)),
      nominal_cluster_(without_slow_devices(cluster_)),
      meter_(counts_tensors(job, checkpoints) ? std::make_unique<MemoryMeter>() : nullptr),
      sent_(std::make_unique<SentBytes>(cluster_)),
      priced_(
          std::make_unique<PricedPlan>(job, std::move(plan), model_, cluster_, nominal_cluster_, profiles_)),
      first_plan_(priced_->plan),
      text_checksum_(data.checksum()),
      text_name_(name_of_text(text_checksum_, data, job.train)),
      session_(make_session(parts_with(*priced_), processes)),
      loss_scale_(job.train.loss_scale, some_computes_in_fp16(first_plan_, changes_)),
      stragglers_(kinds_of(cluster_, first_plan_), job.train.straggler_share),
      spikes_(job.train.spike_sigma),
      collapses_(model_),
      end_(job.train.steps) {
  prepare_validation(data);
  prepare_weights();
  if (job_.balancer.on())
    balancer_ = std::make_unique<StepBalancer>(job_, model_, cluster_, first_plan_, profiles_,
                                               static_cast<i64>(domains_.size()));
  if (!job_.routing.record.empty() || (balancer_ && balancer_->goes_by_domains()))
    routes_ = std::make_unique<RouteCollector>(job_, model_);
  if (job_.balancer.on() && job_.balancer.probe) route_probe_ = std::make_unique<RouteProbe>();
  if (!job_.routing.replay.empty()) route_replay_ = std::make_unique<RouteReplay>(job_, model_, text_name_);
  if (checkpoints != Checkpoints::kOn) return;
  writer_.emplace(checkpoint_folder(job.output), job.checkpoint);
  if (processes.alone()) return;
  if (saves()) check_shared_folder(processes, job.output);
  std::vector<DeviceId> devices = session_->local();  // and hosts, which go with their devices
  std::erase_if(devices, [&](DeviceId device) { return device >= cluster_.num_devices(); });
  presence_.emplace(job.output, processes.rank(), devices);
}

PredictedStep Trainer::predict() const {
  SimulatedStep step = simulate_step(session_->schedule(), priced_->placement, session_->placement(), model_,
                                     cluster_, *priced_->truth, ExpectedRouting(model_));
  return {make_timeline(session_->schedule(), step.times, plan(), cluster_, "simulated"), step.times.step,
          std::move(step.memory)};
}

/// Of the steps under the final clock.
struct Trainer::StepTimes {
  std::vector<double> executed, replayed, ratios;

  void summarize(TrainOutcome& out) const {
    out.executed_step = median(executed);
    out.replayed_step = median(replayed);
    out.executed_over_replayed = median(ratios);
    if (!out.pace) return;
    out.pace->lag = out.executed_over_replayed - 1;
    out.pace->kept_up = std::abs(out.pace->lag) < kPaceTolerance;
  }
};

TrainOutcome Trainer::run(const RunHooks& hooks, i64 timed_steps) {
  TrainOutcome out;
  hooks_ = hooks;
  out.unigram_entropy = unigram_entropy_;
  const TrainOptions& train = job_.train;
  StepTimes times;
  const bool paced = job_.clock.kind == ClockKind::kPaced;
  if (train.staleness > 0) tell_staleness(out);
  if (writer_) check_save();
  if (writer_) resume(out);
  out.copies_from = out.first_step + 1;
  if (out.first_step == 0) start_weights(out);
  tell_routes(out);
  if (!job_.routing.record.empty())
    recorder_ = std::make_unique<RouteRecorder>(job_, model_, processes_, out.first_step,
                                                recorded_text(TextCondition::kText));
  i32 stop = processes_.alone() ? stop_asked() : 0;
  if (hooks_.on_begin && out.first_step < end_ + timed_steps && stop == 0) hooks_.on_begin(out.first_step);
  for (i64 step = out.first_step; step < end_ + timed_steps && (stop == 0 || !begun_.empty()); ++step) {
    // The first step runs unpaced and tells how much processor time a step takes.
    const i64 done = step - out.first_step;
    if (done > 0 && ((paced && done == 1) || (timed_steps > 0 && step == std::max<i64>(train.steps, 1)))) {
      out.pace.emplace();
      set_paced(*out.pace, out.records.empty() ? 0 : out.records.back().wall_s);
      times = {};
    }
    if (change_plan_before(step, out)) times = {};
    if (begun_.empty()) begin_one(step);
    if (stop == 0 && step + 1 < end_ + timed_steps && goes_on_after(step, done)) begin_one(step + 1);
    StepRecord record = finish_step(end_one(), stop);
    const std::optional<Timeline> picture = pictured_ ? std::optional(whole_timeline()) : std::nullopt;
    if (validates_after(step)) record.validation = validate(step + 1);
    note(record, times, out);
    if (hooks_.on_step) hooks_.on_step(record);
    if (picture && hooks_.on_picture)
      hooks_.on_picture({out.copies_from, step + 1, *picture, out.expert_copies});
    if (saves_after(step)) save(step + 1);
    if (exports_after(step)) save_weights(export_folder(step + 1), step + 1, out);
  }
  const i64 steps_done = out.first_step + static_cast<i64>(out.records.size());
  if (saves() && steps_done > saved_step_) save(steps_done);
  if (writer_) writer_->finish();
  if (recorder_) recorder_->finish();
  recorder_.reset();
  tell_guard(out);
  if (writer_ && end_ == train.steps && !train.save_hf.empty())
    save_weights(folder_path(train.save_hf), steps_done, out);
  if (steps_done < end_ + timed_steps) out.stopped_by = stop;
  out.skipped_steps = skipped_;
  times.summarize(out);
  if (!out.records.empty()) out.executed = whole_timeline();
  return out;
}

/// Adds a finished step to what the run tells at its end.
void Trainer::note(const StepRecord& record, StepTimes& times, TrainOutcome& out) {
  for (const std::string& warning : record.warnings)
    out.warnings.push_back(fmt::format("step {}: {}", record.step, warning));
  times.executed.push_back(record.step_s);
  if (session_->executor().clock() != ClockKind::kReal && processes_.alone()) {
    times.replayed.push_back(replay());
    times.ratios.push_back(record.step_s / times.replayed.back());
  }
  out.records.push_back(record);
  add_to(out.expert_copies, copies_of(last_.counts_LE));
  if (out.pace) out.pace->cpu_share = last_.cpu_seconds / (record.wall_s * num_cores());
}

bool Trainer::saves_after(i64 step) const { return saves() && (step + 1) % job_.checkpoint.every == 0; }
/// The next step may begin before this one has ended. done: steps of this run before it.
bool Trainer::goes_on_after(i64 step, i64 done) const {
  const bool paced = job_.clock.kind == ClockKind::kPaced;
  const bool sets_clock = (paced && done == 0) || step + 1 == std::max<i64>(job_.train.steps, 1);
  // The step before leaves a loss scale that adapts, and biases by its load.
  const bool waits =
      loss_scale_.adapts() || job_.train.router_bias_rate > 0 || routes_ || route_replay_ || route_probe_;
  return session_->may_overlap() && !validates_after(step) && !saves_after(step) && !exports_after(step) &&
         !sets_clock && !waits && changes_.empty();
}

StepRecord Trainer::train_one(i64 step) {
  begin_one(step);
  return end_one();
}

void Trainer::begin_one(i64 step) {
  const TrainOptions& train = job_.train;
  StepInput input = input_of(train_, step, next_sequence_);
  next_sequence_ += train.sequences;
  input.learning_rate = learning_rate_at(learning_rate_of(train), step);
  input.max_grad_norm = train.max_grad_norm;
  input.loss_scale = loss_scale_.value();
  input.adamw = {train.beta1, train.beta2, train.adam_eps, train.weight_decay};
  const i64 first = next_sequence_ - train.sequences;
  input.router = router_training(train, step, first);
  input.choices = forced_choices(train, model_, first);
  if (route_replay_) {
    input.choices = route_replay_->choices(first, train.sequences);
    if (divides_copies(plan()) && !plan().tally) route_replay_->check_all();
  }
  if (route_probe_) input.choices = route_probe_->choices();
  if (collects(step)) input.routes = routes_.get();
  begun_.push_back({step, input.learning_rate, hash_of(input), std::chrono::steady_clock::now()});
  sent_->take(step);  // what a probe or a validation sent under its number
  session_->begin_step(in_order(std::move(input)));
}

StepRecord Trainer::end_one() {
  const TrainOptions& train = job_.train;
  const BegunStep begun = begun_.front();
  begun_.pop_front();
  const i64 step = begun.step;
  last_ = session_->end_step();
  if (route_probe_) last_.step += route_probe_->seconds();
  if (!last_.updated) session_->executor().settle();  // gradients will be looked at
  if (route_replay_) route_replay_->check_counts(last_.counts_LE);
  if (train.router_bias_rate > 0 && last_.updated)
    adjust_router_bias(session_->states(), model_, last_.counts_LE, train.router_bias_rate);
  if (collects(step)) use_routes(step);
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<double> wall = now - std::max(begun.at, ended_at_);
  ended_at_ = now;
  const Timeline timeline = session_->executor().timeline();
  StepRecord record;
  record.step = step + 1;
  record.loss = last_.loss;
  record.aux_loss = last_.aux_loss;
  record.grad_norm = last_.grad_norm;
  record.learning_rate = begun.learning_rate;
  record.tokens_hash = begun.tokens_hash;
  record.step_s = last_.step;
  record.wall_s = wall.count();
  record.peak_memory = resident_watermark();
  for (DeviceState* state : session_->states())
    record.gpu_peak = std::max(record.gpu_peak, gpu_peak(state->where()));
  record.tokens_per_s = real(train.sequences * train.seq_len) / last_.step;
  const LayerCopies copies = copies_of(last_.counts_LE);
  record.expert_max_over_mean = max_over_mean(copies);
  record.loads = layer_loads(model_, copies, numbers_of(last_.dropped_L));
  record.top_k = record.loads.empty() ? 0 : model_.top_k;
  if (!routing_watch_) routing_watch_.emplace(*priced_->truth, priced_->placement, model_, cluster_);
  record.routing = routing_watch_->of(copies);
  if (balancer_) balancer_->add(copies);
  if (route_replay_) record.replayed_choices = route_replay_->coverage();
  const std::vector<double> busy = busy_share(timeline);
  record.attention_wait = waiting(timeline, busy, "attention");
  record.expert_wait = waiting(timeline, busy, "expert");
  record.marks = std::exchange(marks_, {});
  record.owners_held = std::exchange(held_before_, false);
  record.updated = last_.updated;
  // A loss that is not finite says nothing of the scale, neither that it is too high nor that it is good.
  record.overflowed = std::isfinite(last_.loss + last_.aux_loss) && loss_scale_.lower_after(!last_.updated);
  return record;
}

/// A step's numerics took `wall` real seconds at full speed; they may fill max_cpu_share of the paced step.
void Trainer::set_paced(PaceReport& pace, Seconds wall) {
  pace.scale = job_.clock.pace_scale > 0 ? job_.clock.pace_scale
                                         : wall / (job_.clock.max_cpu_share * std::max(last_.step, 1e-9));
  session_->executor().set_clock(ClockKind::kPaced, pace.scale);
}

/// Simulation of what was routed in the last step: the difference to the execution is the cost model's, not
/// the routing's.
Seconds Trainer::replay() {
  const OpCosts costs = price(session_->schedule(), priced_->placement, model_, cluster_, *priced_->truth,
                              session_->executor().recorded_routing());
  const Schedule& schedule = session_->schedule();
  if (!schedule.overlaps()) return longest_path(schedule, costs.seconds).step;
  std::vector<Seconds> seconds;
  for (i32 step = 0; step < kSteadySteps; ++step)
    seconds.insert(seconds.end(), costs.seconds.begin(), costs.seconds.end());
  return steady_step(schedule, longest_path(repeat(schedule, kSteadySteps), seconds)).step;
}

}  // namespace hetermoe
