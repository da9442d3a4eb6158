#include <gtest/gtest.h>

#include <map>

#include "hetermoe/plan/offload.h"
#include "hetermoe/schedule/builder.h"
#include "tests/support/planted_fault.h"
#include "tests/support/strategy_plans.h"

// Weights that are divided over the devices that hold them, and gathered for each visit.
namespace hetermoe::testing {
namespace {

constexpr Recompute kGatheredRecomputes[] = {Recompute::kLocal, Recompute::kAhead, Recompute::kResend,
                                             Recompute::kOff, Recompute::kSelect};

/// Strategies x slots; recomputation, gradients of weights and chunks take turns.
template <class F>
void for_each_gathered(const ModelConfig& model, const Cluster& cluster, F&& f) {
  std::size_t count = 0;
  for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    for (const i32 slots : {1, 2, 3}) {
      Plan plan = named.plan;
      shard_weights(plan);
      plan.slots.attention = slots;
      plan.recompute = kGatheredRecomputes[count % std::size(kGatheredRecomputes)];
      plan.weight_gradients = count % 2 == 0 ? WeightGradients::kWith : WeightGradients::kAfter;
      if (count++ % 3 == 2) plan.chunks = 2;
      f(named.name + " slots " + std::to_string(slots), plan);
    }
  }
}

i64 count_ops(const Schedule& schedule, OpKind kind, i32 state) {
  return std::count_if(schedule.ops.begin(), schedule.ops.end(),
                       [&](const Op& op) { return op.kind == kind && op.state == state; });
}

TEST(Gathered, EveryStrategyIsSound) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  i64 gathers = 0;
  for_each_gathered(model, cluster, [&](const std::string& what, const Plan& plan) {
    ASSERT_EQ(validate(plan, model, cluster), std::vector<std::string>{}) << what;
    for (const bool backward : {true, false}) {
      StepOptions options;
      options.backward = backward;
      const Schedule schedule = build_schedule(plan, model, options);
      EXPECT_EQ(validate(schedule, plan, model, options), std::vector<std::string>{}) << what;
      for (std::size_t s = 0; s < schedule.states.size(); ++s) {
        const State& state = schedule.states[s];
        const i64 here = count_ops(schedule, OpKind::kAllGather, static_cast<i32>(s));
        EXPECT_EQ(state.gathered(), state.part != UnitPart::kExperts && state.devices.size() > 1) << what;
        if (!state.gathered()) continue;
        EXPECT_GE(here, 1) << what;
        EXPECT_EQ(count_ops(schedule, OpKind::kReduceScatter, static_cast<i32>(s)) >= 1, backward) << what;
        gathers += here;
      }
    }
  });
  EXPECT_GT(gathers, 200);
}

TEST(Gathered, OrdersCanBeWrittenOut) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  for_each_gathered(model, cluster, [&](const std::string& what, const Plan& plan) {
    const Schedule schedule = build_schedule(plan, model);
    Plan listed = plan;
    listed.order = OrderPolicy::kExplicit;
    listed.explicit_order = to_text(schedule);
    EXPECT_EQ(hash(build_schedule(listed, model)), hash(schedule)) << what;
  });
}

/// Frozen weights are divided, too, and have no gradient to reduce.
TEST(Gathered, FrozenPartsVisit) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  Plan plan = find_strategy("ep").make(model, cluster, small_step());
  shard_weights(plan);
  StepOptions options;
  options.frozen = {{}, {.layer = 0, .part = UnitPart::kAttention}};
  const Schedule schedule = build_schedule(plan, model, options);
  EXPECT_EQ(validate(schedule, plan, model, options), std::vector<std::string>{});
  for (const i32 state : {0, 1}) {
    EXPECT_FALSE(schedule.states[static_cast<std::size_t>(state)].trainable);
    EXPECT_GE(count_ops(schedule, OpKind::kAllGather, state), 1);
    EXPECT_EQ(count_ops(schedule, OpKind::kReduceScatter, state), 0);
  }
}

/// [layer] all_gathers and reduce_scatters of attention parts.
std::map<i32, std::pair<i64, i64>> visits_of_layers(const std::string& strategy) {
  const ModelConfig model = load_model("demo");  // four layers
  const Cluster cluster = load_cluster("demo");
  Plan plan = find_strategy(strategy).make(model, cluster, small_step());
  shard_weights(plan);
  const Schedule schedule = build_schedule(plan, model);
  std::map<i32, std::pair<i64, i64>> all;
  for (std::size_t s = 0; s < schedule.states.size(); ++s) {
    if (schedule.states[s].part != UnitPart::kAttention) continue;
    all[schedule.states[s].layer] = {count_ops(schedule, OpKind::kAllGather, static_cast<i32>(s)),
                                     count_ops(schedule, OpKind::kReduceScatter, static_cast<i32>(s))};
  }
  return all;
}

