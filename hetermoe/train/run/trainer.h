#pragma once
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/data/condition.h"
#include "hetermoe/data/sampler.h"
#include "hetermoe/routing/plan_figures.h"
#include "hetermoe/sim/simulated_step.h"
#include "hetermoe/train/checkpoint/checkpoint.h"
#include "hetermoe/train/job/job.h"
#include "hetermoe/train/run/health.h"
#include "hetermoe/train/run/layer_loads.h"
#include "hetermoe/train/run/route_probe.h"
#include "hetermoe/train/run/route_recorder.h"
#include "hetermoe/train/run/route_replay.h"
#include "hetermoe/train/run/step_balancer.h"
#include "hetermoe/train/run/step_report.h"
#include "hetermoe/train/session/changes.h"
#include "hetermoe/train/session/presence.h"
#include "hetermoe/train/session/priced_plan.h"
#include "hetermoe/train/session/session.h"
#include "hetermoe/train/session/start.h"
#include "hetermoe/weights/hf_export.h"

namespace hetermoe {

/// [num_layers][experts]
using LayerCopies = std::vector<std::vector<double>>;
LayerCopies copies_of(const at::Tensor& counts_LE);

/// Set by Ctrl-C (and by tests); runs end after the current step, with their results written.
extern std::atomic<bool> stop_requested;
/// Makes kStopSignals set stop_requested; a second SIGINT ends the process at once.
void stop_on_interrupt();
/// The signal that set stop_requested, 1 when none did; 0 = nobody asked to stop.
i32 stop_asked();

/// Loss of the validation text, in nats per token.
struct Validation {
  struct OfSource {
    std::string name;
    double loss = 0;
  };
  i64 step = 0;
  double loss = 0;                ///< of all sources by their shares
  std::vector<OfSource> sources;  ///< where there are several
};

/// One log line.
struct StepRecord {
  i64 step = 0;  ///< 1 = the first
  double loss = 0, aux_loss = 0, grad_norm = 0, learning_rate = 0;
  double tokens_per_s = 0;                 ///< in the clock's seconds
  double expert_max_over_mean = 0;         ///< worst layer
  std::vector<LayerLoad> loads;            ///< of layers with experts
  i64 top_k = 0;                           ///< experts that a token sees, 0 = there are none
  StepRouting routing;                     ///< under the plan in force, means over layers
  u64 tokens_hash = 0;                     ///< of tokens and targets of the whole step
  std::optional<double> replayed_choices;  ///< share of the choices that came from routing.replay
  double attention_wait = 0,
         expert_wait = 0;  ///< share of the step in which a role's compute lanes do nothing
  Seconds step_s = 0;      ///< in the clock's seconds
  Seconds wall_s = 0;
  Bytes sent = 0, sent_between_nodes = 0;  ///< of tensors, between places of the plan
  Bytes peak_memory = 0;                   ///< resident so far, of the largest process
  Bytes gpu_peak = 0;                      ///< most bytes of tensors so far on the fullest GPU, 0 on CPUs
  bool overflowed = false;                 ///< skipped for fp16 gradients, and the loss scale was lowered
  bool updated = true;                     ///< false: loss or gradients were not finite, the step was skipped
  std::vector<std::string> warnings;       ///< what the run noticed of its own health in this step
  std::map<std::string, double> mfu;  ///< model FLOPs utilisation by type of device; empty = nobody knows
  /// By name of device: the most bytes of tensors of the step, on a GPU of the run so far. Only where they
  /// are counted: on GPUs, and on CPUs in `train` under the virtual clock.
  std::map<std::string, Bytes> memory;
  bool owners_held = false;              ///< what the balancer chose before this step was not taken
  std::vector<std::string> marks;        ///< what changed before this step: another plan, more experts
  std::optional<Validation> validation;  ///< after this step
};

/// How well a paced run kept the pace of the emulated cluster.
struct PaceReport {
  double scale = 0;      ///< real seconds per emulated second
  double cpu_share = 0;  ///< processor time over wall time and cores
  double lag = 0;        ///< median step over the simulation of what it routed, minus 1
  bool kept_up = true;
};

/// A plan that took over.
struct PlanTakeover {
  i64 step = 0;             ///< the first that it computed, 1 = the first of the run
  std::string plan;         ///< its name
  i64 moves = 0;            ///< units that went to another device
  Bytes bytes = 0;          ///< of them, as predicted
  Seconds simulated_s = 0;  ///< of the moves on the cluster
  Seconds executed_s = 0;   ///< of the whole change, in real time
  Timeline simulated;       ///< of the moves
};

struct TrainOutcome {
  i64 first_step = 0;              ///< steps that an earlier run had done: it went on from its checkpoint
  std::vector<std::string> notes;  ///< what on_note heard
  std::vector<StepRecord> records;
  std::vector<PlanTakeover> changes;
  /// [num_layers][experts] copies of the steps of this run; rows of dense layers are zero.
  std::vector<std::vector<double>> expert_copies;
  i64 copies_from = 1;         ///< the step that they begin with: experts may have been fewer before it
  double unigram_entropy = 0;  ///< of the validation text, nats; of several sources by their shares
  std::vector<std::string> warnings;  ///< of all steps, "step 12: ..."
  i64 skipped_steps = 0;
  i32 stopped_by = 0;                 ///< the signal that ended the run before its last step, 0 = none did
  Seconds executed_step = 0;          ///< median over the timed steps, in the clock's seconds
  Seconds replayed_step = 0;          ///< emulated clocks: median simulation of what those steps routed
  double executed_over_replayed = 0;  ///< median over the same steps
  Timeline executed;                  ///< of the last step
  std::optional<PaceReport> pace;
  std::vector<Validation> validations() const;  ///< of all records
};

/// What a step did on all devices, and what experts have computed up to it.
struct StepPicture {
  i64 first_step = 0, last_step = 0;  ///< of expert_copies
  Timeline executed;                  ///< of the last step
  std::vector<std::vector<double>> expert_copies;
};

/// What Trainer::record_routes recorded.
struct RecordedRoutes {
  i64 steps_done = 0;  ///< of the run whose weights routed, 0 = it had not begun
  i64 first_sequence = 0;
  i64 steps = 0;
  double loss = 0;  ///< cross entropy, mean over counted targets of all
};

/// The prediction for a plan: even routing, contention included.
struct PredictedStep {
  Timeline timeline;
  Seconds step = 0;
  std::vector<MemoryPeak> memory;  ///< [place] in the dtypes that the run computes in
};

/// Who hears of a run while it goes on. Each may be empty.
struct RunHooks {
  std::function<void(const StepRecord&)> on_step{};
  /// What the user should know, at once: what of checkpoints and of a changed job before the first step.
  std::function<void(const std::string&)> on_note{};
  /// Before the first step, with the number of steps that an earlier run had done.
  std::function<void(i64)> on_begin{};
  /// Rank 0 is asked after each step whether it wants the picture of it, which takes the others' part.
  std::function<bool()> wants_picture{};
  std::function<void(const StepPicture&)> on_picture{};  ///< after on_step
};

/// Whether a run keeps and uses the checkpoints of its output folder.
enum class Checkpoints { kOff, kOn };

/// Runs one job: with one plan, or with one after another as train.changes says.
class Trainer {
 public:
  /// With several processes each runs its part of the plan's devices, and all know the results.
  Trainer(const Job& job, ModelConfig model, Cluster cluster, Plan plan, const Dataset& data,
          const Processes& processes, Checkpoints checkpoints = Checkpoints::kOff);

