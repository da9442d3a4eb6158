#pragma once
#include "hetermoe/kernels/language.h"

namespace hetermoe::kernels {

/// act = weight * silu(gate) * up. Rows [gate columns, up columns]; a block goes through rows.
struct SwigluForward {
  const void* gate_up;  ///< [copies, 2 * width]
  const void* weights;  ///< [copies] wide, or null for 1
  void* act;            ///< [copies, width]
  i64 copies, width;
  i32 packed;  ///< rows are whole packs of 16 bytes
};

/// Its gradients. dgate_up may be gate_up, and act may be dact.
struct SwigluBackward {
  const void* gate_up;
  const void* weights;  ///< or null
  const void* dact;     ///< [copies, width]
  void* dgate_up;
  void* act;       ///< the forward's result once more, or null
  void* dweights;  ///< [copies] wide; null without weights
  i64 copies, width;
  i32 packed;
};

}  // namespace hetermoe::kernels
