#include "hetermoe/weights/tensor_map.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "hetermoe/model/family.h"

namespace hetermoe {
namespace {

constexpr std::size_t kNamesShown = 10;

bool is_weight_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

class Mapper {
 public:
  Mapper(const ModelConfig& model, const std::vector<TensorHead>& heads, const FileFacts& facts)
      : model_(model), facts_(facts) {
    for (const TensorHead& head : heads) heads_.emplace(head.name, &head);
  }

  TensorMap run() {
    for (const ParamInfo& parameter : parameters(model_)) {
      if (parameter.expert >= 0) {
        add_expert(parameter);
      } else if (!add_plain(parameter)) {
        out_.missing.push_back(parameter.name);
      }
    }
    for (const auto& [name, head] : heads_) {
      if (used_.count(name) == 0) (is_ignored(name) ? out_.ignored : out_.unexpected).push_back(name);
    }
    return std::move(out_);
  }

 private:
  const TensorHead* find(const std::string& name) const {
    const auto found = heads_.find(name);
    return found == heads_.end() ? nullptr : found->second;
  }

  /// False when no tensor has a name of this parameter.
  bool add_plain(const ParamInfo& parameter) {
    const TensorHead* head = find(parameter.name);
    if (head == nullptr) head = find(name_beside_fused(model_, parameter.name));
    if (head == nullptr) return false;
    used_.insert(head->name);
    TensorSource source{.tensor = head->name};
    if (head->shape != parameter.shape) {
      out_.wrong.push_back(fmt::format("{}: got shape [{}], expected [{}]", head->name,
                                       fmt::join(head->shape, ", "), fmt::join(parameter.shape, ", ")));
    } else if (head->dtype == at::kFloat8_e4m3fn) {
      source.scale = scale_of(*head);
    } else {
      check_dtype(*head);
    }
    out_.sources[parameter.name] = source;
    return true;
  }

  void check_dtype(const TensorHead& head) {
    if (is_weight_dtype(head.dtype)) return;
    out_.wrong.push_back(
        fmt::format("{}: got {}, expected F32, BF16, F16 or F64", head.name, dtype_text(head.dtype)));
  }

  std::string scale_of(const TensorHead& head) {
    for (const char* suffix : {"_scale_inv", "_scale"}) {
      const TensorHead* scale = find(head.name + suffix);
      if (scale == nullptr) continue;
      used_.insert(scale->name);
      check_scale(head, *scale);
      return scale->name;
    }
    out_.wrong.push_back(
        fmt::format("{}: is F8_E4M3 without factors, expected {}_scale_inv", head.name, head.name));
    return "";
  }

  void check_scale(const TensorHead& head, const TensorHead& scale) {
    std::vector<i64> expected;
    for (std::size_t i = 0; i < head.shape.size() && i < facts_.fp8_block.size(); ++i)
      expected.push_back((head.shape[i] + facts_.fp8_block[i] - 1) / facts_.fp8_block[i]);
    if (head.shape.size() != 2 || scale.shape != expected) {
      out_.wrong.push_back(fmt::format("{}: got shape [{}], expected [{}]", scale.name,
                                       fmt::join(scale.shape, ", "), fmt::join(expected, ", ")));
    }
    check_dtype(scale);
  }

  void add_expert(const ParamInfo& parameter) {
    if (add_plain(parameter)) {
      if (out_.layout == ExpertLayout::kNone) out_.layout = ExpertLayout::kPerExpert;
      return;
    }
    const ExpertLayout layout = fused_layout(parameter.layer);
    if (layout == ExpertLayout::kNone) {
      out_.missing.push_back(parameter.name);
      return;
    }
    if (out_.layout == ExpertLayout::kNone) out_.layout = layout;
    out_.sources[parameter.name] = fused_source(parameter, layout);
  }

