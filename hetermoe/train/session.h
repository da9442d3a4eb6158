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
class Session {
 public:
  struct Options {
    StepOptions step;
    ExecutorOptions executor;
    std::vector<DeviceId> local;       ///< devices of this process; empty = all
    std::vector<c10::Device> where{};  ///< [num_devices] where each one's tensors are; empty = the CPU
    /// Transfers are launched in the order in which they would start by this cost, for transports that need
    /// one order; null = as the schedule lists them. Must be the same in all processes.
    const CostModel* launch_by = nullptr;
  };
  /// Makes the transport of a session: of a training step, which has all that others have.
  using MakeTransport = std::function<std::unique_ptr<Transport>(const Schedule&)>;
  /// Without make_transport all devices are threads of this process.
  Session(ModelConfig model, Cluster cluster, Plan plan, Options options,
          const MakeTransport& make_transport = {});

  const ModelConfig& model() const { return model_; }
  const Cluster& cluster() const { return cluster_; }
  const Plan& plan() const { return plan_; }
  const Schedule& schedule() const { return train_.schedule; }
  const Placement& placement() const { return train_.placement; }
  void initialize(u64 seed);

  StepResult train_step(const StepInput& input);
  /// Loss sum over targets and counts, without gradients.
  StepResult evaluate(const StepInput& input);

  /// Of local devices.
  std::vector<DeviceState*> states();
  Executor& executor() { return *train_.executor; }
  /// Values (or gradients) of every logical tensor, replicas checked to be bit-equal. Of local devices.
  TensorsByName values();
  TensorsByName gradients();

 private:
  struct Pass {
    Pass(const Session& session, const StepOptions& options);
    Placement placement;
    Schedule schedule;
    RunContext context;
    std::unique_ptr<Executor> executor;
  };
  Pass& forward_pass();
  void start(Pass& pass);
  TensorsByName collect(bool gradients);

  ModelConfig model_;
  Cluster cluster_;
  Plan plan_;
  Options options_;
  std::unique_ptr<Transport> transport_;
  Pass train_;
  std::vector<std::unique_ptr<DeviceState>> states_;
  std::unique_ptr<Pass> forward_;
};

}  // namespace hetermoe
