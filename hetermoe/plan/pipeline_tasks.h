#pragma once
#include <vector>

#include "hetermoe/plan/plan.h"

// The tasks of the devices of a 1F1B pipeline, one after another. A stage is a run of layers whose attention
// shares are equal. Where stages 0..P-1 come again on the same devices (P ranks), the pipeline is
// interleaved: Megatron-LM, arXiv 2104.04473, section 2.2.
namespace hetermoe {

struct PipelineStages {
  std::vector<i32> first_layer;  ///< [stage]
  i32 ranks = 0;                 ///< stages on devices of their own; stage s is on rank s mod ranks
  i32 size() const { return static_cast<i32>(first_layer.size()); }
  /// Runs of layers that a rank has.
  i32 chunks() const { return size() / ranks; }
};

PipelineStages pipeline_stages(const Group& group);

/// A window of microbatches goes through a stage.
struct PipelineTask {
  bool forward = true;
  i32 stage = 0, window = 0;
};

/// Tasks of a rank in their order. With one chunk the first min(P - rank, windows) forward, then backward and
/// forward in turn. Interleaved: windows go through the chunks in groups of P, and 2 (P - rank - 1) +
/// (chunks - 1) P + 1 tasks come before the first backward.
std::vector<PipelineTask> tasks_of_rank(const PipelineStages& stages, i32 rank, i32 windows, bool backward);

/// The most windows that are forward through the stage and not yet backward.
i64 windows_in_flight(const PipelineStages& stages, i32 stage, i32 windows);

}  // namespace hetermoe
