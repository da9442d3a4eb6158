#pragma once
#include <functional>
#include <string>
#include <vector>

#include "hetermoe/cost/profile_file.h"
#include "hetermoe/profile/measure.h"

namespace hetermoe {

/// Measurements to make, and how. Sizes are measured in every combination that belongs together.
struct ProfileOptions {
  std::string device = "cpu";  ///< as libtorch names it: cpu, cuda, cuda:1
  Dtype dtype = Dtype::kFp32;
  i64 threads = 1;  ///< of an op on a CPU; a compute lane has one by default
  std::vector<i64> seq_lens = {64, 256, 1024};
  std::vector<i64> sequences = {1, 4};
  std::vector<i64> experts;  ///< computed together; empty = 1, a quarter and all of a layer's
  std::vector<i64> rows_per_expert = {16, 128, 1024};
  bool steps = true;  ///< measure whole steps, too
  TimingOptions timing;
  template <class V>
  void fields(V& v) {
    v("device", device, "device to measure: cpu, cuda, cuda:1");
    v("dtype", dtype, "compute dtype");
    v("threads", threads, "threads of an op on a CPU", at_least(1));
    v("seq_lens", seq_lens, "tokens per sequence", at_least(1));
    v("sequences", sequences, "sequences of a microbatch on one device", at_least(1));
    v("experts", experts, "experts computed together, empty = 1, a quarter and all", at_least(1));
    v("rows_per_expert", rows_per_expert, "rows of each expert", at_least(1));
    v("steps", steps, "measure whole steps, too: what stands between ops, and ops as steps run them");
    v("timing", timing, "how often to time");
  }
};

/// Why whole steps are not measured though options.steps asks for it: memory; empty = they are. Throws
/// ConfigError as profile_device() does.
std::string why_no_steps(const ModelConfig& model, const ProfileOptions& options);

/// Measures one device with random data: one layer's attention part (and one dense layer's, if the model has
/// any), groups of experts, embedding, head, optimizer, row copies and transfers in one process. The same
/// calls that the executor makes; weights of one layer, so that any model fits whose layer does. Where memory
/// suffices, whole steps of its first layers are run besides, and what an op takes in these counts. on_entry
/// is called with every entry as it is done and the number still to come. Throws ConfigError for a device
/// that is not there or sizes that the model does not have.
ProfileFile profile_device(const ModelConfig& model, const ProfileOptions& options,
                           const std::function<void(const ProfileEntry&, i64)>& on_entry = {});

}  // namespace hetermoe
