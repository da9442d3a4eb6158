#include "hetermoe/model/hf_keys.h"

#include <fmt/format.h>

namespace hetermoe {
namespace {

constexpr double kMaxParameters = 1e17;  // no real model reaches it

/// A number without a needless fraction, a text in quotation marks.
std::string shown(const Json& value) {
  return value.is_number() ? fmt::format("{}", value.get<double>()) : value.dump();
}

template <class T>
bool differs(const HfReader& in, const ExpectedKey& key, const Json& got) {
  T value{};
  read_value(got, value, in.where(key.key));
  return value != key.value.get<T>();
}

bool differs(const HfReader& in, const ExpectedKey& key, const Json& got) {
  if (key.value.is_boolean()) return differs<bool>(in, key, got);
  if (key.value.is_string()) return differs<std::string>(in, key, got);
  return differs<double>(in, key, got);
}

}  // namespace

void expect_key(const HfReader& in, const ExpectedKey& key, ModelConfig& out) {
  const Json* found = in.find(key.key.c_str());
  if (found == nullptr) return;
  const Json all = key.is_list && found->is_array() ? *found : Json::array({*found});
  for (const Json& got : all) {
    if (!differs(in, key, got)) continue;
    out.unsupported.push_back(fmt::format("{}: got {}, expected {}", key.key, shown(got), shown(key.value)));
    return;
  }
}

void refuse_nested(const HfReader& in, const std::string& model_type) {
  const Json* text = in.find("text_config");
  if (text == nullptr || !text->is_object()) return;
  fail<ConfigError>(in.where("text_config"),
                    "the language model{} is one of several models of this file, as of one that also reads "
                    "pictures or sound: expected the config.json of a language model alone",
                    model_type.empty() ? "" : fmt::format(" of \"{}\"", model_type));
}

void check_total_size(const std::string& where, const ModelConfig& model) {
  const double moe = static_cast<double>(model.num_moe_layers());
  const double dense = static_cast<double>(model.num_layers) - moe;
  const auto h = static_cast<double>(model.hidden);
  const double widths = static_cast<double>(model.num_experts) * static_cast<double>(model.expert_hidden) +
                        static_cast<double>(model.shared_hidden());
  const double per_head =
      2 * static_cast<double>(model.head_dim) + 2 * static_cast<double>(model.value_dim());
  const double low_rank = static_cast<double>(model.q_lora_rank) + static_cast<double>(model.kv_lora_rank);
  const double attention = static_cast<double>(model.num_heads) * per_head * (h + low_rank);
  const double total = moe * 3 * h * widths + dense * 3 * h * static_cast<double>(model.dense_hidden) +
                       static_cast<double>(model.num_layers) * attention +
                       2 * h * static_cast<double>(model.vocab);
  if (total > kMaxParameters) {
    fail<ConfigError>(where, "impossible size: got about {:.3g} parameters, expected at most {:.0e}", total,
                      kMaxParameters);
  }
}

}  // namespace hetermoe
