#pragma once

namespace hetermoe {

/// Element-wise ops are one pass over memory on the CPU in fp32, and on GPUs by kernels of our own where
/// these can be compiled; every other dtype and device goes through ATen. kGeneric forces the ATen form:
/// tests compare them.
enum class Path { kAuto, kGeneric };

}  // namespace hetermoe
