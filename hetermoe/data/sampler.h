#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "hetermoe/data/dataset.h"

namespace hetermoe {

/// A permutation of the windows of a stream that is new in each epoch and depends on the seed alone. It is
/// computed and not stored, and uses no library, so that it is the same on every machine.
class WindowOrder {
 public:
  WindowOrder(i64 num_windows, u64 seed);
  i64 num_windows() const { return num_windows_; }
  /// Window of sequence `index` >= 0.
  i64 window_of(i64 index) const;

 private:
  i64 num_windows_;
  int half_bits_;  // the permutation works on numbers of 2 * half_bits_ bits
  u64 seed_;
};

/// Sequences of a run, one after another, [num_sequences][seq_len] each.
struct Batch {
  i64 num_sequences = 0, seq_len = 0;
  std::vector<i64> tokens, targets;  ///< target = the next token, -100 = not counted
  std::vector<i64> starts;           ///< 1 where a document begins; empty = sequences are not divided
  i64 target_count = 0;
};

/// Which sequences a Sampler gives.
struct SamplerOptions {
  i64 seq_len = 0;
  u64 seed = 0;
  bool validation = false;  ///< of the validation text
  i64 source = -1;          ///< of this source alone; -1 = of all by their shares
};

/// Gives the sequence with number `index` of the run, for every index from 0. So the data of a step never
/// depends on devices, microbatches or restarts. Window w of a source reads tokens w * seq_len to (w + 1) *
/// seq_len, both included; a rest that fills no window is never used.
class Sampler {
 public:
  /// Throws ConfigError when a source has too few tokens, or so small a share that it would never come.
  Sampler(const Dataset& data, const SamplerOptions& options);
  /// A window of a source (of those that are drawn from); `pass`: how often that was read through before.
  struct Drawn {
    i64 source = 0, window = 0, pass = 0;
  };
  Drawn draw(i64 index) const;
  /// Windows of the sources together.
  i64 num_windows() const;
  /// Sequences first..first+count-1. Throws InputError for a token that is not below `vocab`.
  Batch batch(i64 first, i64 count, i64 vocab) const;

 private:
  /// Each block of so many sequences has each source as often as its share says.
  static constexpr i64 kBlock = 4096;
  struct Part {
    i64 source;
    std::string name;
    TokenStream tokens;
    WindowOrder order;
    i64 in_block = kBlock;
  };
  void divide_block(const Dataset& data);
  void mask_documents(const Part& part, i64 first, i64* targets, Batch& out) const;

  i64 seq_len_;
  u64 seed_;
  bool masked_;
  std::vector<Part> parts_;
  std::vector<std::int32_t> part_of_, rank_of_;  // [kBlock] with several parts
};

}  // namespace hetermoe
