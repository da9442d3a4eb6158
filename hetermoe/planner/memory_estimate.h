#pragma once
#include <string>
#include <vector>

#include "hetermoe/cluster/cluster.h"
#include "hetermoe/model/model_config.h"
#include "hetermoe/plan/plan.h"

namespace hetermoe {

inline constexpr Bytes kGiB = 1024.0 * 1024 * 1024;

/// Bytes that each device needs for a plan, in closed form: states of the parameters it holds, what it keeps
/// of the microbatches in flight, the working set of its largest op, transfer buffers. An upper bound that
/// costs microseconds, for rejecting plans before they are built.
/// times: [group] how many groups are like it, each with devices of its own that the plan does not list;
/// empty = the plan lists all.
std::vector<Bytes> estimate_memory(const Plan& plan, const ModelConfig& model,
                                   const std::vector<i64>& times = {});

/// What an op keeps for backward of each microbatch in flight, and what it needs while it runs, by the same
/// bound.
struct OpMemory {
  Bytes saved = 0, largest = 0;
};
/// figures: a plan of which sequence length, recomputation, chunks and window count. element: bytes of a
/// number. in_wave: microbatches that go through a layer together, which matters where they are sent again.
OpMemory attention_memory(const Plan& figures, const ModelConfig& model, i64 layer, double tokens,
                          Bytes element, double in_wave);
/// copies: (row, expert) pairs of a microbatch that a device computes.
OpMemory experts_memory(const Plan& figures, const ModelConfig& model, double copies, Bytes element,
                        double in_wave);
OpMemory head_memory(const ModelConfig& model, double tokens, Bytes element);

/// What tensors may use of a device: the driver's context, the communication library and framework take the
/// reserve, fragments of the allocator the rest.
inline constexpr Bytes kReservedMemory = 1.0 * kGiB;
inline constexpr double kUsableMemory = 0.97;
Bytes usable_memory(const DeviceType& type);

/// The device that a plan overfills most: "device V100#6 (16 GiB, 14.5 usable) needs 18.2 GiB"; empty =
/// the plan fits.
std::string overfilled_device(const std::vector<Bytes>& memory, const Cluster& cluster);

}  // namespace hetermoe
