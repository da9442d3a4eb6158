#include "hetermoe/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/version.h"
#include "hetermoe/comm/mpi.h"
#include "hetermoe/comm/nccl.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/presence.h"

namespace hetermoe {

std::atomic<bool> stop_requested = false;

void stop_on_interrupt() {
  std::signal(SIGINT, [](int) {
    stop_requested = true;
    Presence::tell_stopped();
    std::signal(SIGINT, SIG_DFL);
  });
  std::signal(SIGTERM, [](int) {
    stop_requested = true;
    Presence::tell_stopped();
  });
}

namespace {

std::filesystem::path checkpoint_folder(const Job& job) {
  return std::filesystem::path(job.output) / "checkpoints";
}

/// A paced step further than this from the simulation of what it routed has lost its pace.
constexpr double kPaceTolerance = 0.02;

u64 sum_of(const Json& json) {
  const std::string text = json.dump();
  return checksum(text.data(), text.size());
}

i32 num_cores() { return std::max(1, static_cast<i32>(std::thread::hardware_concurrency())); }

i32 lane_threads(const Job& job, const Plan& plan) {
  if (job.clock.threads > 0) return job.clock.threads;
  return std::max(1, num_cores() / static_cast<i32>(devices_of(plan).size()));
}

Session::Options session_options(const Job& job, const ModelConfig& model, const Plan& plan,
                                 const CostModel& truth, const CostModel& nominal,
                                 const Placement& emulated) {
  Session::Options options;
  options.step = step_options(job, model);
  options.executor.emulated = &emulated;
  options.executor.clock = job.clock.kind == ClockKind::kPaced ? ClockKind::kVirtual : job.clock.kind;
  options.executor.truth = &truth;
  if (job.train.straggler_share > 0) options.executor.nominal = &nominal;
  options.executor.threads_per_lane = lane_threads(job, plan);
  options.executor.watchdog = job.clock.watchdog_s;
  return options;
}

/// Where the tensors of each device are: empty = on the CPU.
std::vector<c10::Device> places(const Job& job, const Cluster& cluster, const Processes& processes) {
  if (find_device(job.run.device, "run.device").is_cpu()) return {};
  std::vector<c10::Device> where;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const i32 turn = processes.alone() ? d : processes.local_rank();
    where.push_back(find_device_in_turn(job.run.device, turn, "run.device"));
  }
  return where;
}

std::unique_ptr<Session> make_session(const Job& job, const ModelConfig& model, const Cluster& cluster,
                                      const Plan& plan, const CostModel& truth, const CostModel& nominal,
                                      const Placement& emulated, const Processes& processes) {
  Session::Options options = session_options(job, model, plan, truth, nominal, emulated);
  // Threads of one process share its cores: who of them is slower says nothing of a device.
  if (processes.alone() && job.clock.kind == ClockKind::kReal) options.executor.nominal = nullptr;
  options.where = places(job, cluster, processes);
  const auto start = [&](const Session::MakeTransport& make) {
    return std::make_unique<Session>(model, cluster, plan, options, [&](const Schedule& schedule) {
      std::unique_ptr<Transport> transport = make(schedule);
      return job.train.checksum_messages ? make_checksummed_transport(std::move(transport))
                                         : std::move(transport);
    });
  };
  if (processes.alone())
    return start([&](const Schedule&) { return make_in_process_transport(cluster.num_devices()); });
  if (job.clock.kind == ClockKind::kPaced) {
    fail<ConfigError>("clock.kind",
                      "got paced with {} processes, expected real or virtual: processes have no common "
                      "clock to keep pace with",
                      processes.num_ranks());
  }
  const std::vector<DeviceId> devices = devices_of(plan);
  const std::vector<i32> ranks = spread_devices(static_cast<i32>(devices.size()), processes.num_ranks());
  std::vector<i32> rank_of(cluster.devices.size(), 0);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    rank_of[static_cast<std::size_t>(devices[i])] = ranks[i];
    if (ranks[i] == processes.rank()) options.local.push_back(devices[i]);
  }
  if (options.where.empty())
    return start([&](const Schedule&) { return make_mpi_transport(processes, rank_of); });
  options.launch_by = &nominal;
  const c10::Device own = options.where[static_cast<std::size_t>(options.local.front())];
  return start([&](const Schedule& schedule) {
    return make_nccl_transport(processes, open_nccl(), {rank_of, transfer_queues(schedule), own});
  });
}