/// Zebra goes once forward and once backward through the layers; the last two still lie in slots when it
/// turns. Expert parallelism does so for each of two microbatches, whose first two layers are those that the
/// one before used last.
TEST(Gathered, ALayerIsGatheredOncePerPass) {
  using Visits = std::map<i32, std::pair<i64, i64>>;
  EXPECT_EQ(visits_of_layers("zebra"), (Visits{{0, {2, 1}}, {1, {2, 1}}, {2, {1, 1}}, {3, {1, 1}}}));
  EXPECT_EQ(visits_of_layers("ep"), (Visits{{0, {3, 2}}, {1, {3, 2}}, {2, {2, 2}}, {3, {2, 2}}}));
}

/// The next layer comes while this one computes: its gather waits for the layer before, whose slot it takes,
/// and for the gradient of that.
TEST(Gathered, TheNextLayerComesWhileThisOneComputes) {
  const ModelConfig model = load_model("demo");
  const Cluster cluster = load_cluster("demo");
  StrategyRequest request = small_step();
  request.microbatches = 1;
  Plan plan = find_strategy("ep").make(model, cluster, request);
  shard_weights(plan);
  const Schedule schedule = build_schedule(plan, model);
  i64 gathers = 0;
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    const Op& gather = schedule.ops[static_cast<std::size_t>(op)];
    if (gather.kind != OpKind::kAllGather) continue;
    const State& state = schedule.states[static_cast<std::size_t>(gather.state)];
    if (state.gathered()) {
      EXPECT_EQ(queue_of(schedule.lanes_of(op)[0]), Queue::kToDevice);
    }
    if (!state.gathered() || state.part != UnitPart::kAttention) continue;
    ++gathers;
    for (const OpId dep : schedule.deps_of(op)) {
      const Op& before = schedule.ops[static_cast<std::size_t>(dep)];
      const bool reduces = before.kind == OpKind::kReduceScatter;
      EXPECT_TRUE(reduces || before.kind == OpKind::kAttention) << to_string(before);
      const i32 layer =
          reduces ? schedule.states[static_cast<std::size_t>(before.state)].layer : before.layer;
      EXPECT_EQ(std::abs(layer - state.layer), 2) << to_string(gather) << " after " << to_string(before);
    }
  }
  EXPECT_EQ(gathers, 6);
}

/// Groups with different stages: a device is in several teams, whose visits must not meet in a slot.
TEST(Gathered, TeamsOfADeviceHaveSlotsOfTheirOwn) {
  i64 shared = 0;
  for (u64 seed = 0; seed < 200; ++seed) {
    RandomCase c = random_case(seed);
    shard_weights(c.plan);
    const std::vector<State> states = make_states(c.plan, c.model);
    for (const State& a : states) {
      for (const State& b : states) {
        if (!a.gathered() || !b.gathered() || a.part != b.part || a.gatherers == b.gatherers) continue;
        const bool meet = std::any_of(a.devices.begin(), a.devices.end(), [&](DeviceId d) {
          return std::binary_search(b.devices.begin(), b.devices.end(), d);
        });
        if (!meet) continue;
        ++shared;
        EXPECT_GE(std::abs(a.first_slot - b.first_slot), num_slots(c.plan, a.part)) << describe(c);
      }
    }
  }
  EXPECT_GT(shared, 50);
}

TEST(Gathered, RandomPlansAreSound) {
  for (u64 seed = 0; seed < 150; ++seed) {
    RandomCase c = random_case(seed);
    shard_weights(c.plan);
    const Schedule schedule = build_schedule(c.plan, c.model, c.step);
    EXPECT_EQ(validate(schedule, c.plan, c.model, c.step), std::vector<std::string>{}) << describe(c);
  }
}

bool is_visit_of(const Schedule& s, OpId op, OpKind kind) {
  const Op& at = s.ops[static_cast<std::size_t>(op)];
  return at.kind == kind && s.states[static_cast<std::size_t>(at.state)].part == UnitPart::kAttention;
}