  TensorSource fused_source(const ParamInfo& parameter, ExpertLayout layout) const {
    const FusedNames names = fused_names(parameter.layer);
    const auto [gate, up, down] = expert_matrices(model_, parameter.layer, parameter.expert);
    const bool is_bias = parameter.shape.size() == 1;
    const bool is_up = parameter.name == up || parameter.name == bias_of(up);
    const bool is_down = parameter.name == down || parameter.name == bias_of(down);
    const bool turns = has_biases(layout) && !is_down;
    const std::string fused = is_down ? names.down : names.gate_up;
    TensorSource out{.tensor = is_bias ? bias_of_fused(fused) : fused,
                     .expert = parameter.expert,
                     .first_row = !is_up  ? 0
                                  : turns ? 1
                                          : model_.expert_hidden,
                     .row_step = turns ? 2 : 1,
                     .num_rows = parameter.shape[0]};
    out.mxfp4 = layout == ExpertLayout::kMxfp4 && !is_bias;
    if (out.mxfp4) out.tensor = fused + "_blocks", out.scale = fused + "_scales";
    out.transposed = !is_bias && !out.mxfp4 && layout != ExpertLayout::kFused;
    return out;
  }

  static bool has_biases(ExpertLayout layout) {
    return layout == ExpertLayout::kInterleaved || layout == ExpertLayout::kMxfp4;
  }

  /// A tensor that must be there with this shape. dtype: kByte, or that of weights.
  bool expect(const std::string& name, const std::vector<i64>& shape, bool bytes = false) {
    const TensorHead* head = find(name);
    if (head == nullptr) return out_.missing.push_back(name), false;
    used_.insert(name);
    if (head->shape != shape)
      out_.wrong.push_back(fmt::format("{}: got shape [{}], expected [{}]", name,
                                       fmt::join(head->shape, ", "), fmt::join(shape, ", ")));
    if (!bytes)
      check_dtype(*head);
    else if (head->dtype != at::kByte)
      out_.wrong.push_back(fmt::format("{}: got {}, expected U8", name, dtype_text(head->dtype)));
    return head->shape == shape;
  }

  /// Matrices in either layout, biases always. kNone where a tensor is not as it should be, which is said.
  ExpertLayout interleaved_layout(const FusedNames& names) {
    const i64 experts = model_.num_experts, width = model_.expert_hidden, hidden = model_.hidden;
    const bool packed = find(names.gate_up + "_blocks") != nullptr;
    if (!packed && find(names.gate_up) == nullptr) return ExpertLayout::kNone;
    bool all = true;
    const auto matrix = [&](const std::string& name, i64 out, i64 in) {
      constexpr i64 kBlock = 32;
      if (!packed) {
        all &= expect(name, {experts, in, out});
      } else {
        all &= in % kBlock == 0 && expect(name + "_blocks", {experts, out, in / kBlock, kBlock / 2}, true);
        all &= expect(name + "_scales", {experts, out, in / kBlock}, true);
      }
      all &= expect(bias_of_fused(name), {experts, out});
    };
    matrix(names.gate_up, 2 * width, hidden);
    matrix(names.down, hidden, width);
    return !all ? ExpertLayout::kNone : packed ? ExpertLayout::kMxfp4 : ExpertLayout::kInterleaved;
  }

  /// Of a layer, decided once. The two shapes together always tell: only one of them can be square.
  ExpertLayout fused_layout(i32 layer) {
    const auto [known, fresh] = fused_.try_emplace(layer, ExpertLayout::kNone);
    if (!fresh) return known->second;
    const FusedNames names = fused_names(layer);
    if (family_of(model_).interleaved_experts) return known->second = interleaved_layout(names);
    const TensorHead *gate_up = find(names.gate_up), *down = find(names.down);
    if (gate_up == nullptr || down == nullptr) return ExpertLayout::kNone;
    used_.insert({names.gate_up, names.down});
    check_dtype(*gate_up);
    check_dtype(*down);
    const i64 experts = model_.num_experts, width = model_.expert_hidden, hidden = model_.hidden;
    using Shape = std::vector<i64>;
    if (gate_up->shape == Shape{experts, 2 * width, hidden} && down->shape == Shape{experts, hidden, width})
      return known->second = ExpertLayout::kFused;
    if (gate_up->shape == Shape{experts, hidden, 2 * width} && down->shape == Shape{experts, width, hidden})
      return known->second = ExpertLayout::kFusedTransposed;
    out_.wrong.push_back(
        fmt::format("{} and down_proj: got shapes [{}] and [{}], expected [{}, {}, {}] and [{}, {}, {}], or "
                    "both with the "
                    "last two sizes exchanged",
                    names.gate_up, fmt::join(gate_up->shape, ", "), fmt::join(down->shape, ", "), experts,
                    2 * width, hidden, experts, hidden, width));
    return ExpertLayout::kNone;
  }

