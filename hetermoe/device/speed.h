#pragma once
#include <c10/core/Device.h>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// Measured speeds of a device alone: products of large square matrices and a copy within its memory. 0 = the
/// device cannot do it, or it was not measured.
struct DeviceSpeed {
  double fp32 = 0, bf16 = 0,
         fp16 = 0;  ///< floating-point operations per second, a multiplication with its addition is 2
  double copy = 0;  ///< bytes read and bytes written per second
};

/// Measures each of them for about `budget` seconds after a warm-up; the best run counts. Blocks; on a CPU
/// with the calling thread's number of threads. Memory: below 140 MB on a CPU, 1.2 GB on a GPU. Throws
/// c10::Error for a GPU that does not work.
DeviceSpeed measure_speed(c10::Device device, Seconds budget);

}  // namespace hetermoe
