#include "hetermoe/model/hf_rope.h"

#include <algorithm>

namespace hetermoe {
namespace {

void read_yarn(const HfReader& in, RopeScaling& out) {
  out.beta_fast = in.read_or<double>({"beta_fast"}, 32, above(0));
  out.beta_slow = in.read_or<double>({"beta_slow"}, 1, above(0));
  out.truncate = in.read_or<bool>({"truncate"}, true);
  out.attention_factor = in.read_or<double>({"attention_factor"}, 0, at_least(0));
  out.mscale = in.read_or<double>({"mscale"}, 0, at_least(0));
  out.mscale_all_dim = in.read_or<double>({"mscale_all_dim"}, 0, at_least(0));
}

void read_llama3(const HfReader& in, RopeScaling& out) {
  const auto need = [&](const char* key) {
    const std::optional<double> value = in.read<double>({key}, above(0));
    if (!value) fail<ConfigError>(in.where(key), "missing: rotary embedding of type llama3 needs it");
    return *value;
  };
  out.low_freq_factor = need("low_freq_factor");
  out.high_freq_factor = need("high_freq_factor");
  if (out.high_freq_factor <= out.low_freq_factor)
    fail<ConfigError>(in.where("high_freq_factor"), "got {}, expected more than low_freq_factor ({})",
                      out.high_freq_factor, out.low_freq_factor);
}

/// One dictionary. `top` is the config that holds it.
RopeScaling read_scaling(const HfReader& top, const HfReader& in, const std::string& type,
                         const ModelConfig& model) {
  RopeScaling out;
  const std::vector<std::string>& names = EnumNames<RopeKind>::names();
  out.kind = static_cast<RopeKind>(std::find(names.begin(), names.end(), type) - names.begin());
  if (out.kind == RopeKind::kDefault) return out;
  const std::optional<double> factor = in.read<double>({"factor"}, above(0));
  if (!factor) fail<ConfigError>(in.where("factor"), "missing: rotary embedding of type {} needs it", type);
  out.factor = *factor;
  if (out.kind != RopeKind::kYarn && out.kind != RopeKind::kLlama3) return out;
  const Names original = {"original_max_position_embeddings"};
  const i64 inner = in.size_or(original, model.max_positions, kMaxPositions);
  out.original_positions = top.size_or(original, inner, kMaxPositions);
  if (out.kind == RopeKind::kYarn) {
    read_yarn(in, out);
  } else {
    read_llama3(in, out);
  }
  return out;
}

void check_dictionary(const char* key, const HfReader& in, const Json& dictionary, const ModelFamily& family,
                      ModelConfig& out) {
  if (!family.rotary_share && in.read_or<double>({"partial_rotary_factor"}, 1.0) != 1.0)
    out.unsupported.push_back(fmt::format("{}.partial_rotary_factor: expected 1", key));
  for (const auto& [name, value] : dictionary.items()) {
    if (value.is_object())
      out.unsupported.push_back(
          fmt::format("{}.{}: got settings per layer type, expected one for all", key, name));
  }
}

Json scaling_json(const RopeScaling& scaling) {
  Json out = {{"rope_type", name_of(scaling.kind)}, {"factor", scaling.factor}};
  if (scaling.original_positions > 0) out["original_max_position_embeddings"] = scaling.original_positions;
  if (scaling.kind == RopeKind::kLlama3) {
    out["low_freq_factor"] = scaling.low_freq_factor;
    out["high_freq_factor"] = scaling.high_freq_factor;
  }
  if (scaling.kind != RopeKind::kYarn) return out;
  out["beta_fast"] = scaling.beta_fast;
  out["beta_slow"] = scaling.beta_slow;
  if (!scaling.truncate) out["truncate"] = false;
  if (scaling.attention_factor > 0) out["attention_factor"] = scaling.attention_factor;
  if (scaling.mscale > 0) out["mscale"] = scaling.mscale;
  if (scaling.mscale_all_dim > 0) out["mscale_all_dim"] = scaling.mscale_all_dim;
  return out;
}

}  // namespace

void read_rope(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  std::optional<double> theta = in.read<double>({"rope_theta"}, above(0));
  const std::vector<std::string>& known = EnumNames<RopeKind>::names();
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* dictionary = in.find(key);
    if (!dictionary) continue;
    if (!dictionary->is_object()) detail::wrong_type(in.where(key), *dictionary, "an object or null");
    const std::string file = in.where(key);
    const HfReader inner(*dictionary, file);
    const std::string type = inner.read_or<std::string>({"rope_type", "type"}, "default");
    if (std::find(known.begin(), known.end(), type) == known.end()) {
      out.unsupported.push_back(
          fmt::format("{}: got type \"{}\", expected one of {}", key, type, fmt::join(known, ", ")));
    } else {
      const RopeScaling here = read_scaling(in, inner, type, out);
      if (out.rope_scaling != RopeScaling() && here != RopeScaling() && here != out.rope_scaling)
        fail<ConfigError>(file, "says another scaling than rope_parameters, expected one of the two");
      if (here != RopeScaling()) out.rope_scaling = here;
    }
    check_dictionary(key, inner, *dictionary, family, out);
    const std::optional<double> here = inner.read<double>({"rope_theta"}, above(0));
    if (here && theta && *here != *theta) {
      fail<ConfigError>(inner.where("rope_theta"),
                        "two names of one setting disagree: got {} here and {} elsewhere", *here, *theta);
    }
    if (here) theta = here;
  }
  out.rope_theta = theta.value_or(family.rope_theta);
}

