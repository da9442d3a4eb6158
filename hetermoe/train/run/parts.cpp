#include "hetermoe/train/run/parts.h"

namespace hetermoe {

RunParts make_parts(RunState& run) {
  // Who gives choices (replay, probe) comes before the balancer, which orders sequences, and that before who
  // collects them. A checkpoint holds what all parts before it have learned of the step.
  constexpr std::unique_ptr<RunPart> (*kInOrder[])(RunState&) = {
      pace_part,     changes_part,    replay_part,   probe_part,           router_bias_part, loss_scale_part,
      balancer_part, finite_part,     health_part,   routing_figures_part, picture_part,     validation_part,
      outcome_part,  checkpoint_part, recorder_part, routes_part,          export_part,      presence_part};
  RunParts out;
  for (const auto make : kInOrder) {
    if (std::unique_ptr<RunPart> part = make(run)) out.push_back(std::move(part));
  }
  return out;
}

}  // namespace hetermoe
