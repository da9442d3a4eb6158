#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/enum_count.h"
#include "hetermoe/weights/safetensors.h"

// Which tensor of a Hugging Face folder holds which parameter of a model. Decided by names and shapes alone,
// never by the version of the program that wrote the files.
namespace hetermoe {

/// How the routed experts of a layer lie in files. E experts, I their width, H hidden.
enum class ExpertLayout {
  kNone,             ///< there are none
  kPerExpert,        ///< three matrices of each expert
  kFused,            ///< experts.gate_up_proj [E, 2I, H], gate rows first, and experts.down_proj [E, H, I]
  kFusedTransposed,  ///< the same as [E, H, 2I] and [E, I, H]
  kInterleaved,      ///< likewise, but columns of gate and up take turns; biases [E, 2I] and [E, H] beside
  /// The matrices of kInterleaved in 4 bits, as [out, in]: ..._blocks [E, out, in / 32, 16], two numbers a
  /// byte, and ..._scales [E, out, in / 32], exponents of two plus 127 (Microscaling Formats, OCP).
  kMxfp4,
};
template <>
struct EnumNames<ExpertLayout> {
  static const std::vector<std::string>& names() {
    static const std::vector<std::string> all = names_of_all<ExpertLayout>(
        {"none", "per_expert", "fused", "fused_transposed", "interleaved", "mxfp4"});
    return all;
  }
};

/// Where the values of a parameter are.
struct TensorSource {
  std::string tensor;       ///< its name in the files
  std::string scale = {};   ///< the tensor with a factor for each block of FP8 or 4-bit numbers; empty = none
  i64 expert = -1;          ///< its part of a fused tensor, -1 = the whole tensor
  bool transposed = false;  ///< of the part: it is [in, out]
  i64 first_row = 0;        ///< of the part, as [out, in] or [out]
  i64 row_step = 1;         ///< 2 = every second row of it
  i64 num_rows = 0;         ///< of the parameter
  bool mxfp4 = false;       ///< the tensor has blocks of 4-bit numbers
};

struct TensorMap {
  ExpertLayout layout = ExpertLayout::kNone;    ///< of the first layer with experts
  std::map<std::string, TensorSource> sources;  ///< by the name in parameters(model)
  std::vector<std::string> missing;             ///< parameters that no tensor holds
  std::vector<std::string> unexpected;          ///< tensors that hold no parameter
  std::vector<std::string> wrong;               ///< "NAME: got shape [2], expected [3]" and the like
  std::vector<std::string> ignored;             ///< tensors that need not be read, see docs/models.md
  bool complete() const { return missing.empty() && unexpected.empty() && wrong.empty(); }
};

/// Facts of the files beside the tensors.
struct FileFacts {
  i64 num_extra_layers = 0;                 ///< layers after the last that only predict more tokens
  std::vector<i64> fp8_block = {128, 128};  ///< rows and columns to which one factor of an FP8 tensor belongs
};
FileFacts file_facts(const Json& config);

TensorMap map_tensors(const ModelConfig& model, const std::vector<TensorHead>& heads,
                      const FileFacts& facts = {});

/// Faults, with the first ten names of each kind; empty = none.
std::string faults_of(const TensorMap& map);

/// Names of a layer's fused experts, as transformers has them in memory.
struct FusedNames {
  std::string gate_up, down;
};
FusedNames fused_names(i64 layer);
/// Where the bias of a fused tensor is.
std::string bias_of_fused(const std::string& fused);
/// The name of a parameter where experts are fused, which in some families differs.
std::string name_beside_fused(const ModelConfig& model, const std::string& parameter);

}  // namespace hetermoe
