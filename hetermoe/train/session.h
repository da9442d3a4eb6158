#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hetermoe/exec/executor.h"
#include "hetermoe/nn/reference.h"

namespace hetermoe {

/// All devices of a plan, ascending.
std::vector<DeviceId> devices_of(const Plan& plan);

/// Everything a run of one plan needs, in one place and in the right order of life: schedules, device states,
/// transport, executors.
///
/// What a plan decides (placement, schedule, executor) is a Pass; states, transport and options outlive it.
class Session {
 public:
  /// Takes this process's order of a schedule's ops and returns that of all processes.
  using AgreeOnOrder = std::function<std::vector<OpId>(const Schedule&, std::vector<OpId>)>;
  struct Options {
    StepOptions step;
    ExecutorOptions executor;
    std::vector<DeviceId> local;       ///< devices of this process; empty = all
    std::vector<c10::Device> where{};  ///< [num_devices] where each one's tensors are; empty = the CPU
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
  const Plan& plan() const { return train_->plan; }
  const Schedule& schedule() const { return train_->schedule; }
  const Placement& placement() const { return train_->placement; }
  void initialize(u64 seed);

  StepResult train_step(const StepInput& input);
  /// Loss sum over targets and counts, without gradients.
  StepResult evaluate(const StepInput& input);

  /// Of local devices.
  std::vector<DeviceState*> states();
  Executor& executor() { return *train_->executor; }
  /// Values (or gradients) of every logical tensor, replicas checked to be bit-equal. Of local devices.
  TensorsByName values();
  TensorsByName gradients();

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
  std::unique_ptr<Pass> make_pass(Plan plan, const StepOptions& options) const;
  void start(Pass& pass);
  TensorsByName collect(bool gradients);

  ModelConfig model_;
  Cluster cluster_;
  Options options_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<DeviceState>> states_;
  std::unique_ptr<Pass> train_, forward_;
};

}  // namespace hetermoe
