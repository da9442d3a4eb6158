#include "hetermoe/planner/search/narrow_wires.h"

#include "hetermoe/planner/search/good_sequences.h"

namespace hetermoe {
namespace {

constexpr double kWorthAsking = 1.05;  ///< tokens/s over those of the plan

}  // namespace

std::vector<NarrowWire> narrow_wires(const PlanRequest& request, const Candidate& best, i64 max_visits) {
  std::vector<NarrowWire> out;
  const auto try_flag = [&](const char* flag, const char* what, auto change) {
    Plan plan = best.plan;
    change(plan);
    const std::optional<Prediction> prediction = predict_like(request, best, plan, max_visits);
    if (prediction && prediction->tokens_per_s >= kWorthAsking * best.prediction.tokens_per_s)
      out.push_back({flag, what, prediction->tokens_per_s});
  };
  if (bytes_of(request.dtype) != 2) return out;
  if (!request.wire && request.model.num_moe_layers() > 0)
    try_flag("--wire fp8_row", "rows of experts in 8 bits",
             [](Plan& plan) { plan.wire_forward = plan.wire_backward = Wire::kFp8Row; });
  if (request.wire_reduce == WireReduce::kFp32 && bytes_of(grad_dtype_of(best.plan, 0)) == 4)
    try_flag("--wire-reduce bf16", "gradients in 16 bits",
             [](Plan& plan) { plan.wire_reduce = WireReduce::kBf16; });
  return out;
}

}  // namespace hetermoe
