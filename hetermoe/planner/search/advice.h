#pragma once
#include <string>

#include "hetermoe/planner/search/pipeline_shapes.h"

namespace hetermoe {

/// Why a model has no room: what it needs at least, and what there is.
struct Shortfall {
  /// State of embedding, attention parts and head on each device with attention, with the optimizer sharded
  /// over all devices.
  Bytes replicated = 0;
  Bytes sequence = 0;  ///< the same and all that one sequence needs there
  Bytes layer = 0;     ///< that one sequence needs in a single layer, or in the head, with what that holds
  Bytes experts = 0;   ///< states of all experts, on all devices together
  Bytes largest = 0;   ///< usable on the largest device
  Bytes total = 0;     ///< usable on all devices
  Bytes states = 0;    ///< of all parameters, each on one device
  Bytes narrow = 0;    ///< the same without masters and with moments of two bytes, where that can be
  /// The pipeline that lacks least; empty = none can be made. Then not all of a model needs to be on a device
  /// with attention.
  std::optional<PipelineMiss> pipeline = {};
  std::string type = {};     ///< of the devices that lack it
  bool more_stages = false;  ///< with more devices there could be one
};
Shortfall shortfall(const Rates& rates);

/// Which part does not fit, how large it is, and what would help: more devices only where they do.
std::string advice(const Shortfall& shortfall);

}  // namespace hetermoe