/// Share of the step in which the compute lanes of devices with this role are idle.
double waiting(const Timeline& timeline, const std::vector<double>& busy, const std::string& role) {
  double sum = 0;
  int count = 0;
  for (std::size_t d = 0; d < busy.size(); ++d) {
    const std::string& of_device = timeline.devices[d].role;
    if (of_device != role && of_device != "both") continue;
    sum += 1 - busy[d];
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

double max_over_mean(const at::Tensor& counts_LE) {
  const at::Tensor counts = counts_LE.to(at::kDouble);
  double worst = 0;
  for (i64 l = 0; l < counts.size(0); ++l) {
    const double mean = counts[l].mean().item<double>();
    if (mean > 0) worst = std::max(worst, counts[l].max().item<double>() / mean);
  }
  return worst;
}

Cluster without_slow_devices(Cluster cluster) {
  for (Device& device : cluster.devices) device.speed = 1;
  return cluster;
}

/// Devices of one kind do the same work: type and role.
std::vector<std::string> kinds_of(const Cluster& cluster, const Plan& plan) {
  std::vector<std::string> kinds;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d)
    kinds.push_back(fmt::format("{} {}", cluster.type_of(d).name, role_of(plan, d)));
  return kinds;
}

bool computes_in_fp16(const Plan& plan) {
  const std::vector<DeviceId> devices = devices_of(plan);
  return std::any_of(devices.begin(), devices.end(),
                     [&](DeviceId d) { return plan.dtype[static_cast<std::size_t>(d)] == Dtype::kFp16; });
}

}  // namespace

Trainer::Trainer(const Job& job, ModelConfig model, Cluster cluster, Plan plan, const Text& text,
                 const Processes& processes, Checkpoints checkpoints)
    : job_(job),
      processes_(processes),
      model_(std::move(model)),
      cluster_(std::move(cluster)),
      plan_(std::move(plan)),
      train_(text.train, job.train.seq_len, job.train.seed),
      validation_(
          job.train.validation_sequences > 0 && text.validation.numel() > 0
              ? std::optional<Sampler>(std::in_place, text.validation, job.train.seq_len, job.train.seed)
              : std::nullopt),
      unigram_entropy_(validation_ ? unigram_entropy(text.validation) : 0),
      emulated_(emulated_plan(job, plan_)),
      emulated_placement_(emulated_, model_, step_options(job, model_)),
      truth_(make_cost(model_, cluster_, emulated_, load_profiles(cluster_))),
      nominal_cluster_(without_slow_devices(cluster_)),
      nominal_(make_cost(model_, nominal_cluster_, emulated_, load_profiles(cluster_))),
      session_(
          make_session(job, model_, cluster_, plan_, *truth_, *nominal_, emulated_placement_, processes)),
      text_checksum_(checksum(text.train.const_data_ptr(), text.train.nbytes())),
      loss_scale_(job.train.loss_scale, computes_in_fp16(plan_)),
      stragglers_(kinds_of(cluster_, plan_), job.train.straggler_share),
      spikes_(job.train.spike_sigma) {
  session_->initialize(job.train.seed);
  check_same_run();
  if (checkpoints != Checkpoints::kOn) return;
  writer_.emplace(checkpoint_folder(job), job.checkpoint);
  if (processes.alone()) return;
  std::vector<DeviceId> local;
  for (const DeviceState* state : session_->states()) local.push_back(state->device());
  presence_.emplace(job.output, processes.rank(), local);
}

