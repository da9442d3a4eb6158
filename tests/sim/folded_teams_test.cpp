#include <gtest/gtest.h>

#include "tests/sim/folded_cases.h"

namespace hetermoe {
namespace {

using test::RandomCase, test::Compared, test::compare, test::hand_made;

/// The devices of every group in teams, in the order of the group: tokens and heads of each of a team of four
/// heads.
struct TeamParts {
  std::vector<i64> tokens, heads;
};
ShareRow team_row(const std::vector<std::vector<DeviceId>>& teams, const TeamParts& parts) {
  ShareRow row;
  for (std::size_t t = 0; t < teams.size(); ++t) {
    for (std::size_t i = 0; i < teams[t].size(); ++i)
      row.push_back({teams[t][i], 1, parts.tokens[i], parts.heads[i], static_cast<i32>(t)});
  }
  return row;
}

/// Groups of one team shape, a sequence of 32 tokens in each team. groups: [group][team] devices.
RandomCase in_teams(const std::vector<i32>& node_sizes,
                    const std::vector<std::vector<std::vector<DeviceId>>>& groups,
                    const TeamParts& parts = {{16, 16}, {2, 2}}) {
  std::vector<std::vector<DeviceId>> devices;
  for (const std::vector<std::vector<DeviceId>>& teams : groups) {
    devices.emplace_back();
    for (const std::vector<DeviceId>& team : teams)
      devices.back().insert(devices.back().end(), team.begin(), team.end());
  }
  std::vector<std::vector<std::size_t>> owners;
  for (std::size_t d = 0; d < devices[0].size(); ++d) owners.push_back({d});
  RandomCase c = hand_made(node_sizes, devices, owners);
  c.model.num_heads = c.model.num_kv_heads = 4;
  c.model.head_dim = c.model.hidden / 4;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Group& group = c.plan.groups[g];
    group.microbatches = {static_cast<i64>(groups[g].size())};
    group.embed = group.head = {team_row(groups[g], parts)};
    for (LayerPlacement& layer : group.layers) layer.attention = group.embed;
  }
  EXPECT_EQ(validate(c.plan, c.model, c.cluster), std::vector<std::string>{});
  return c;
}

TEST(FoldedStep, TeamsOfAGroupFold) {
  EXPECT_EQ(compare(in_teams({4}, {{{0, 1}, {2, 3}}})).num_listed, 1);
  EXPECT_EQ(compare(in_teams({2, 2}, {{{0, 1}, {2, 3}}})).num_listed, 1);
  EXPECT_EQ(compare(in_teams({2, 2}, {{{0, 2}, {1, 3}}})).num_listed, 1);  // each team on both nodes
  EXPECT_EQ(compare(in_teams({2, 2}, {{{0, 1}, {2, 3}}}, {{20, 12}, {2, 2}})).num_listed, 2);
  EXPECT_EQ(compare(in_teams({2, 2}, {{{0, 1}, {2, 3}}}, {{16, 16}, {3, 1}})).num_listed, 2);
}

TEST(FoldedStep, GroupsOfTeamsFold) {
  const Compared compared =
      compare(in_teams({2, 2, 2, 2}, {{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}}, {{16, 16}, {4, 0}}));
  EXPECT_EQ(compared.num_groups_folded, 1);
  EXPECT_EQ(compared.num_listed, 2);
}

TEST(FoldedStep, TeamsOnOtherNodesAreNotFolded) {
  // One team on a node, the other on two: alike are the devices of the first.
  EXPECT_EQ(compare(in_teams({3, 1}, {{{0, 1}, {2, 3}}})).num_listed, 3);
  // Two of a team on one node and one on the other, and the reverse: ports carry the same of both.
  const TeamParts parts = {{12, 10, 10}, {2, 1, 1}};
  EXPECT_EQ(compare(in_teams({3, 3}, {{{0, 1, 3}, {4, 5, 2}}}, parts)).num_listed, 2);
}

/// Only prices tell: devices of one team still stand for each other.
TEST(FoldedStep, TeamsWithOtherLinksAreNotFolded) {
  RandomCase c = in_teams({2, 2}, {{{0, 1}, {2, 3}}});
  c.cluster.nodes[1].local /= 2;
  EXPECT_EQ(compare(c).num_listed, 2);
}

/// A query head of its own takes a key-value head whole, two of one group share it.
TEST(FoldedStep, MembersWithOtherKeyValueHeadsAreNotFolded) {
  RandomCase c = in_teams({3}, {{{0, 1, 2}}}, {{11, 11, 10}, {1, 2, 1}});
  c.model.num_kv_heads = 2;
  EXPECT_EQ(compare(c).num_listed, 3);
  c.plan.groups[0].embed = {team_row({{0, 1, 2}}, {{16, 16, 0}, {1, 1, 2}})};
  c.plan.groups[0].head = c.plan.groups[0].embed;
  for (LayerPlacement& layer : c.plan.groups[0].layers) layer.attention = c.plan.groups[0].embed;
  EXPECT_EQ(compare(c).num_listed, 2);
}

/// Of two teams one has latents, the other one more device with heads. Devices with two heads and equal
/// tokens are not alike.
TEST(FoldedStep, TeamsWithLatentsFold) {
  const auto latent = [](RandomCase c) {
    c.model.attention = AttentionKind::kMla;
    c.model.kv_lora_rank = 5, c.model.qk_nope_dim = 3, c.model.qk_rope_dim = 2, c.model.v_dim = 4;
    c.model.head_dim = 5;  // 36 numbers of keys and values, or twice 7 for each device with heads
    return c;
  };
  EXPECT_EQ(compare(latent(in_teams({4}, {{{0, 1}, {2, 3}}}))).num_listed, 1);
  EXPECT_EQ(compare(latent(in_teams({2, 2}, {{{0, 1}, {2, 3}}}, {{16, 16}, {4, 0}}))).num_listed, 2);
  EXPECT_EQ(compare(latent(in_teams({2, 2}, {{{0, 2}, {1, 3}}}, {{20, 12}, {3, 1}}))).num_listed, 2);
  RandomCase c = latent(in_teams({3, 3}, {{{0, 1, 2}, {3, 4, 5}}}, {{16, 8, 8}, {2, 2, 0}}));
  EXPECT_EQ(compare(c).num_listed, 3);
  ShareRow row = c.plan.groups[0].embed[0];
  row[4].heads = row[5].heads = 1;
  for (LayerPlacement& layer : c.plan.groups[0].layers) layer.attention = {row};
  EXPECT_EQ(compare(c).num_listed, 5);
}

/// Who is in a team with whom changes from layer to layer.
TEST(FoldedStep, MembersThatMeetOthersInTheNextLayerAreNotFolded) {
  const TeamParts uneven = {{20, 12}, {2, 2}};
  RandomCase c = in_teams({4}, {{{0, 1}, {2, 3}}}, uneven);
  EXPECT_EQ(compare(c).num_listed, 2);
  c.plan.groups[0].layers[1].attention = {team_row({{0, 3}, {2, 1}}, uneven)};
  EXPECT_EQ(compare(c).num_listed, 4);
}

}  // namespace
}  // namespace hetermoe
