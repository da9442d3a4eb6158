#include "hetermoe/placement/team.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {

HeadRange key_value_heads(const HeadRange& query, i64 num_heads, i64 num_kv_heads) {
  if (query.count == 0) return {};
  const i64 of_group = num_heads / num_kv_heads, first = query.begin / of_group;
  return {first, (query.end() - 1) / of_group + 1 - first};
}

const TeamMember& Team::of(DeviceId device) const {
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&](const TeamMember& member) { return member.device == device; });
  HM_CHECK(found != members.end(), "device {} is in another team", device);
  return *found;
}

Team Team::with_part(i64 num_heads, i64 num_kv_heads, i32 part, i32 parts) const {
  Team out = *this;
  if (parts == 1) return out;
  const i64 of_group = num_heads / num_kv_heads;
  for (TeamMember& member : out.members) {
    const HeadRange all = member.heads, groups = key_value_heads(all, num_heads, num_kv_heads);
    const auto begin_of = [&](i64 index) {
      if (groups.count < parts) return all.begin + all.count * index / parts;
      return std::clamp((groups.begin + groups.count * index / parts) * of_group, all.begin, all.end());
    };
    member.heads = {begin_of(part), begin_of(part + 1) - begin_of(part)};
    if (part > 0) member.keys_for = {all.begin, 0};
  }
  return out;
}

i32 num_teams(const ShareRow& row) { return has_teams(row) ? row.back().team + 1 : 0; }

i32 team_with(const ShareRow& row, DeviceId device) {
  for (const Share& share : row)
    if (share.device == device) return share.team;
  HM_CHECK(false, "device {} has no share", device);
}

i64 most_for_latents(const ModelConfig& model) {
  if (model.attention != AttentionKind::kMla) return 0;
  return (model.key_width() + model.value_width() - 1) / (2 * (model.kv_lora_rank + model.qk_rope_dim));
}

namespace {

void add_member(Team& team, const Share& share) {
  const i64 heads = team.members.empty() ? 0 : team.members.back().heads.end();
  const HeadRange own{heads, share.heads};
  team.members.push_back({share.device, team.tokens, share.tokens, own, own});
  team.tokens += share.tokens;
}

bool gets_latents(const Team& team, i64 latents_for) {
  return latents_for > 0 &&
         std::count_if(team.members.begin(), team.members.end(),
                       [](const TeamMember& member) { return member.heads.count > 0; }) <= latents_for;
}

}  // namespace

Team team_of(const ShareRow& row, i32 team, i64 seq_len, i64 latents_for) {
  Team out;
  for (const Share& share : row) {
    if (share.team < team) out.begin += tokens_of(share, seq_len);
    if (share.team == team) add_member(out, share);
  }
  out.latents = gets_latents(out, latents_for);
  return out;
}

std::vector<Team> teams_of(const ShareRow& row, i64 seq_len, i64 latents_for) {
  std::vector<Team> out(idx(num_teams(row)));
  if (out.empty()) return out;
  i64 begin = 0;
  for (const Share& share : row) {
    Team& team = out[idx(share.team)];
    if (team.members.empty()) team.begin = begin;
    add_member(team, share);
    begin += tokens_of(share, seq_len);
  }
  for (Team& team : out) team.latents = gets_latents(team, latents_for);
  return out;
}

KeyValues key_values(const ModelConfig& model, const Team& team, const HeadRange& query) {
  if (team.latents) return {{0, query.count > 0 ? 1 : 0}, model.qk_rope_dim, model.kv_lora_rank};
  return {key_value_heads(query, model.num_heads, model.num_kv_heads), model.head_dim, model.value_dim()};
}

i64 width_to_heads(const ModelConfig& model, const Team& team, const HeadRange& heads) {
  return heads.count * model.head_dim + key_values(model, team, heads).width();
}

i64 width_to_heads(const ModelConfig& model, const Team& team, const TeamMember& member) {
  return member.heads.count * model.head_dim + key_values(model, team, member.keys_for).width();
}

i64 width_to_tokens(const ModelConfig& model, const HeadRange& heads) {
  return heads.count * model.value_dim();
}

}  // namespace hetermoe
