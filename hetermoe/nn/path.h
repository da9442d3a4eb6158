#pragma once

namespace hetermoe {

/// Element-wise ops are one pass over memory on the CPU in fp32 and 16 bits; fp64 and every other device go
/// through ATen. kGeneric forces the ATen form: tests compare the two.
enum class Path { kAuto, kGeneric };

}  // namespace hetermoe
