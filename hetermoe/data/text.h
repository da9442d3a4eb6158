#pragma once
#include <ATen/ATen.h>

#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/base/fields.h"
#include "hetermoe/model/model_config.h"

// Byte-level text from local files. Tokens are bytes, 0 to 255.
namespace hetermoe {

struct TextOptions {
  std::vector<std::string> paths;       ///< files or folders (searched recursively, in name order)
  std::vector<std::string> extensions;  ///< of files in folders; empty = all
  i64 max_bytes = 8 << 20;
  double validation_share = 0.05;
  template <class V>
  void fields(V& v) {
    v("paths", paths, "files or folders of text; empty = the Python standard library of this machine");
    v("extensions", extensions, "endings of the files to take from folders, as .py; empty = all");
    v("max_bytes", max_bytes, "take at most so many bytes", at_least(1));
    v("validation_share", validation_share, "part at the end that is kept for validation", between(0, 0.5));
  }
};

/// The bytes of all files in a fixed order, split into training and validation text.
struct Text {
  at::Tensor train, validation;  ///< uint8 [bytes]
  i64 num_files = 0;
  i64 num_skipped = 0;  ///< files of folders that hold NUL bytes and so are no text
};

/// The folder of the newest Python 3 standard library with sources on this machine; empty when there is none.
std::filesystem::path python_library();

/// Reads the text. The files of a folder are read in the order of their paths (compared byte by byte) until
/// there are max_bytes. Throws IoError that names what cannot be read, ConfigError when there is less text
/// than a sequence needs or a file named itself (not found in a folder) is no text.
Text load_text(const TextOptions& options, i64 seq_len);

/// Throws ConfigError when the text has a byte that is no token of the model.
void check_vocabulary(const Text& text, const ModelConfig& model);

struct Batch {
  at::Tensor tokens, targets;  ///< int64 [sequences, seq_len]; target = the next byte
  i64 target_count = 0;
};

/// Gives the sequence with number `index` of the run, for every index from 0. Each epoch is a new permutation
/// of the windows of seq_len bytes, which depends on the seed alone. So the data of a step never depends on
/// devices, microbatches or restarts. The permutation is computed and not stored. It uses no library, so that
/// it is the same on every machine.
class Sampler {
 public:
  /// bytes: uint8 [>= seq_len + 1]. Window w reads bytes w * seq_len to (w + 1) * seq_len, both included; a
  /// rest that fills no window is never used.
  Sampler(at::Tensor bytes, i64 seq_len, u64 seed);
  i64 num_windows() const { return num_windows_; }
  /// Window of the sequence: index modulo num_windows(), permuted anew in each epoch.
  i64 window_of(i64 index) const;
  /// Sequences first..first+count-1.
  Batch batch(i64 first, i64 count) const;

 private:
  at::Tensor bytes_;
  i64 seq_len_, num_windows_;
  int half_bits_;  // the permutation works on numbers of 2 * half_bits_ bits
  u64 seed_;
};

/// Entropy of single bytes in nats: the loss of a model that knows frequencies only.
double unigram_entropy(const at::Tensor& bytes);

}  // namespace hetermoe
