#include "hetermoe/sim/memory.h"

// What training of adapters takes in ops.
namespace hetermoe {

/// Matrices of experts as their adapters change them, and the gradients of these, made for one op.
Bytes BufferSizes::changed_by_adapters(const Op& op, DeviceId device) const {
  if (placement_.options().lora == nullptr) return 0;
  const bool makes_gradients = op.phase == Phase::kWeights || (op.phase == Phase::kBackward &&
                                                               !placement_.leaves_weights(op.kind, op.layer));
  Bytes bytes = 0;
  for (const i32 state : placement_.states_on(device, UnitPart::kExperts, op.layer)) {
    if (work_.adapter_params(state) == 0) continue;
    bytes += work_.state_params(state) * (element(device) + (makes_gradients ? gradient(device) : 0));
  }
  return bytes;
}

}  // namespace hetermoe
