#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/planner/estimate/stage_cost.h"

namespace hetermoe {

/// Equal pipelines in a few numbers.
struct PipelineShape {
  PipelineOrder order;
  std::vector<StageDevices> stages;
  std::vector<i64> layers;              ///< [stage]
  std::vector<RunRecompute> recompute;  ///< [stage]
  Seconds estimate = 0;                 ///< of the step
  i64 groups = 1;                       ///< of this shape
  i64 sequences = 0;                    ///< of all of them together
  std::vector<PipelineShape> rest;      ///< a group more, on devices that they leave; none or one
};

/// The pipeline that lacks least memory, where none has room.
struct PipelineMiss {
  i64 stages = 0, groups = 1;
  std::size_t cls = 0;  ///< of the devices that lack it
  Bytes need = 0, usable = 0;
};

struct PipelineRanking {
  std::vector<PipelineShape> shapes;  ///< that have room, the fastest by estimate first
  std::optional<PipelineMiss> miss;   ///< where there are none
  i64 num_weighed = 0;
};

/// The pipelines of pipeline_cuts.h, with layers split so that the slowest stage is as fast as memory allows.
/// Only those that may be nearly as fast as the fastest are split; none slower than `most` by bound.
PipelineRanking rank_pipelines(const Rates& rates, Seconds most);
/// The pipeline that lacks least memory. Empty when no pipeline can be made at all.
std::optional<PipelineMiss> nearest_pipeline(const Rates& rates);
Plan make_pipeline(const Rates& rates, const PipelineShape& shape);

}  // namespace hetermoe
