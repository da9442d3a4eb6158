#pragma once
#include <cstdint>

// Numbers and ids used everywhere. Units are part of the name of each alias; conversions happen where text is
// read or printed, never in between.
namespace hetermoe {

using i32 = std::int32_t;
using i64 = std::int64_t;
using u64 = std::uint64_t;

using Seconds = double;
using Bytes = double;  ///< bytes; a double because expected sizes under uniform routing need not be whole
using Flops = double;  ///< floating-point operations (one multiply-add counts 2)
using BytesPerSecond = double;
using FlopsPerSecond = double;

using DeviceId = i32;  ///< index of a device in its Cluster
using NodeId = i32;    ///< index of a node in its Cluster
/// A device, or the main memory and processor of a node (its host): hosts are numbered after all devices.
using PlaceId = i32;
using ExpertId = i32;  ///< index of an expert within its layer
using OpId = i32;      ///< index of an op in its Schedule = its append number

}  // namespace hetermoe
