#include "hetermoe/cost/profile_file.h"

#include <set>
#include <tuple>

#include "hetermoe/base/index.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<ProfiledOp>::names() {
  static const std::vector<std::string> all = names_of_all<ProfiledOp>(
      {"embed", "attention", "dense_attention", "experts", "head", "update", "gather", "merge", "transfer",
       "norm", "dispatch", "combine", "balance", "gap"});
  return all;
}
const std::vector<std::string>& EnumNames<ProfiledPhase>::names() {
  static const std::vector<std::string> all =
      names_of_all<ProfiledPhase>({"forward", "recompute", "backward", "forward_backward", "forward_kept"});
  return all;
}

ProfiledShape shape_of(const ModelConfig& model) {
  ProfiledShape shape;
  shape.hidden = model.hidden, shape.vocab = model.vocab;
  shape.attention = model.attention;
  shape.num_heads = model.num_heads, shape.num_kv_heads = model.num_kv_heads, shape.head_dim = model.head_dim;
  shape.qk_norm = model.qk_norm;
  shape.q_lora_rank = model.q_lora_rank, shape.kv_lora_rank = model.kv_lora_rank;
  shape.qk_rope_dim = model.qk_rope_dim, shape.v_dim = model.v_dim;
  shape.num_experts = model.num_experts, shape.top_k = model.top_k;
  shape.expert_hidden = model.expert_hidden, shape.shared_hidden = model.shared_hidden();
  shape.dense_hidden = model.dense_hidden;
  shape.router_score = model.router_score;
  return shape;
}

ProfilePoint point_of(const ProfileEntry& entry) {
  switch (entry.op) {
    case ProfiledOp::kAttention:
    case ProfiledOp::kDenseAttention:
      return {real(entry.seq_len), real(entry.sequences)};
    case ProfiledOp::kExperts:
      return {real(entry.experts), entry.experts > 0 ? real(entry.copies) / real(entry.experts) : 0};
    case ProfiledOp::kUpdate:
    case ProfiledOp::kNorm:
      return {1, real(entry.params)};
    case ProfiledOp::kGather:
    case ProfiledOp::kMerge:
      return {1, real(entry.rows)};
    case ProfiledOp::kTransfer:
      return {1, entry.bytes};
    case ProfiledOp::kEmbed:
    case ProfiledOp::kHead:
    case ProfiledOp::kDispatch:
    case ProfiledOp::kCombine:
    case ProfiledOp::kBalance:
    case ProfiledOp::kGap:
      break;
  }
  return {1, real(entry.tokens)};
}

namespace {

std::string entry_name(const std::string& where, std::size_t index) {
  return fmt::format("{}entries[{}]", where, index);
}

/// A table needs a size at every point and no point twice.
void check_entries(const ProfileFile& profile, const std::string& where) {
  if (profile.entries.empty()) fail<ConfigError>(where + "entries", "no entries: got an empty profile");
  std::set<std::tuple<ProfiledOp, ProfiledPhase, double, double>> seen;
  for (std::size_t i = 0; i < profile.entries.size(); ++i) {
    const ProfileEntry& entry = profile.entries[i];
    const ProfilePoint point = point_of(entry);
    if (point.family <= 0 || point.size <= 0) {
      fail<ConfigError>(entry_name(where, i), "no size: got {} with sizes 0, expected those it was timed at",
                        name_of(entry.op));
    }
    if (entry.p10 > entry.seconds || entry.p90 < entry.seconds) {
      fail<ConfigError>(entry_name(where, i),
                        "spread: got a median of {} s, expected it between {} s and {} s", entry.seconds,
                        entry.p10, entry.p90);
    }
    if (!seen.emplace(entry.op, entry.phase, point.family, point.size).second) {
      fail<ConfigError>(entry_name(where, i), "{} {}: the same sizes are given twice", name_of(entry.op),
                        name_of(entry.phase));
    }
  }
}

}  // namespace

ProfileFile parse_profile(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  const std::string place = where + " ";
  for (const char* key : {"format", "dtype", "model", "shape", "entries"}) {
    if (json.is_object() && !json.contains(key))
      fail<ConfigError>(
          where, "missing key \"{}\": got no complete profile. Is it a file of `hetermoe profile`?", key);
  }
  ProfileFile profile;
  read_fields(json, profile, place);
  check_entries(profile, place);
  return profile;
}

ProfileFile read_profile(const std::filesystem::path& path) {
  return parse_profile(read_text(path), path.string());
}

void write_profile(const ProfileFile& profile, const std::filesystem::path& path) {
  // One entry per line: a person reads a table.
  Json head = write_fields(profile);
  const Json entries = head["entries"];
  head.erase("entries");
  std::string text = head.dump(2);
  text.resize(text.size() - 2);  // the closing "\n}"
  text += ",\n  \"entries\": [";
  for (std::size_t i = 0; i < entries.size(); ++i)
    text += (i == 0 ? "\n    " : ",\n    ") + entries[i].dump();
  write_text(path, text + "\n  ]\n}\n");
}

void check_profile(const ProfileFile& profile, const ModelConfig& model, Dtype dtype,
                   const std::string& where) {
  if (profile.dtype != dtype) {
    fail<ConfigError>(where + " dtype",
                      "profile of another dtype: got {}, but times are asked for in {}. Profile again with "
                      "--dtype {}, or use these "
                      "times: plan --dtype {}; train, simulate and verify --clock.emulated_dtype {}",
                      name_of(profile.dtype), name_of(dtype), name_of(dtype), name_of(profile.dtype),
                      name_of(profile.dtype));
  }
  const Json got = write_fields(profile.shape), expected = write_fields(shape_of(model));
  for (const auto& [key, value] : expected.items()) {
    if (got[key] == value) continue;
    fail<ConfigError>(
        fmt::format("{} shape.{}", where, key),
        "profile of another model ({}): got {}, expected {} as in {}. Profile again with --model {}",
        profile.model, got[key].dump(), value.dump(), model.name, model.name);
  }
}

}  // namespace hetermoe
