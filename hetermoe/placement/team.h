#pragma once
#include <vector>

#include "hetermoe/model/model_config.h"
#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// Consecutive heads [begin, begin + count).
struct HeadRange {
  i64 begin = 0, count = 0;
  i64 end() const { return begin + count; }
};
/// The key-value heads that query heads need: those of a group that two devices share go to both.
HeadRange key_value_heads(const HeadRange& query, i64 num_heads, i64 num_kv_heads);

/// A device of a team.
struct TeamMember {
  DeviceId device = 0;
  i64 begin = 0, tokens = 0;  ///< its tokens, from the team's first one
  HeadRange heads;            ///< query heads of the attention kernel
  HeadRange keys_for;         ///< query heads whose keys and values travel with these: all, or none
};
/// Devices that have the same sequences of a microbatch: the share of each, in the order of its row.
struct Team {
  i64 begin = 0, tokens = 0;  ///< of the microbatch
  std::vector<TeamMember> members;
  /// Devices get the latents of MLA, and make keys and values of their own heads from these.
  bool latents = false;
  /// The device is one of them.
  const TeamMember& of(DeviceId device) const;
  /// With part `part` of `parts` of each member's query heads: whole key-value groups, where there are as
  /// many. Keys and values of all of a member's heads travel with part 0.
  Team with_part(i64 num_heads, i64 num_kv_heads, i32 part, i32 parts) const;
};
i32 num_teams(const ShareRow& row);
/// Number of the device's team in a row. The device must be in a team there.
i32 team_with(const ShareRow& row, DeviceId device);
/// Latents go to at most so many devices with heads. They save more than half of what keys and values are
/// then: a device that keeps activations holds latents besides the keys and values made of them. 0 = never.
i64 most_for_latents(const ModelConfig& model);
/// latents_for: most_for_latents().
Team team_of(const ShareRow& row, i32 team, i64 seq_len, i64 latents_for);
std::vector<Team> teams_of(const ShareRow& row, i64 seq_len, i64 latents_for);

/// Keys and values that a token sends beside the queries for some query heads. With latents one head serves
/// all: its key is the turned part, its value the latent.
struct KeyValues {
  HeadRange heads;
  i64 key = 0, value = 0;  ///< width of a head
  i64 width() const { return heads.count * (key + value); }
};
KeyValues key_values(const ModelConfig& model, const Team& team, const HeadRange& query);
/// Numbers that one token of a device sends to another before the attention kernel: queries of the heads of
/// the other, and what these need beside.
i64 width_to_heads(const ModelConfig& model, const Team& team, const HeadRange& heads);
/// The same where keys and values travel for other heads than these.
i64 width_to_heads(const ModelConfig& model, const Team& team, const TeamMember& member);
/// And that come back for it.
i64 width_to_tokens(const ModelConfig& model, const HeadRange& heads);

}  // namespace hetermoe
