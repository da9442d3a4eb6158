#pragma once
#include <c10/core/Device.h>

#include <map>
#include <string>
#include <vector>

#include "hetermoe/base/types.h"

// GPUs of the memory of a CPU, as a backend of libtorch: devices with current streams, events and an
// allocator that hands memory out again as CUDA's does. Work is done when it is launched, so its values are
// always those of a run in order. What a real GPU may do otherwise is found by clocks: each stream counts its
// operations and knows how far it is behind every other one, by the events that it waits for. An operation
// that touches what another stream wrote, and does not know that this has ended, is a fault, whenever both
// ran.
namespace hetermoe::testing {

inline constexpr i32 kFakeGpus = 8;

/// GPU `index`, below kFakeGpus.
c10::Device fake_gpu(i32 index);

/// Forgets faults, waits and all that ran so far.
void clear_fake_gpus();

/// What real GPUs may do wrong since the last clear: a sentence each, at most 20.
std::vector<std::string> faults_of_fake_gpus();

/// How often the host waited for a GPU since the last clear, by operation.
std::map<std::string, i64> waits_for_fake_gpus();

/// Whether copies from and to all memory of the host need not wait, or those of the pinned allocator alone.
void lock_memory_for_fake_gpus(bool all);

/// What the calling thread launches from here on, for faults.
void name_fake_work(const std::string& name);

}  // namespace hetermoe::testing
