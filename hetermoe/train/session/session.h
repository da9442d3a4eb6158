#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hetermoe/device/host_copy.h"
#include "hetermoe/exec/executor.h"
#include "hetermoe/nn/reference.h"
#include "hetermoe/schedule/migration_schedule.h"

namespace hetermoe {

/// All devices of a plan, ascending.
std::vector<DeviceId> devices_of(const Plan& plan);
/// And the hosts that keep something of its step, ascending.
std::vector<PlaceId> places_of(const Plan& plan, const Schedule& schedule);

/// Everything a run needs, in one place and in the right order of life: schedules, device states,
/// transport, executors.
///
/// A Pass has the parts that depend on a plan (placement, schedule, executor). States, transport and options
/// outlive it, so that another plan can take over between two steps.
class Session {
 public:
  /// Takes this process's order of a schedule's ops and returns that of all processes.
  using AgreeOnOrder = std::function<std::vector<OpId>(const Schedule&, std::vector<OpId>)>;
  struct Options {
    StepOptions step;
    ExecutorOptions executor;
    std::vector<PlaceId> local;        ///< devices and hosts of this process, under any plan; empty = all
    std::vector<c10::Device> where{};  ///< [num_devices] where each one's tensors are; empty = the CPU
    std::vector<ExpertProducts> expert_products{};  ///< [num_devices]; empty = kAuto
    /// Transfers are launched in the order in which they would start by this cost, for transports that need
    /// one order; null = as the schedule lists them.
    const CostModel* launch_by = nullptr;
    /// Makes that order the same in all processes; called by the constructor for each schedule.
    AgreeOnOrder agree_on_order{};
  };
  /// Makes the transport of a session: of a training step, which has all that others have.
  using MakeTransport = std::function<std::unique_ptr<Transport>(const Schedule&)>;
  /// Without make_transport all devices are threads of this process.
  Session(ModelConfig model, Cluster cluster, Plan plan, Options options,
          const MakeTransport& make_transport = {});

  const ModelConfig& model() const { return model_; }
  const Cluster& cluster() const { return cluster_; }
  const Plan& plan() const { return passes_.train->plan; }
  const Schedule& schedule() const { return passes_.train->schedule; }
  const Placement& placement() const { return passes_.train->placement; }
  void initialize(u64 seed);

  /// The adapters that are trained; null = there are none.
  const Lora* lora() const { return options_.step.lora.get(); }

  StepResult train_step(const StepInput& input);
  /// The two halves of train_step(). Where may_overlap(), the next step may begin before one has ended; all
  /// that is not a training step, and all that looks at parameters, comes when none is under way.
  void begin_step(const StepInput& input) { executor().begin(input); }
  StepResult end_step() { return executor().end(); }
  bool may_overlap() const { return passes_.train->executor->may_overlap(); }
  /// Loss sum over targets and counts, without gradients.
  StepResult evaluate(const StepInput& input);

  /// States of local devices.
  std::vector<DeviceState*> states();
  /// Devices of this process, under any plan; empty = all.
  const std::vector<DeviceId>& local() const { return options_.local; }
  /// Sentences about how this session runs, for the user.
  std::vector<std::string> notes() const;
  /// Transfers are launched in an order by cost: a change of plan needs one, too.
  bool launches_in_order() const { return options_.launch_by != nullptr; }
  Executor& executor() { return *passes_.train->executor; }
  /// Values (or gradients) of every logical tensor of local devices; throws unless replicas are bit-equal.
  TensorsByName values();
  TensorsByName gradients();

  /// The moves of a change of plan.
  struct Change {
    Migration migration;
    Timeline executed;  ///< of its ops on local devices, in real time
  };
  /// Goes on under another plan over the same cluster, between two steps and in all processes: what its
  /// devices lack moves to them, over the same transport. The plan must fit, and no device may need another
  /// dtype than before (train/session/changes.h). `executor` and `launch_by` take the place of those of the
  /// options. An error of the plan leaves the session as it was; after one of the transport it can only be
  /// destroyed.
  Change change_plan(Plan plan, ExecutorOptions executor, const CostModel* launch_by = nullptr);

 private:
  struct Pass {
    Pass(const Session& session, Plan its_plan, const StepOptions& options);
    Plan plan;  ///< first: the placement refers to it
    Placement placement;
    Schedule schedule;
    RunContext context;
    std::vector<OpId> launch_order;
    std::unique_ptr<Executor> executor;
  };
  /// The passes of a plan: training steps, and steps forward only.
  struct Passes {
    std::unique_ptr<Pass> train, forward;
  };
  Passes make_passes(Plan plan) const;
  void order_launches(Pass& pass, const CostModel* by) const;
  /// Of what gradients lose on their way; once the states lie as the plan says.
  void keep_lost();
  void start(Pass& pass);
  void add_states(const Pass& pass, const Schedule& placed);
  Timeline migrate(const Migration& migration, const Pass& next);
  void adopt(Passes next);
  TensorsByName collect(bool gradients);

  ModelConfig model_;
  Cluster cluster_;
  Options options_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<DeviceState>> states_;
  std::vector<LockedMemory> locked_;  ///< of hosts, after their states
  Passes passes_;
  i64 num_changes_ = 0;
};

}  // namespace hetermoe
