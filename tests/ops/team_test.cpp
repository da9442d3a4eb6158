#include "hetermoe/placement/team.h"

#include <gtest/gtest.h>

#include "hetermoe/cost/measured.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/schedule/schedule.h"
#include "hetermoe/sim/simulator.h"
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
      out.back().push_back(from.tokens * width_to_heads(model, team, to.heads));
  }
  return out;
}

using Table = std::vector<std::vector<i64>>;

/// MegaScale-MoE's volumes by hand: a key-value head goes to both devices that need it; no heads, no numbers.
// Claim (Team.*): bytes of a team's exchanges are those of the closed forms; its plans are written only where
// there is one
TEST(Team, SendsWhatTheHeadsOfTheOtherNeed) {
  const ModelConfig model = narrow_heads(4, 2);
  EXPECT_EQ(sent(model, team_of(row_of_team({6, 2}, {3, 1}), 0, 8, 0)), (Table{{42, 18}, {14, 6}}));
  EXPECT_EQ(sent(model, team_of(row_of_team({5, 3}, {4, 0}), 0, 8, 0)), (Table{{40, 0}, {24, 0}}));
  EXPECT_EQ(sent(model, team_of(row_of_team({4, 4}, {2, 2}), 0, 8, 0)), (Table{{16, 16}, {16, 16}}));
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

/// What a device of an even team sends to heads and back to tokens, bf16. All send and get as much, and as
/// much in backward.
struct SentByOne {
  Bytes to_heads = 0, to_tokens = 0;
};
SentByOne sent_by_one(const ModelConfig& model, i64 n, i64 seq_len) {
  const Cluster cluster = testing::make_cluster(static_cast<i32>(n), 1, 1);
  StrategyRequest request;
  request.seq_len = seq_len, request.sequences = 1;
  request.team = {n};
  Plan plan = find_strategy("sp-ep").make(model, cluster, request);
  plan.wire_forward = plan.wire_backward = Wire::kBf16;
  const Placement placement(plan, model, {});
  const WorkModel work(placement, model, cluster);
  const auto of = [&](OpKind kind) {
    Bytes sent = -1;
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      const Op op{.kind = kind, .phase = phase, .group = 0, .team = 0, .layer = 3, .microbatch = 0};
      const std::vector<DeviceId> among = participants(op, placement);
      EXPECT_EQ(static_cast<i64>(among.size()), n);
      for (const PortBytes& of_device : work.port_bytes(op, among, nullptr)) {
        if (sent < 0) sent = of_device.local_out;
        EXPECT_EQ(of_device.local_out, sent);
        EXPECT_EQ(of_device.local_in, sent);
      }
    }
    return sent;
  };
  return {of(OpKind::kToHeads), of(OpKind::kToTokens)};
}

/// b s h (n-1)/n (2 + 2/m)/n (2').
TEST(Team, CountsTheBytesOfTheClosedForm) {
  const ModelConfig model = load_model("llama-3.1-8b");
  for (const i64 n : {2, 4, 8}) {
    const SentByOne sent = sent_by_one(model, n, 64);
    const double s = 64, h = 4096, m = 4, all = static_cast<double>(n);
    EXPECT_DOUBLE_EQ(sent.to_heads + sent.to_tokens, 2 * s * h * (all - 1) / all * (2 + 2 / m) / all) << n;
  }
}

/// deepseek-v2: 128 heads, queries and keys of 192, values of 128, latents of 512 and a turned key of 64. At
/// 64 devices they are not half of the keys and values of two heads.
TEST(Team, CountsTheBytesOfLatents) {
  const ModelConfig model = load_model("deepseek-v2");
  EXPECT_EQ(most_for_latents(model), 35);  // 35 * 2 * 576 < 128 * (192 + 128) < 36 * 2 * 576
  EXPECT_EQ(most_for_latents(load_model("llama-3.1-8b")), 0);
  for (const double n : {2, 8, 32, 64}) {
    const double beside = n < 36 ? 576 : 128 / n * (192 + 128);
    const double each = 256 / n * (n - 1) * 2;  // bytes that go away, for each number of a token
    const SentByOne sent = sent_by_one(model, static_cast<i64>(n), 256);
    EXPECT_DOUBLE_EQ(sent.to_heads, each * (128 / n * 192 + beside)) << n;
    EXPECT_DOUBLE_EQ(sent.to_tokens, each * 128 / n * 128) << n;
  }
}