PredictedStep Trainer::predict() const {
  const OpTimes times =
      simulate(session_->schedule(), emulated_placement_, model_, cluster_, *truth_, ExpectedRouting(model_));
  return {make_timeline(session_->schedule(), times, plan_, cluster_, "simulated"), times.step};
}

/// Ranks that were started with different files or programs would wait for each other forever.
void Trainer::check_same_run() const {
  const std::string mine =
      fmt::format("{} plan {:016x} schedule {:016x} model {:016x} job {:016x} text {:016x}", version(),
                  sum_of(to_json(plan_)), hash(session_->schedule()), sum_of(to_hf(model_)),
                  sum_of(write_fields(job_)), text_checksum_);
  check_alike(processes_, mine, "All ranks need the same program, job and text.");
}

/// True when every rank has read its part.
bool Trainer::load_everywhere(const FoundCheckpoint& checkpoint, std::string& error) {
  std::string mine;
  try {
    load_checkpoint(checkpoint, model_, session_->states());
  } catch (const IoError& failed) {
    mine = failed.what();
  }
  for (const std::string& text : processes_.gather(mine)) {
    if (!text.empty()) error = text;
  }
  return error.empty();
}

/// Goes on from the newest checkpoint that can be read.
void Trainer::resume(TrainOutcome& out) {
  const std::filesystem::path folder = checkpoint_folder(job_);
  if (processes_.rank() == 0) remove_unfinished(folder);
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  attempt_ = processes_.gather(fmt::format("{:x}", static_cast<u64>(now)))[0];
  if (!job_.checkpoint.resume) return;
  const auto note = [&](const std::string& text) { out.notes.push_back(text); };
  const auto broken = [&](const std::string& text) { note("passed over a checkpoint: " + text); };
  const std::vector<FoundCheckpoint> found = find_checkpoints(folder, broken);
  for (const FoundCheckpoint& checkpoint : found) {
    std::string error;
    if (!load_everywhere(checkpoint, error)) {
      broken(error);
      continue;
    }
    out.first_step = checkpoint.info.step;
    next_sequence_ = checkpoint.info.sequences;
    saved_step_ = checkpoint.info.step;
    skipped_ = checkpoint.info.skipped;
    loss_scale_.restore(checkpoint.info.loss_scale);
    note(fmt::format("went on from {}", checkpoint.path.string()));
    if (checkpoint.info.text != text_checksum_ || checkpoint.info.seed != job_.train.seed) {
      note("the training text or the seed is not that of the checkpoint: the data are not continued");
    }
    return;
  }
  if (!found.empty()) {
    fail<IoError>(folder.string(), "no checkpoint can be read: {}. To begin anew: --checkpoint.resume false",
                  out.notes.back());
  }
}

void Trainer::save(i64 steps_done) {
  CheckpointShard shard;
  shard.info = {steps_done, next_sequence_, job_.train.seed, text_checksum_, version(), write_fields(job_)};
  shard.info.skipped = skipped_;
  shard.info.loss_scale = loss_scale_.state();
  shard.config = to_hf(model_);
  shard.rank = processes_.rank();
  shard.num_ranks = processes_.num_ranks();
  shard.attempt = attempt_;
  copy_tensors(session_->states(), model_, shard);
  writer_->write(std::move(shard));
  saved_step_ = steps_done;
}

