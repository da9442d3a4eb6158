#pragma once

namespace hetermoe {

/// Element-wise ops are one pass over memory on the CPU in fp32; every other dtype and device goes through
/// ATen. kGeneric forces the ATen form: tests compare the two.
enum class Path { kAuto, kGeneric };

}  // namespace hetermoe