  /// Of the plan in force.
  PredictedStep predict() const;
  /// Trains job.train.steps steps, then `timed_steps` more under the paced clock when asked.
  TrainOutcome run(const RunHooks& hooks, i64 timed_steps = 0);
  TrainOutcome run(std::function<void(const StepRecord&)> on_step = {}, i64 timed_steps = 0) {
    return run(RunHooks{.on_step = std::move(on_step)}, timed_steps);
  }

  /// run() ends after this step, of a job that has more: another trainer goes on from its checkpoint.
  void end_after(i64 step) { end_ = step; }
  /// The first step of run() gets this mark.
  void mark_first(const std::string& text) { marks_.push_back(text); }

  /// Trains from a checkpoint, or from the start when there is none, up to and including step `step` (1 = the
  /// first) and returns that step. Writes nothing.
  StepRecord replay_step(const std::optional<FoundCheckpoint>& checkpoint, i64 step);
  /// Writes the trace routing.record of the next `steps` batches by forward passes: with the weights of the
  /// checkpoint, or those of the start when there is none. Nothing is trained.
  RecordedRoutes record_routes(const std::optional<FoundCheckpoint>& checkpoint, i64 steps,
                               TextCondition condition = TextCondition::kText);

  Session& session() { return *session_; }
  const Plan& plan() const { return priced_->plan; }  ///< in force
  const Cluster& cluster() const { return cluster_; }

