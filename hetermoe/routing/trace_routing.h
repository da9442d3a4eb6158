#pragma once
#include <memory>
#include <string>
#include <vector>

#include "hetermoe/placement/routing_load.h"
#include "hetermoe/routing/exchange_split.h"
#include "hetermoe/routing/trace.h"

namespace hetermoe {

/// The load of a recorded step under any plan: rows and copies as the executor would send them.
class TraceRouting : public RoutingLoad {
 public:
  /// `where` names the trace in errors. Throws InputError when the model has another number of experts or
  /// other layers than the trace, or the trace has counts only.
  TraceRouting(TraceHeader header, TraceStep step, const ModelConfig& model, std::string where);
  /// Throws InputError when the plan's step has more sequences than the trace, or of another length.
  ExchangeLoad exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                        i32 chunk) const override;
  bool is_uniform() const override { return false; }
  /// [sources][experts] copies of an exchange.
  SourceCopies copies(const Placement& placement, i32 group, i32 layer, i32 microbatch, i32 chunk) const;
  /// As exchange(), with owners of each source's copies: [sources], or one table for all.
  ExchangeLoad exchange_by(std::span<const OwnerTable> of_source, const Placement& placement, i32 group,
                           i32 layer, i32 microbatch, i32 chunk) const;

  const TraceHeader& header() const { return header_; }
  const TraceStep& step() const { return step_; }
  /// Throws as exchange() does, before any work is done.
  void check_plan(const Plan& plan) const;

 private:
  using Ids = std::span<const std::uint16_t>;
  /// [sources] choices of their tokens in an exchange.
  std::vector<Ids> ids_of(const Placement& placement, i32 group, i32 layer, i32 microbatch, i32 chunk) const;
  void add_source(ExchangeLoad& load, const OwnerTable& owners, Ids ids, bool dedup) const;

  TraceHeader header_;
  TraceStep step_;
  std::string where_;
};

/// Throws InputError that names trace and model when they differ in layers with experts, in the number of
/// experts or in top-k.
void check_trace_model(const TraceHeader& header, const ModelConfig& model, const std::string& where);
/// A note if a trace that fits a model has another model's name, because a rollout engine may use its own
/// names. Empty: it has the same name, or none.
std::string note_of_model(const TraceHeader& header, const ModelConfig& model);

/// Number, within the step, of the first sequence of a microbatch.
i64 first_sequence(const Plan& plan, i32 group, i32 microbatch);

/// Indices of the model's layers with experts.
std::vector<i64> layers_with_experts(const ModelConfig& model);

}  // namespace hetermoe
