#include <gtest/gtest.h>

#include <map>

#include "hetermoe/base/index.h"
#include "hetermoe/schedule/lifetimes.h"
#include "tests/support/strategy_plans.h"

// Parameters in the access table: who reads them, who changes them, and that no step frees them.
namespace hetermoe::testing {
namespace {

/// Which states an op may use on a device, by what it computes.
std::vector<i32> states_used(const Op& op, const Placement& p, DeviceId device) {
  const auto on_device = [&](UnitPart part, i32 layer) {
    const std::span<const i32> states = p.states().on(device, part, layer);
    return std::vector<i32>(states.begin(), states.end());
  };
  if (op.kind == OpKind::kEmbed)
    return op.phase == Phase::kForward ? on_device(UnitPart::kEmbed, -1) : std::vector<i32>{};
  if (op.kind == OpKind::kHead) return on_device(p.states().tied() ? UnitPart::kEmbed : UnitPart::kHead, -1);
  if (op.kind == OpKind::kAttention || op.kind == OpKind::kProject)
    return on_device(UnitPart::kAttention, op.layer);
  if (op.kind == OpKind::kScores && p.team_of(op, device).latents)  // makes keys and values
    return on_device(UnitPart::kAttention, op.layer);
  if (op.kind == OpKind::kExperts) return on_device(UnitPart::kExperts, op.layer);
  if (op.kind == OpKind::kUpdate) return {op.state};
  return {};
}

TEST(Params, AreReadByOpsThatUseThemAndChangedByTheirUpdate) {
  const Cluster cluster = make_cluster(4, 3);
  for (const char* name : {"tiny", "tiny-deepseek-v2"}) {
    const ModelConfig model = load_model(name);
    for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
      const Schedule schedule = build_schedule(named.plan, model);
      const Placement placement(named.plan, model, {});
      i64 changed = 0;
      for (OpId id = 0; id < schedule.num_ops(); ++id) {
        const Op& op = schedule.ops[idx(id)];
        for (const LaneId lane : schedule.lanes_of(id)) {
          std::vector<Access> all;
          accesses(op, device_of(lane), placement, all);
          std::vector<i32> touched;
          for (const Access& access : all) {
            if (access.buffer() != Buffer::kParams) continue;
            touched.push_back(access.key.state());
            EXPECT_EQ(access.mode, op.kind == OpKind::kUpdate ? Mode::kAdd : Mode::kRead);
          }
          EXPECT_EQ(touched, states_used(op, placement, device_of(lane)))
              << named.name << " " << to_string(op);
          changed += op.kind == OpKind::kUpdate ? 1 : 0;
        }
      }
      i64 copies = 0;
      for (const State& state : schedule.states) copies += static_cast<i64>(state.devices.size());
      EXPECT_EQ(changed, copies) << named.name;
    }
  }
}

TEST(Params, OutliveTheStep) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = make_cluster(4, 3);
  for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    const Schedule schedule = build_schedule(named.plan, model);
    const Lifetimes lifetimes = make_lifetimes(schedule, Placement(named.plan, model, {}));
    for (const Epoch& epoch : lifetimes.epochs) EXPECT_NE(epoch.key.buffer(), Buffer::kParams);
  }
}

/// Frozen units: ascending states, no op of theirs, and a sound schedule under every plan and option.
TEST(FrozenStates, AreApartFromThoseThatAreTrained) {
  const Cluster cluster = make_cluster(4, 3);
  const ModelConfig model = load_model("tiny");
  StepOptions options;
  for (const Unit& unit : units(model)) {
    if (unit.expert % 2 == 1) options.frozen.push_back(unit);
  }
  for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    const Schedule schedule = build_schedule(named.plan, model, options);
    EXPECT_EQ(validate(schedule, named.plan, model, options), std::vector<std::string>{}) << named.name;
    for (const State& state : schedule.states) {
      for (const ExpertId expert : state.experts) EXPECT_EQ(state.trainable, expert % 2 == 0) << named.name;
    }
    std::map<OpKind, i64> ops;
    for (const Op& op : schedule.ops) {
      ++ops[op.kind];
      if (op.state >= 0) {
        EXPECT_TRUE(schedule.states[idx(op.state)].trainable) << named.name << " " << to_string(op);
      }
    }
    EXPECT_EQ(ops[OpKind::kNorm], 1);
    EXPECT_GT(ops[OpKind::kUpdate], 0);
  }
}

TEST(FrozenStates, WithoutTheEmbeddingNobodyCarriesItsGradient) {
  const Cluster cluster = make_cluster(4, 3);
  const ModelConfig model = load_model("tiny");
  const StepOptions options{.frozen = {Unit{}}};
  for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    const Schedule schedule = build_schedule(named.plan, model, options);
    EXPECT_EQ(validate(schedule, named.plan, model, options), std::vector<std::string>{}) << named.name;
    for (const Op& op : schedule.ops) {
      if (op.phase != Phase::kBackward) continue;
      EXPECT_NE(op.kind, OpKind::kEmbed) << named.name;
      EXPECT_FALSE(op.kind == OpKind::kMove && op.layer == 0) << named.name;
    }
  }
}

}  // namespace
}  // namespace hetermoe::testing
