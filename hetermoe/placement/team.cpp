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

i32 num_teams(const ShareRow& row) { return has_teams(row) ? row.back().team + 1 : 0; }

i32 team_with(const ShareRow& row, DeviceId device) {
  for (const Share& share : row)
    if (share.device == device) return share.team;
  HM_CHECK(false, "device {} has no share", device);
}

Team team_of(const ShareRow& row, i32 team, i64 seq_len) {
  Team out;
  i64 heads = 0;
  for (const Share& share : row) {
    if (share.team < team) out.begin += tokens_of(share, seq_len);
    if (share.team != team) continue;
    out.members.push_back({share.device, out.tokens, share.tokens, {heads, share.heads}});
    out.tokens += share.tokens, heads += share.heads;
  }
  return out;
}

i64 width_to_heads(const ModelConfig& model, const HeadRange& heads) {
  const HeadRange shared = key_value_heads(heads, model.num_heads, model.num_kv_heads);
  return heads.count * model.head_dim + shared.count * (model.head_dim + model.value_dim());
}

i64 width_to_tokens(const ModelConfig& model, const HeadRange& heads) {
  return heads.count * model.value_dim();
}

}  // namespace hetermoe