TrainOutcome Trainer::run(const std::function<void(const StepRecord&)>& on_step, i64 timed_steps) {
  TrainOutcome out;
  out.unigram_entropy = unigram_entropy_;
  const TrainOptions& train = job_.train;
  std::vector<double> executed, replayed, ratios;  // of the steps under the final clock
  const bool paced = job_.clock.kind == ClockKind::kPaced;
  PaceReport pace;
  const i64 total = train.steps + timed_steps;
  if (writer_) resume(out);
  const bool saves = writer_ && job_.checkpoint.every > 0;
  bool stop = stop_requested && processes_.alone();
  for (i64 step = out.first_step; step < total && !stop; ++step) {
    // The first step runs unpaced and tells how much processor time a step takes.
    const i64 done = step - out.first_step;
    if (done > 0 && ((paced && done == 1) || (timed_steps > 0 && step == std::max<i64>(train.steps, 1)))) {
      set_paced(pace, out.records.empty() ? 0 : out.records.back().wall_s);
      out.pace = pace;
      executed.clear();
      replayed.clear();
      ratios.clear();
    }
    StepRecord record = train_one(step);
    stop = stop_everywhere(record);
    check_finite(record);
    watch_health(record);
    for (const std::string& warning : record.warnings)
      out.warnings.push_back(fmt::format("step {}: {}", record.step, warning));
    executed.push_back(record.step_s);
    if (session_->executor().clock() != ClockKind::kReal && processes_.alone()) {
      replayed.push_back(replay());
      ratios.push_back(record.step_s / replayed.back());
    }
    out.records.push_back(record);
    if (on_step) on_step(record);
    const bool due = train.validate_every > 0 && (step + 1) % train.validate_every == 0;
    if (validation_ && (due || step + 1 == train.steps) && step < train.steps) {
      out.validations.push_back({step + 1, validate()});
    }
    if (saves && (step + 1) % job_.checkpoint.every == 0) save(step + 1);
    if (out.pace) {
      out.pace->cpu_share = last_.cpu_seconds / (record.wall_s * num_cores());
    }
  }
  const i64 steps_done = out.first_step + static_cast<i64>(out.records.size());
  if (saves && steps_done > saved_step_) save(steps_done);
  if (writer_) writer_->finish();
  out.interrupted = stop;
  out.skipped_steps = skipped_;
  out.executed_step = median(executed);
  out.replayed_step = median(replayed);
  out.executed_over_replayed = median(ratios);
  if (out.pace) {
    out.pace->lag = out.executed_over_replayed - 1;
    out.pace->kept_up = std::abs(out.pace->lag) < kPaceTolerance;
  }
  if (!out.records.empty()) out.executed = whole_timeline();
  return out;
}

/// Completes the record by what other ranks know; true when any rank was asked to stop.
bool Trainer::stop_everywhere(StepRecord& record) {
  slowness_.assign(cluster_.devices.size(), 0);
  for (const DeviceWork& work : session_->executor().device_work()) {
    if (work.nominal > 0) slowness_[static_cast<std::size_t>(work.device)] = work.busy / work.nominal;
  }
  nonfinite_ = record.updated ? -1 : first_nonfinite();
  if (processes_.alone()) return stop_requested;
  const bool mine = stop_requested;
  const Timeline timeline = session_->executor().timeline();
  Json report = {{"stop", mine},
                 {"step_s", record.step_s},
                 {"busy", Json::array()},
                 {"slowness", slowness_},
                 {"updated", record.updated},
                 {"nonfinite", nonfinite_},
                 {"peak_memory", record.peak_memory}};
  for (const double share : busy_share(timeline)) report["busy"].push_back(share * timeline.step);
  Timeline all = timeline;
  bool stop = false;
  std::vector<double> busy(all.devices.size(), 0);
  for (const std::string& text : processes_.gather(report.dump())) {
    const Json one = Json::parse(text);
    stop = stop || one["stop"].get<bool>();
    record.step_s = std::max(record.step_s, one["step_s"].get<double>());
    record.updated = record.updated && one["updated"].get<bool>();
    nonfinite_ = std::max(nonfinite_, one["nonfinite"].get<i64>());
    record.peak_memory = std::max(record.peak_memory, one["peak_memory"].get<double>());
    for (std::size_t d = 0; d < busy.size(); ++d) {
      busy[d] += one["busy"][d].get<double>();
      slowness_[d] = std::max(slowness_[d], one["slowness"][d].get<double>());
    }
  }
  for (double& seconds : busy) seconds /= record.step_s;
  record.attention_wait = waiting(timeline, busy, "attention");
  record.expert_wait = waiting(timeline, busy, "expert");
  record.tokens_per_s = static_cast<double>(job_.train.sequences * job_.train.seq_len) / record.step_s;
  return stop;
}