/// Makes an op one of the attention part of another layer.
void change_layer(Schedule& s, OpId op) {
  Op& at = s.ops[static_cast<std::size_t>(op)];
  const auto of = s.states.begin() + at.state;
  const auto other = std::find_if(of + 1, s.states.end(),
                                  [](const State& state) { return state.part == UnitPart::kAttention; });
  at.state = static_cast<i32>(other - s.states.begin());
}

std::vector<Planted> gathered_faults() {
  return {
      {"compute reads another slot",
       [](Schedule& s, OpId op) {
         Op& at = s.ops[static_cast<std::size_t>(op)];
         if (at.kind != OpKind::kAttention) return false;
         at.slot = static_cast<std::int16_t>(1 - at.slot);
         return true;
       },
       "uses slot"},
      {"gather into another slot",
       [](Schedule& s, OpId op) {
         if (!is_visit_of(s, op, OpKind::kAllGather)) return false;
         Op& at = s.ops[static_cast<std::size_t>(op)];
         at.slot = static_cast<std::int16_t>(1 - at.slot);
         return true;
       },
       "goes to slot"},
      {"another layer is gathered",
       [](Schedule& s, OpId op) {
         if (!is_visit_of(s, op, OpKind::kAllGather)) return false;
         change_layer(s, op);
         return true;
       },
       "is missing"},
      {"gather before the last reader of the slot",
       [](Schedule& s, OpId op) { return is_visit_of(s, op, OpKind::kAllGather) && drop_dependency(s, op); },
       "may start on device"},
      {"gradient reduced before it is complete",
       [](Schedule& s, OpId op) {
         return is_visit_of(s, op, OpKind::kReduceScatter) && drop_dependency(s, op);
       },
       "may start on device"},
      {"gradient of another visit reduced twice",
       [](Schedule& s, OpId op) {
         if (!is_visit_of(s, op, OpKind::kReduceScatter)) return false;
         change_layer(s, op);
         return true;
       },
       "is not part of the step"},
  };
}

TEST(Gathered, PlantedFaultsAreFound) {
  const ModelConfig model = load_model("demo");
  const Cluster cluster = load_cluster("demo");
  for (const char* strategy : {"zebra", "ep"}) {
    Plan plan = find_strategy(strategy).make(model, cluster, small_step());
    shard_weights(plan);
    const Schedule sound = build_schedule(plan, model);
    SCOPED_TRACE(strategy);
    for (const Planted& fault : gathered_faults()) expect_found(fault, sound, plan, model);
  }
}

/// Of an order that is written out, too.
TEST(Gathered, AGatherThatIsLeftOutIsNamed) {
  const ModelConfig model = load_model("demo");
  const Cluster cluster = load_cluster("demo");
  Plan plan = find_strategy("ep").make(model, cluster, small_step());
  shard_weights(plan);
  const Schedule schedule = build_schedule(plan, model);
  plan.order = OrderPolicy::kExplicit;
  plan.explicit_order = to_text(schedule);
  const auto first = std::find_if(schedule.ops.begin(), schedule.ops.end(), [](const Op& op) {
    return op.kind == OpKind::kAllGather && op.state == 1;
  });
  ASSERT_NE(first, schedule.ops.end());
  const std::string entry = std::to_string(first - schedule.ops.begin()) + " all_gather s1 | ";
  for (std::size_t at = 0; (at = plan.explicit_order.find(entry)) != std::string::npos;)
    plan.explicit_order.erase(at, entry.size());
  try {
    build_schedule(plan, model);
    FAIL() << "nothing is missing";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("all_gather s1 is missing"), std::string::npos) << error.what();
  }
}

TEST(Gathered, AHomeThatCannotBeIsNamed) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  const auto faults = [&](const auto& change) {
    Plan plan = find_strategy("ep").make(model, cluster, small_step());
    shard_weights(plan);
    change(plan.groups[0].layers[0]);
    const std::vector<std::string> all = validate(plan, model, cluster);
    return all.empty() ? std::string() : all[0];
  };
  EXPECT_EQ(faults([](LayerPlacement&) {}), "");
  EXPECT_NE(
      faults([](LayerPlacement& l) {
        l.attention_home->optimizer = Residence::kDevice;
      }).find("layers[0].attention_home.optimizer] got device beside sharded weights, expected sharded"),
      std::string::npos);
  EXPECT_NE(faults([](LayerPlacement& l) {
              l.experts_home = l.attention_home;
            }).find("layers[0].experts_home.weights] got sharded, expected device or host: experts are not"),
            std::string::npos);
}

}  // namespace
}  // namespace hetermoe::testing
