#pragma once

namespace hetermoe {

/// Element-wise ops are one pass over memory on a CPU in fp32 and 16 bits, and on GPUs by kernels of our own
/// where these can be compiled; all else goes through ATen. kGeneric forces the ATen form: tests compare
/// them.
enum class Path { kAuto, kGeneric };

}  // namespace hetermoe
