#pragma once
#include <memory>
#include <vector>

#include "hetermoe/cluster/cluster.h"
#include "hetermoe/model/lora.h"
#include "hetermoe/model/unit.h"
#include "hetermoe/plan/plan.h"

// The parameters that must travel so that a running model can go on under another plan. Pure: nothing here
// knows tensors.
namespace hetermoe {

/// [units(model)] devices that hold the unit's parameters under a plan, ascending. Every share and every
/// ownership holds, also one of nothing.
using Holders = std::vector<std::vector<DeviceId>>;
Holders holders(const Plan& plan, const ModelConfig& model);

/// One unit with its optimizer state from a device that holds it to one that will.
struct UnitMove {
  Unit unit;
  DeviceId from = 0, to = 0;
  Bytes bytes = 0;
  Dtype dtype = Dtype::kFp32;  ///< in which its values travel
  bool operator==(const UnitMove&) const = default;
};

struct UnitMoves {
  std::vector<UnitMove> moves;  ///< in the order of units, then of receivers
  std::vector<Unit> lost;       ///< some device needs them, and no remaining device holds them
  Bytes bytes() const;
};

struct MoveOptions {
  std::vector<bool> alive;                     ///< [num_devices] whose memory can be read; empty = all
  std::vector<Unit> frozen;                    ///< units that are not trained, ascending
  std::shared_ptr<const Lora> lora = nullptr;  ///< of the others the adapters alone are. Null = all
};

/// One move for each device that holds a unit after and not before. Replicas are bit-equal, so any old holder
/// serves: one of the receiver's node first, then who has sent the fewest bytes so far, then the lowest
/// number.
UnitMoves moves_between(const Plan& before, const Plan& after, const ModelConfig& model,
                        const Cluster& cluster, const MoveOptions& options = {});

/// Bytes that a giver of this dtype sends for a unit: master values (fp32 for 16-bit parameters, else the
/// values) and both moments; of a frozen unit, which has neither, the values alone. A router's bias travels
/// with its attention part. With adapters these travel with masters and moments, and the matrices like frozen
/// ones.
Bytes bytes_to_move(const ModelConfig& model, const Unit& unit, Dtype giver, bool frozen,
                    const Lora* lora = nullptr);

}  // namespace hetermoe