i64 rotary_dim(const HfReader& in, const ModelFamily& family, i64 head_dim) {
  if (!family.rotary_share) return 0;
  const char* key = "partial_rotary_factor";
  std::optional<double> share;
  for (const char* dictionary : {"rope_parameters", "rope_scaling"}) {
    const Json* found = in.find(dictionary);
    if (found == nullptr || share) continue;
    const std::string file = in.where(dictionary);
    share = HfReader(*found, file).read<double>({key}, above(0));
  }
  if (!share) share = in.read<double>({key}, above(0));
  i64 width = static_cast<i64>(static_cast<double>(head_dim) * share.value_or(*family.rotary_share));
  if (!share && !family.rotary_dim_key.empty())
    width = in.read_or<i64>({family.rotary_dim_key.c_str()}, width, above(0));
  if (width < 2 || width % 2 != 0 || width > head_dim)
    fail<ConfigError>(in.where(key), "turns {} elements of a head, expected an even number from 2 to {}",
                      width, head_dim);
  return width == head_dim ? 0 : width;
}

void check_rope(const HfReader& in, const ModelConfig& out) {
  const RopeKind kind = out.rope_scaling.kind;
  if (kind == RopeKind::kDynamic && out.rope_dim() <= 2)
    fail<ConfigError>(in.where("rope_scaling"), "got type dynamic for {} elements, expected at least 4",
                      out.rope_dim());
  if (kind == RopeKind::kYarn && out.rope_theta <= 1)
    fail<ConfigError>(in.where("rope_theta"), "got {}, expected more than 1 with scaling of type yarn",
                      out.rope_theta);
}

void write_rope(const ModelConfig& model, Json& out) {
  out["rope_theta"] = model.rope_theta;
  if (model.rope_scaling.kind != RopeKind::kDefault) out["rope_scaling"] = scaling_json(model.rope_scaling);
  const ModelFamily& family = family_of(model);
  if (!family.rotary_dim_key.empty())
    out[family.rotary_dim_key] = model.rope_dim();
  else if (family.rotary_share)
    out["partial_rotary_factor"] =
        static_cast<double>(model.rope_dim()) / static_cast<double>(model.head_dim);
}

}  // namespace hetermoe