 private:
  struct StepTimes;
  /// A step that has not ended.
  struct BegunStep {
    i64 step = 0;
    double learning_rate = 0;
    u64 tokens_hash = 0;
    std::chrono::steady_clock::time_point at;
  };
  bool saves() const { return writer_ && job_.checkpoint.every > 0; }
  void prepare_validation(const Dataset& data);
  void prepare_weights();
  void check_save();
  std::filesystem::path export_folder(i64 steps_done) const;
  void start_weights(TrainOutcome& out);
  at::ScalarType saved_dtype(const LogicalTensor& tensor) const;
  std::vector<OutTensor> weights_to_save();
  void save_adapters(const std::filesystem::path& folder);
  void save_weights(const std::filesystem::path& target, i64 steps_done, TrainOutcome& out);
  void name_run(TrainOutcome& out);
  void resume(TrainOutcome& out);
  void tell_changes(const CheckpointInfo& info, TrainOutcome& out);
  void tell(const std::string& text, TrainOutcome& out);
  SessionParts parts_with(const PricedPlan& priced) const;
  Plan plan_after(const CheckpointInfo& info) const;
  PlanTakeover go_over_to(const Plan& plan);
  bool change_plan_before(i64 step, TrainOutcome& out);
  bool balance_before(i64 step, TrainOutcome& out);
  void tell_guard(TrainOutcome& out);
  bool collects(i64 step) const;
  std::vector<i32> domains_from(i64 first) const;
  void use_routes(i64 step);
  void tell_routes(TrainOutcome& out);
  StepInput in_order(StepInput input);
  void take_over(const Plan& plan, i64 step, const std::string& name, TrainOutcome& out);
  Batch batch_of(TextCondition condition, i64 first) const;
  RecordedText recorded_text(TextCondition condition) const;
  StepReport report_step(const StepRecord& record);
  StepRecord finish_step(StepRecord record, i32& stop);
  std::vector<Bytes> measured_memory() const;
  void note(const StepRecord& record, StepTimes& times, TrainOutcome& out);
  void watch_health(StepRecord& record);
  void check_finite(StepRecord& record);
  std::string first_nonfinite();
  Timeline whole_timeline() const;
  void save(i64 steps_done);
  StepRecord train_one(i64 step);
  void begin_one(i64 step);
  StepRecord end_one();
  bool validates_after(i64 step) const;
  bool saves_after(i64 step) const;
  bool exports_after(i64 step) const;
  bool goes_on_after(i64 step, i64 done) const;
  void tell_staleness(TrainOutcome& out);
  i64 go_back_to(const std::optional<FoundCheckpoint>& checkpoint);
  StepInput input_of(const Sampler& sampler, i64 step, i64 first) const;
  Validation validate(i64 step);
  double validation_loss(const Sampler& sampler);
  void set_paced(PaceReport& pace, Seconds wall);
  Seconds replay();

  const Job& job_;
  const Processes& processes_;
  ModelConfig model_;
  Cluster cluster_;
  std::vector<PlannedChange> changes_;
  std::vector<std::string> domains_;  ///< of the text; none where it has one source
  std::vector<std::uint32_t> domain_of_source_;
  Sampler train_;
  /// A source whose validation text is looked at.
  struct ValidationSource {
    std::string name;
    std::uint32_t domain;
    double share;
    Sampler sampler;
  };
  std::vector<ValidationSource> validation_;  ///< empty = no validation
  double unigram_entropy_ = 0;
  ProfileSet profiles_;
  Cluster nominal_cluster_;             ///< no device is slower than its type
  std::unique_ptr<MemoryMeter> meter_;  ///< where the run counts tensors
  std::unique_ptr<SentBytes> sent_;     ///< counts what travels
  std::unique_ptr<PricedPlan> priced_;
  const Plan first_plan_;
  u64 text_checksum_;
  const std::string text_name_;  ///< see name_of_text()
  std::unique_ptr<Session> session_;
  std::optional<HfWeights> source_;  ///< train.init_from
  std::optional<CheckpointWriter> writer_;
  std::optional<Presence> presence_;
  std::string attempt_;  ///< names this start among those that write the same folder
  std::string run_;      ///< of checkpoints: that of the start from which all others went on
  std::unique_ptr<RouteCollector> routes_;     ///< where somebody goes by what routers chose in a step
  std::unique_ptr<RouteRecorder> recorder_;    ///< of the run that goes on, where it records
  std::unique_ptr<StepBalancer> balancer_;     ///< where owners of experts change between steps
  std::unique_ptr<RouteProbe> route_probe_;    ///< where a forward pass finds what the step chooses
  i64 looks_ = 0, held_ = 0;                   ///< at owners; and how often the guard left them
  bool held_before_ = false;                   ///< before the step that comes
  std::string balancer_kept_for_;              ///< why it left owners as they are, as told last
  std::unique_ptr<RouteReplay> route_replay_;  ///< where choices are replayed
  std::optional<RoutingWatch> routing_watch_;  ///< of the plan in force, made at the first step
  LossScale loss_scale_;
  StragglerWatch stragglers_;
  SpikeWatch spikes_;
  MemoryWatch memory_;
  CollapseWatch collapses_;
  std::vector<double> slowness_;    ///< [num_devices] of the last step, see health.h
  std::vector<std::string> marks_;  ///< of the step that comes
  bool pictured_ = false;           ///< rank 0 wants the picture of the last step
  i64 end_ = 0;                     ///< steps of run()
  i64 skipped_ = 0, skipped_in_a_row_ = 0;
  i64 forgotten_ = 0;  ///< see CheckpointInfo
  i64 saved_step_ = 0;
  i64 next_sequence_ = 0;  ///< index of the first training sequence of the next step
  std::deque<BegunStep> begun_;
  std::chrono::steady_clock::time_point ended_at_;  ///< of the last step
  StepResult last_;
  RunHooks hooks_;  ///< of the run that goes on
};

}  // namespace hetermoe
