#pragma once
#include <mutex>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/routing/trace_routing.h"
#include "hetermoe/train/session/session.h"

namespace hetermoe {

/// [num_layers][experts] copies that choices make (StepInput::choices); layers without experts are empty.
std::vector<std::vector<double>> copies_of_choices(const std::vector<at::Tensor>& choices, i64 num_experts);
/// Choices as a step of a trace. where: what gave them, for errors.
TraceRouting routing_of_choices(const std::vector<at::Tensor>& choices, const ModelConfig& model,
                                const std::string& where);

/// Finds the choices of a step before it by a forward pass on the same weights.
class RouteProbe : public RouteSink {
 public:
  /// Collective: every process hears the routers of its devices and is told the others'.
  void run(Session& session, StepInput input, const Processes& processes);
  const std::vector<at::Tensor>& choices() const { return choices_; }  ///< of the last run()
  Seconds seconds() const { return seconds_; }                         ///< that it took, by the run's clock

  void take(i32 layer, i64 first, const at::Tensor& topk_TK, const at::Tensor& weights_TK) override;

 private:
  void tell_others(const Processes& processes);

  std::mutex mutex_;
  std::vector<at::Tensor> choices_;  // -1 where no device of this process chose
  Seconds seconds_ = 0;
};

}  // namespace hetermoe