/// With heads in parts every query head is in one part of its device, and as many numbers travel as in one
/// part: keys, values and latents once.
// Claim (Team.PartsOfHeads*): heads in parts send each number once, and hide their exchange behind the kernel
TEST(Team, PartsOfHeadsSendEachNumberOnce) {
  testing::Chooser choose(5);
  for (int i = 0; i < 200; ++i) {
    const i64 groups = choose.between(1, 8), heads = groups * choose.between(1, 6);
    const ModelConfig model = i % 4 == 0 ? load_model("tiny-deepseek-v2") : narrow_heads(heads, groups);
    const auto members = static_cast<std::size_t>(choose.between(1, 4));
    const Team whole = team_of(row_of_team(testing::random_plan::parts_of(choose, 8, members),
                                           testing::random_plan::parts_of(choose, model.num_heads, members)),
                               0, 8, most_for_latents(model));
    const i32 parts = static_cast<i32>(choose.between(1, 9));
    for (std::size_t m = 0; m < members; ++m) {
      i64 next = whole.members[m].heads.begin, numbers = 0;
      for (i32 part = 0; part < parts; ++part) {
        const Team team = whole.with_part(model.num_heads, model.num_kv_heads, part, parts);
        const TeamMember& member = team.members[m];
        EXPECT_EQ(team.latents, whole.latents);
        EXPECT_EQ(member.heads.begin, next);
        next = member.heads.end();
        numbers += width_to_heads(model, team, member);
      }
      EXPECT_EQ(next, whole.members[m].heads.end());
      EXPECT_EQ(numbers, width_to_heads(model, whole, whole.members[m].heads));
    }
  }
}

/// Two devices of a key-value head each, four query heads to it: parts cut these.
TEST(Team, PartsOfHeadsHideTheExchange) {
  ModelConfig model = load_model("llama-3.1-8b");
  model.num_layers = 2, model.dense_layer.resize(2);
  const Cluster cluster = testing::make_cluster(8, 1, 1);
  StrategyRequest request;
  request.seq_len = 8192, request.sequences = 1;
  request.team = {8};
  Plan plan = find_strategy("sp-ep").make(model, cluster, request);
  const auto step = [&](i32 parts) {
    plan.head_parts = parts;
    const Placement placement(plan, model, {});
    return simulate(build_schedule(plan, model), placement, model, cluster,
                    *make_cost(model, cluster, plan, {}), ExpectedRouting(model))
        .step;
  };
  const Seconds one = step(1), two = step(2), four = step(4);
  EXPECT_LT(two, one);
  EXPECT_LT(four, two);
}

/// Devices without heads get no latents, and do not count.
TEST(Team, SendsLatentsToDevicesWithHeads) {
  ModelConfig model = load_model("tiny-deepseek-v2");
  model.kv_lora_rank = 12;  // a query has 24 numbers, a latent 12 and 8
  const auto team = [&](const std::vector<i64>& heads) {
    return team_of(row_of_team({2, 2, 2, 2}, heads), 0, 8, most_for_latents(model));
  };
  EXPECT_EQ(sent(model, team({2, 0, 1, 1}))[0], (std::vector<i64>{2 * 68, 0, 2 * 44, 2 * 44}));
  EXPECT_FALSE(team({1, 1, 1, 1}).latents);
  EXPECT_EQ(sent(model, team({1, 1, 1, 1}))[0], (std::vector<i64>(4, 2 * 64)));
}

TEST(Team, FaultsAreNamed) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = testing::make_cluster(2, 1, 1);
  StrategyRequest request;
  request.seq_len = 8, request.sequences = 1;
  const Plan sound = find_strategy("sp-ep").make(model, cluster, request);
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
  const Plan plan = find_strategy("sp-ep").make(model, cluster, request);
  const Plan again = plan_from_json(to_json(plan), "plan");
  EXPECT_EQ(again.groups[0].layers[1].attention, plan.groups[0].layers[1].attention);
  EXPECT_EQ(again.groups[0].head, plan.groups[0].head);
}

}  // namespace
}  // namespace hetermoe