/// Adds to the record what is noteworthy of the step.
void Trainer::watch_health(StepRecord& record) {
  for (const Straggler& found : stragglers_.add(slowness_)) {
    record.warnings.push_back(
        fmt::format("device {} ({}) is slow: its ops take {:.0f} % longer than those of its peers",
                    found.device, cluster_.device_name(found.device), 100 * (found.over_peers - 1)));
  }
  if (const std::optional<Spike> spike = spikes_.add(record.loss)) {
    record.warnings.push_back(
        fmt::format("the loss jumped to {:.4f}, {:.1f} standard deviations above its running median {:.4f}",
                    spike->loss, spike->sigmas, spike->median));
  }
  if (const std::optional<Bytes> settled = memory_.add(record.peak_memory)) {
    record.warnings.push_back(fmt::format("memory grows: {} resident, {} after {} steps",
                                          format_bytes(record.peak_memory), format_bytes(*settled),
                                          MemoryWatch::kSettled));
  }
}

/// The first parameter on the way of the backward pass, which goes against the model's order, whose gradient
/// on a local device is not finite: its index in the model's order, -1 = none.
i64 Trainer::first_nonfinite() {
  const std::vector<ParamInfo> order = parameters(model_);
  i64 first = -1;
  for (DeviceState* state : session_->states()) {
    for (const LogicalTensor& view : state->store().tensors()) {
      if (!view.grad.defined() || at::isfinite(view.grad).all().item<bool>()) continue;
      const auto found = std::find_if(order.begin(), order.end(),
                                      [&](const ParamInfo& info) { return info.name == view.name; });
      first = std::max(first, static_cast<i64>(found - order.begin()));
    }
  }
  return first;
}

/// Weights and moments of a step that was not finite are those from before it.
void Trainer::check_finite(StepRecord& record) {
  if (record.updated) {
    skipped_in_a_row_ = 0;
    return;
  }
  ++skipped_;
  if (record.overflowed) {
    record.warnings.push_back(fmt::format(
        "fp16 gradients overflowed at loss scale {:.0f}, which is {:.0f} from now on. The step is "
        "skipped, weights stay as they are",
        2 * loss_scale_.value(), loss_scale_.value()));
    return;
  }
  ++skipped_in_a_row_;
  const auto unsigned_nan = [](double x) { return std::isnan(x) ? std::abs(x) : x; };
  std::string what =
      fmt::format("loss {} with gradient norm {}", unsigned_nan(record.loss), unsigned_nan(record.grad_norm));
  if (nonfinite_ >= 0) {
    what += fmt::format(": in the backward pass {} is the first that is not finite",
                        parameters(model_)[static_cast<std::size_t>(nonfinite_)].name);
  }
  const bool skips = job_.train.on_nonfinite == OnNonfinite::kSkip;
  if (skips && skipped_in_a_row_ <= job_.train.max_skipped) {
    record.warnings.push_back(what + ". The step is skipped, weights stay as they are");
    return;
  }
  const std::string hint =
      skips ? fmt::format("This is step {} in a row: train.max_skipped allows {}.", skipped_in_a_row_,
                          job_.train.max_skipped)
            : "The run diverged: lower train.learning_rate, raise train.warmup_steps, or set "
              "train.on_nonfinite: skip.";
  fail<InputError>(fmt::format("step {}", record.step), "{}. {}", what, hint);
}

