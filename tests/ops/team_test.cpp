#include "hetermoe/placement/team.h"

#include <gtest/gtest.h>

#include "hetermoe/cost/roofline.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/schedule/schedule.h"
#include "tests/support/random_plan.h"

namespace hetermoe {
namespace {

ShareRow row_of_team(const std::vector<i64>& tokens, const std::vector<i64>& heads) {
  ShareRow row;
  for (std::size_t d = 0; d < tokens.size(); ++d)
    row.push_back({static_cast<DeviceId>(d), 1, tokens[d], heads[d], 0});
  return row;
}

/// Heads of one number each.
ModelConfig narrow_heads(i64 query, i64 key_value) {
  ModelConfig model = load_model("tiny");
  model.num_heads = query, model.num_kv_heads = key_value, model.head_dim = 1;
  return model;
}

/// [from][to] numbers that a team sends in to_heads.
std::vector<std::vector<i64>> sent(const ModelConfig& model, const Team& team) {
  std::vector<std::vector<i64>> out;
  for (const TeamMember& from : team.members) {
    out.emplace_back();
    for (const TeamMember& to : team.members)
      out.back().push_back(from.tokens * width_to_heads(model, to.heads));
  }
  return out;
}

using Table = std::vector<std::vector<i64>>;

/// MegaScale-MoE's volumes by hand: a key-value head goes to both devices that need it; no heads, no numbers.
TEST(Team, SendsWhatTheHeadsOfTheOtherNeed) {
  const ModelConfig model = narrow_heads(4, 2);
  EXPECT_EQ(sent(model, team_of(row_of_team({6, 2}, {3, 1}), 0, 8)), (Table{{42, 18}, {14, 6}}));
  EXPECT_EQ(sent(model, team_of(row_of_team({5, 3}, {4, 0}), 0, 8)), (Table{{40, 0}, {24, 0}}));
  EXPECT_EQ(sent(model, team_of(row_of_team({4, 4}, {2, 2}), 0, 8)), (Table{{16, 16}, {16, 16}}));
}

TEST(Team, ShareKeyValueHeadsOfAGroup) {
  const auto needed = [](i64 begin, i64 count) {
    const HeadRange range = key_value_heads({begin, count}, 8, 2);
    return std::pair(range.begin, range.count);
  };
  EXPECT_EQ(needed(0, 4), std::pair(i64{0}, i64{1}));
  EXPECT_EQ(needed(3, 2), std::pair(i64{0}, i64{2}));
  EXPECT_EQ(needed(7, 1), std::pair(i64{1}, i64{1}));
  EXPECT_EQ(needed(5, 0).second, 0);
}

/// What each port of an even team counts, forth and back, is b s h (n-1)/n (2 + 2/m)/n (2').
TEST(Team, CountsTheBytesOfTheClosedForm) {
  ModelConfig model = load_model("llama-3.1-8b");
  for (const i64 n : {2, 4, 8}) {
    const Cluster cluster = testing::make_cluster(static_cast<i32>(n), 1, 1);
    StrategyRequest request;
    request.seq_len = 64, request.sequences = 1;
    request.team = {n};
    Plan plan = find_strategy("sp_ep").make(model, cluster, request);
    plan.wire_forward = plan.wire_backward = Wire::kBf16;
    const Placement placement(plan, model, {});
    const WorkModel work(placement, model, cluster);
    Bytes forth = 0;
    for (const OpKind kind : {OpKind::kToHeads, OpKind::kToTokens}) {
      for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
        const Op op{.kind = kind, .phase = phase, .group = 0, .team = 0, .layer = 3, .microbatch = 0};
        const std::vector<DeviceId> among = participants(op, placement);
        ASSERT_EQ(static_cast<i64>(among.size()), n);
        const std::vector<PortBytes> bytes = work.port_bytes(op, among, nullptr);
        for (const PortBytes& of_device : bytes) {
          EXPECT_EQ(of_device.local_out, bytes[0].local_out);
          EXPECT_EQ(of_device.local_in, bytes[0].local_out);
        }
        forth += phase == Phase::kForward ? bytes[0].local_out : 0;
      }
    }
    const double s = 64, h = 4096, m = 4, all = static_cast<double>(n);
    EXPECT_DOUBLE_EQ(forth, 2 * s * h * (all - 1) / all * (2 + 2 / m) / all) << n;
  }
}

TEST(Team, FaultsAreNamed) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = testing::make_cluster(2, 1, 1);
  StrategyRequest request;
  request.seq_len = 8, request.sequences = 1;
  const Plan sound = find_strategy("sp_ep").make(model, cluster, request);
  ASSERT_EQ(validate(sound, model, cluster), std::vector<std::string>{});
  const auto fault_of = [&](auto spoil) {
    Plan plan = sound;
    spoil(plan.groups[0].layers[0]);
    const std::vector<std::string> faults = validate(plan, model, cluster);
    return faults.empty() ? "" : faults[0];
  };
  EXPECT_EQ(fault_of([](LayerPlacement& layer) { ++layer.attention[0][1].tokens; }),
            "[groups[0].layers[0].attention] tokens of team 0 add up to 9, expected 8: 1 sequences of 8");
  EXPECT_EQ(
      fault_of([](LayerPlacement& layer) { --layer.attention[0][0].heads; }),
      fmt::format("[groups[0].layers[0].attention] heads of team 0 add up to {}, but model tiny has {} query "
                  "heads",
                  model.num_heads - 1, model.num_heads));
  EXPECT_EQ(
      fault_of([](LayerPlacement& layer) { layer.attention[0][1].team = -1; }),
      "[groups[0].layers[0].attention] device 1 is in no team beside devices that are in one, expected teams "
      "in all shares or in none");
  EXPECT_EQ(
      fault_of([](LayerPlacement& layer) { layer.attention[0][1].team = 2; }),
      "[groups[0].layers[0].attention] team 2 is number 1 of its row, expected numbers in the order of the "
      "row");
  EXPECT_EQ(
      fault_of([](LayerPlacement& layer) { layer.attention_backward = layer.attention; }),
      "[groups[0].layers[0].attention_backward] got shares of its own in a layer whose attention part has "
      "teams, expected none");
}

/// Plans without teams keep their text, and those with teams come back from it.
TEST(Team, IsWrittenOnlyWhereThereIsOne) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = testing::make_cluster(2, 1, 1);
  StrategyRequest request;
  request.seq_len = 8, request.sequences = 2;
  const std::string without = to_json(find_strategy("ep").make(model, cluster, request)).dump();
  EXPECT_EQ(without.find("\"team\""), std::string::npos);
  request.team = {2};
  const Plan plan = find_strategy("sp_ep").make(model, cluster, request);
  const Plan again = plan_from_json(to_json(plan), "plan");
  EXPECT_EQ(again.groups[0].layers[1].attention, plan.groups[0].layers[1].attention);
  EXPECT_EQ(again.groups[0].head, plan.groups[0].head);
}

}  // namespace
}  // namespace hetermoe
