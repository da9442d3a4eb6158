#pragma once
#include "hetermoe/train/run/run_state.h"

// One function for each part of a run (run_part.h), in the file of its name. Null: the run has no such part.
namespace hetermoe {

std::unique_ptr<RunPart> pace_part(RunState& run);     ///< the paced clock, and how long steps take under it
std::unique_ptr<RunPart> changes_part(RunState& run);  ///< plans of train.changes
std::unique_ptr<RunPart> replay_part(RunState& run);   ///< routing.replay
std::unique_ptr<RunPart> probe_part(RunState& run);    ///< balancer.probe
std::unique_ptr<RunPart> router_bias_part(RunState& run);  ///< train.router_bias_rate
std::unique_ptr<RunPart> loss_scale_part(RunState& run);   ///< train.loss_scale
std::unique_ptr<RunPart> balancer_part(RunState& run);     ///< owners of experts, and the order of sequences
std::unique_ptr<RunPart> finite_part(RunState& run);       ///< steps whose loss or gradients are not finite
std::unique_ptr<RunPart> health_part(
    RunState& run);  ///< stragglers, jumps of the loss, collapses of routing, memory that grows
std::unique_ptr<RunPart> routing_figures_part(
    RunState& run);                                       ///< how even the routing is under the plan in force
std::unique_ptr<RunPart> picture_part(RunState& run);     ///< the timeline of a step on all devices
std::unique_ptr<RunPart> validation_part(RunState& run);  ///< the loss of the validation text
std::unique_ptr<RunPart> outcome_part(RunState& run);  ///< what the run keeps of the step and tells its hooks
std::unique_ptr<RunPart> checkpoint_part(RunState& run);  ///< checkpoints
std::unique_ptr<RunPart> recorder_part(RunState& run);    ///< routing.record
std::unique_ptr<RunPart> routes_part(RunState& run);      ///< collects choices for those who read them
std::unique_ptr<RunPart> export_part(RunState& run);      ///< train.save_hf
std::unique_ptr<RunPart> presence_part(RunState& run);    ///< which ranks are there

/// All parts of a run, in the order in which the loop calls them. Collective. Throws what is wrong with a
/// part.
RunParts make_parts(RunState& run);

}  // namespace hetermoe