StepRecord Trainer::replay_step(const std::optional<FoundCheckpoint>& checkpoint, i64 step) {
  i64 done = 0;
  if (checkpoint) {
    load_checkpoint(*checkpoint, model_, session_->states());
    done = checkpoint->info.step;
    next_sequence_ = checkpoint->info.sequences;
    loss_scale_.restore(checkpoint->info.loss_scale);
    if (checkpoint->info.text != text_checksum_ || checkpoint->info.seed != job_.train.seed) {
      fail<InputError>(checkpoint->path.string(),
                       "the training text or the seed is not that of the checkpoint: the step cannot be "
                       "repeated");
    }
  }
  StepRecord record;
  while (done < step) record = train_one(done++);
  return record;
}

/// The last step on all devices.
Timeline Trainer::whole_timeline() const {
  Timeline all = session_->executor().timeline();
  if (processes_.alone()) return all;
  const std::vector<std::string> texts = processes_.gather(to_json(all).dump());
  all.spans.clear();
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const Timeline part = timeline_from_json(Json::parse(texts[r]), fmt::format("rank {}", r));
    all.spans.insert(all.spans.end(), part.spans.begin(), part.spans.end());
    all.step = std::max(all.step, part.step);
  }
  sort_spans(all);
  return all;
}

StepRecord Trainer::train_one(i64 step) {
  const TrainOptions& train = job_.train;
  const Batch batch = train_.batch(next_sequence_, train.sequences);
  next_sequence_ += train.sequences;
  StepInput input;
  input.step = step;
  input.tokens = batch.tokens;
  input.targets = batch.targets;
  input.target_count = batch.target_count;
  input.learning_rate =
      learning_rate_at({train.learning_rate, train.final_share, train.warmup_steps, train.steps}, step);
  input.max_grad_norm = train.max_grad_norm;
  input.loss_scale = loss_scale_.value();
  input.adamw = {train.beta1, train.beta2, train.adam_eps, train.weight_decay};
  const auto begin = std::chrono::steady_clock::now();
  last_ = session_->train_step(input);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const Timeline timeline = session_->executor().timeline();
  StepRecord record;
  record.step = step + 1;
  record.loss = last_.loss;
  record.aux_loss = last_.aux_loss;
  record.grad_norm = last_.grad_norm;
  record.learning_rate = input.learning_rate;
  record.step_s = last_.step;
  record.wall_s = wall.count();
  record.peak_memory = resident_watermark();
  record.tokens_per_s = static_cast<double>(train.sequences * train.seq_len) / last_.step;
  record.expert_max_over_mean = max_over_mean(last_.counts_LE);
  const std::vector<double> busy = busy_share(timeline);
  record.attention_wait = waiting(timeline, busy, "attention");
  record.expert_wait = waiting(timeline, busy, "expert");
  record.updated = last_.updated;
  record.overflowed = loss_scale_.lower_after(!last_.updated && std::isfinite(last_.loss + last_.aux_loss));
  return record;
}

double Trainer::validate() {
  const TrainOptions& train = job_.train;
  double sum = 0, targets = 0;
  // Whole batches of the plan's size, so that the plan's shares serve.
  const i64 batches = std::max<i64>(1, train.validation_sequences / train.sequences);
  for (i64 b = 0; b < batches; ++b) {
    const Batch batch = validation_->batch(b * train.sequences, train.sequences);
    StepInput input;
    input.step = b;
    input.tokens = batch.tokens;
    input.targets = batch.targets;
    input.target_count = batch.target_count;
    sum += session_->evaluate(input).loss;
    targets += static_cast<double>(batch.target_count);
  }
  double all = 0;
  for (const std::string& text : processes_.gather(fmt::format("{}", sum))) all += std::stod(text);
  return all / targets;
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
  const OpCosts costs = price(session_->schedule(), emulated_placement_, model_, cluster_, *truth_,
                              session_->executor().recorded_routing());
  return longest_path(session_->schedule(), costs.seconds).step;
}

}  // namespace hetermoe