  bool is_ignored(const std::string& name) const {
    if (name.ends_with(".rotary_emb.inv_freq")) return true;  // computed from the config
    const std::string& others = family_of(model_).ignored_tensors;
    if (!others.empty() && name.find(others) != std::string::npos) return true;
    if (model_.tie_embeddings && name == "lm_head.weight") return true;
    for (i64 layer = 0; layer < facts_.num_extra_layers; ++layer) {
      if (name.starts_with(fmt::format("model.layers.{}.", model_.num_layers + layer))) return true;
    }
    return false;
  }

  const ModelConfig& model_;
  const FileFacts& facts_;
  std::map<std::string, const TensorHead*> heads_;
  std::set<std::string> used_;
  std::map<i32, ExpertLayout> fused_;
  TensorMap out_;
};

void add_list(std::string& text, const std::vector<std::string>& names, const char* what) {
  if (names.empty()) return;
  const auto shown = std::min(names.size(), kNamesShown);
  text += fmt::format("{}{} {}: {}{}", text.empty() ? "" : "; ", names.size(), what,
                      fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                      shown < names.size() ? ", ..." : "");
}

}  // namespace

FileFacts file_facts(const Json& config) {
  FileFacts facts;
  if (!config.is_object()) return facts;
  const auto extra = config.find("num_nextn_predict_layers");
  if (extra != config.end() && extra->is_number_integer())
    read_value(*extra, facts.num_extra_layers, "config.json num_nextn_predict_layers", between(0, 1000));
  const auto quantization = config.find("quantization_config");
  if (quantization == config.end() || !quantization->is_object()) return facts;
  const auto block = quantization->find("weight_block_size");
  if (block == quantization->end() || block->is_null()) return facts;
  read_value(*block, facts.fp8_block, "config.json quantization_config.weight_block_size",
             between(1, 1 << 20));
  if (facts.fp8_block.size() != 2)
    fail<ConfigError>("config.json quantization_config.weight_block_size", "got {} sizes, expected 2",
                      facts.fp8_block.size());
  return facts;
}

TensorMap map_tensors(const ModelConfig& model, const std::vector<TensorHead>& heads,
                      const FileFacts& facts) {
  return Mapper(model, heads, facts).run();
}

std::string faults_of(const TensorMap& map) {
  std::string text;
  add_list(text, map.missing, "missing");
  add_list(text, map.unexpected, "left over");
  add_list(text, map.wrong, "wrong");
  return text;
}

FusedNames fused_names(i64 layer) {
  const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
  return {prefix + "gate_up_proj", prefix + "down_proj"};
}

std::string bias_of_fused(const std::string& fused) { return fused + "_bias"; }

std::string name_beside_fused(const ModelConfig& model, const std::string& parameter) {
  std::string name = parameter;
  const TensorNames& names = family_of(model).names;
  const std::string block = "." + names.block;
  const std::size_t at = name.find(block);
  if (at == std::string::npos) return name;
  name.replace(at, block.size(), ".mlp.");
  if (!names.fused_correction_bias.empty() && name.ends_with(names.correction_bias))
    name.replace(name.size() - names.correction_bias.size(), std::string::npos, names.fused_correction_bias);
  return name;
}

}  // namespace hetermoe
