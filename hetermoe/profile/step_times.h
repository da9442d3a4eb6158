#pragma once
#include <vector>

#include "hetermoe/profile/profiler.h"

namespace hetermoe {

/// Times of ops within whole steps of the executor on one device, with recomputation and without, for every
/// sequence length with every number of sequences. Beside the ops there is what stands between them: norm,
/// exchanges of a device with itself, and the time in which no op runs. Entries have no memory figures. The
/// head's entry holds the merge that it starts with. Not for use within another session on the same GPU.
std::vector<ProfileEntry> measure_steps(const ModelConfig& model, const ProfileOptions& options,
                                        c10::Device device, ExpertProducts products = ExpertProducts::kAuto);

}  // namespace hetermoe
