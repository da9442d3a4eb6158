#pragma once
#include <string>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/exec/executor.h"

namespace hetermoe {

/// Figures of a finished step that only this rank has.
struct StepReport {
  i32 stop = 0;         ///< this rank was asked to end the run: 0 = no, else by this signal, 1 = without one
  bool updated = true;  ///< false: loss or gradients were not finite, the step was skipped
  std::vector<double> values;    ///< of the metrics that are merged (report/metrics.h)
  std::vector<Seconds> busy;     ///< [num_devices] time in which the compute lane works, 0 = elsewhere
  std::vector<double> slowness;  ///< [num_devices] see health.h, 0 = elsewhere
  std::vector<Flops> flops;      ///< [num_devices] of the model, 0 = elsewhere
  std::vector<Bytes> memory;     ///< [num_devices] see StepRecord, 0 = elsewhere or not counted
  /// [num_devices][num_layers] computed by the device's experts, empty = elsewhere
  std::vector<std::vector<double>> copies;
  bool picture = false;  ///< rank 0 wants the timeline of all ranks
};

Json to_json(const StepReport& report);
StepReport step_report_from(const Json& json);

/// Fills busy and slowness from the last step of this process's devices.
void add_device_work(StepReport& report, const Executor& executor);

/// The step as all ranks together saw it: the longest time, the most memory, stop when one was asked to.
StepReport merged(const std::vector<StepReport>& reports);

/// The merged reports of all ranks; collective.
StepReport gather_reports(const Processes& processes, const StepReport& mine);

/// Share of the step in which the compute lanes of devices with this role are idle. busy: [num_devices]
/// shares.
double waiting(const Timeline& timeline, const std::vector<double>& busy, const std::string& role);

}  // namespace hetermoe
