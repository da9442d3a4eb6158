#include "hetermoe/schedule/residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "hetermoe/cost/price.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/schedule/builder.h"
#include "tests/support/planted_fault.h"
#include "tests/support/strategy_plans.h"
#include "tests/support/with_hosts.h"

namespace hetermoe::testing {
namespace {

const std::vector<std::vector<std::string>> kResidences = {{"optimizer"},
                                                           {"experts.optimizer"},
                                                           {"all"},
                                                           {"experts.weights"},
                                                           {"attention.weights", "embed.optimizer"},
                                                           {"optimizer", "layers 1:all"},
                                                           {"saved"},
                                                           {"layers 1:saved"},
                                                           {"all", "saved"}};
constexpr Recompute kRecomputes[] = {Recompute::kLocal, Recompute::kAhead, Recompute::kResend};

template <class F>
void for_each_plan(const ModelConfig& model, const Cluster& cluster, F&& f) {
  i64 count = 0;
  for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    for (const std::vector<std::string>& residence : kResidences) {
      for (const i32 slots : {1, 2, 3}) {
        Plan plan = named.plan;
        offload(plan, model, cluster, residence, "test");
        plan.slots = {slots, slots, slots};
        plan.recompute = kRecomputes[count % 3];
        plan.weight_gradients = count % 2 == 0 ? WeightGradients::kWith : WeightGradients::kAfter;
        if (count++ % 4 == 3) plan.chunks = 2;
        f(named.name + " " + residence.back() + " slots " + std::to_string(slots), plan);
      }
    }
  }
}

// Claim (Residency.*, OffloadGolden.*): which fetches and stores there are, when, and that nothing travels
// twice
TEST(Residency, EveryStrategyWithEveryResidenceIsSound) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = with_hosts(load_cluster("demo"));
  i64 visits = 0, saved = 0;
  for_each_plan(model, cluster, [&](const std::string& what, const Plan& plan) {
    ASSERT_EQ(validate(plan, model, cluster), std::vector<std::string>{}) << what;
    for (const bool backward : {true, false}) {
      StepOptions options;
      options.backward = backward;
      const Schedule schedule = build_schedule(plan, model, options);
      EXPECT_EQ(validate(schedule, plan, model, options), std::vector<std::string>{}) << what;
      for (const Op& op : schedule.ops) {
        visits += op.slot >= 0 ? 1 : 0;
        saved += is_saved_copy(op) ? 1 : 0;
        EXPECT_TRUE(backward || !is_saved_copy(op)) << what;
      }
    }
  });
  EXPECT_GT(visits, 1000);
  EXPECT_GT(saved, 1000);
}

TEST(Residency, OrdersCanBeWrittenOut) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = with_hosts(load_cluster("demo"));
  for_each_plan(model, cluster, [&](const std::string& what, const Plan& plan) {
    const Schedule schedule = build_schedule(plan, model);
    Plan listed = plan;
    listed.order = OrderPolicy::kExplicit;
    listed.explicit_order = to_text(schedule);
    EXPECT_EQ(hash(build_schedule(listed, model)), hash(schedule)) << what;
  });
}

/// Bytes over the links: of weights that stay, the gradient once to each host and the weights back to every
/// device; of weights that visit, one fetch per visit and one store per visit with gradients.
TEST(Residency, NothingTravelsTwice) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = with_hosts(load_cluster("demo"));
  for_each_plan(model, cluster, [&](const std::string& what, const Plan& plan) {
    const Placement placement(plan, model, {});
    const Schedule schedule = build_schedule(placement);
    std::map<std::pair<i32, DeviceId>, i64> fetches, stores;
    for (const Op& op : schedule.ops) {
      if (is_saved_copy(op)) continue;
      if (op.kind == OpKind::kFetch) ++fetches[{op.state, op.device}];
      if (op.kind == OpKind::kStore) ++stores[{op.state, op.device}];
    }
    for (std::size_t s = 0; s < schedule.states.size(); ++s) {
      const State& state = schedule.states[s];
      i64 num_stores = 0;
      for (const DeviceId device : state.devices) {
        num_stores += stores[{static_cast<i32>(s), device}];
        if (state.visits() || state.homes.empty()) continue;
        EXPECT_EQ((fetches[{static_cast<i32>(s), device}]), 1) << what << " state " << s;
      }
      if (!state.visits()) {
        EXPECT_EQ(num_stores, static_cast<i64>(state.homes.size())) << what;
      }
    }
  });
}

/// The host sums in the order of stores, and a lane keeps it: a store that comes late would hold up the next
/// step's copies.
TEST(Residency, ADevicesGradientsAreStoredWhenItIsDone) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = with_hosts(load_cluster("demo"));
  i64 stores = 0;
  for_each_plan(model, cluster, [&](const std::string& what, const Plan& plan) {
    const Placement placement(plan, model, {});
    const Schedule schedule = build_schedule(placement);
    std::map<std::pair<i32, DeviceId>, OpId> last_add, last_store;
    std::map<DeviceId, std::vector<OpId>> computed;
    for (OpId id = 0; id < static_cast<OpId>(schedule.ops.size()); ++id) {
      const Op& op = schedule.ops[idx(id)];
      if (op.kind == OpKind::kStore && !is_saved_copy(op)) last_store[{op.state, op.device}] = id;
      if (!is_compute(op.kind) || op.state >= 0) continue;
      const DeviceId device = device_of(schedule.lanes_of(id)[0]);
      computed[device].push_back(id);
      const std::optional<UsedPart> graded = graded_part(op, placement);
      if (!graded) continue;
      for (const i32 state : placement.states().on(device, graded->part, graded->layer))
        last_add[{state, device}] = id;
    }
    for (const auto& [at, store] : last_store) {
      if (!schedule.states[idx(at.first)].visits()) continue;
      const std::vector<OpId>& ops = computed[at.second];
      EXPECT_EQ(*std::prev(std::upper_bound(ops.begin(), ops.end(), store)), last_add.at(at)) << what;
      ++stores;
    }
  });
  EXPECT_GT(stores, 1000);
}

/// Zebra takes a layer once forward and once backward through all microbatches: with two slots the last two
/// layers still lie there when the backward pass begins.
TEST(Residency, ZebraFetchesALayerOncePerPass) {
  const ModelConfig model = load_model("demo");  // four layers, all with experts
  const Cluster cluster = with_hosts(load_cluster("demo"));
  Plan plan = find_strategy("zebra").make(model, cluster, small_step());
  offload(plan, model, cluster, {"experts.weights"}, "test");
  const Schedule schedule = build_schedule(plan, model);
  std::map<i32, i64> fetches;  // by layer, on the first device with experts
  DeviceId device = -1;
  for (const Op& op : schedule.ops) {
    if (op.kind != OpKind::kFetch) continue;
    if (device < 0) device = op.device;
    if (op.device == device) ++fetches[schedule.states[static_cast<std::size_t>(op.state)].layer];
  }
  EXPECT_EQ(fetches, (std::map<i32, i64>{{0, 2}, {1, 2}, {2, 1}, {3, 1}}));
}

/// Of each piece on each device at most one store; a fetch has a store, and but for recompute resend, which
/// uses inputs twice in a wave, there is one.
TEST(SavedOnHosts, NothingTravelsTwice) {
  const ModelConfig model = load_model("demo");
  const Cluster cluster = with_hosts(load_cluster("demo"));
  i64 count = 0;
  for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    for (const Recompute recompute : kRecomputes) {
      for (const i32 slots : {1, 2, 3}) {
        Plan plan = named.plan;
        offload(plan, model, cluster, {"saved"}, "test");
        plan.recompute = recompute;
        plan.slots.saved = slots;
        std::map<std::string, i64> stores, fetches;
        for (const Op& op : build_schedule(plan, model).ops) {
          if (!is_saved_copy(op)) continue;
          ++(op.kind == OpKind::kStore ? stores : fetches)[to_string(op).substr(6)];
        }
        for (const auto& [piece, number] : stores) EXPECT_EQ(number, 1) << named.name << " " << piece;
        for (const auto& [piece, number] : fetches) {
          EXPECT_TRUE(stores.count(piece) == 1 || stores.count(" " + piece) == 1)
              << named.name << " " << piece;
          EXPECT_TRUE(number == 1 || recompute == Recompute::kResend) << named.name << " " << piece;
        }
        count += static_cast<i64>(fetches.size());
      }
    }
  }
  EXPECT_GT(count, 500);
}

/// One microbatch at a time through four layers with two slots: the last two layers make no copies.
TEST(SavedOnHosts, WhatStillLiesInASlotAtTheTurnIsNotCopied) {
  const ModelConfig model = load_model("demo");
  const Cluster cluster = with_hosts(load_cluster("demo"));
  Plan plan = find_strategy("single").make(model, cluster, small_step());
  offload(plan, model, cluster, {"saved"}, "test");
  std::map<std::string, i64> copies;  // kind, piece and layer
  for (const Op& op : build_schedule(plan, model).ops) {
    if (is_saved_copy(op)) ++copies[fmt::format("{} {} of l{}", name_of(op.kind), op.chunk, op.layer)];
  }
  EXPECT_EQ(copies, (std::map<std::string, i64>{{"store 0 of l0", 2},
                                                {"store 0 of l1", 2},
                                                {"store 1 of l0", 2},
                                                {"store 1 of l1", 2},
                                                {"fetch 0 of l0", 2},
                                                {"fetch 0 of l1", 2},
                                                {"fetch 1 of l0", 2},
                                                {"fetch 1 of l1", 2}}));
}

std::vector<Planted> planted_faults() {
  return {
      {"slot off by one",
       [](Schedule& s, OpId op) {
         Op& at = s.ops[static_cast<std::size_t>(op)];
         if (at.kind != OpKind::kExperts) return false;
         at.slot = static_cast<std::int16_t>(1 - at.slot);
         return true;
       },
       "slot"},
      {"fetch to another slot",
       [](Schedule& s, OpId op) {
         Op& at = s.ops[static_cast<std::size_t>(op)];
         if (at.kind != OpKind::kFetch) return false;
         at.slot = static_cast<std::int16_t>(1 - at.slot);
         return true;
       },
       "goes to slot"},
      {"fetch before the last reader of the slot",
       [](Schedule& s, OpId op) {
         return s.ops[static_cast<std::size_t>(op)].kind == OpKind::kFetch && drop_dependency(s, op);
       },
       "may start on device"},
      {"gradient stored before it is complete",
       [](Schedule& s, OpId op) {
         return s.ops[static_cast<std::size_t>(op)].kind == OpKind::kStore && drop_dependency(s, op);
       },
       "may start on device"},
      {"another state stored twice",
       [](Schedule& s, OpId op) {
         Op& at = s.ops[static_cast<std::size_t>(op)];
         if (at.kind != OpKind::kStore) return false;
         for (std::size_t later = static_cast<std::size_t>(op) + 1; later < s.ops.size(); ++later) {
           if (s.ops[later].kind == OpKind::kStore && s.ops[later].device == at.device) {
             s.ops[later].state = at.state;
             return true;
           }
         }
         return false;
       },
       "is not part of the step"},
  };
}

TEST(Residency, PlantedFaultsAreFound) {
  ModelConfig model = load_model("tiny");
  model.num_layers = 5;
  model.dense_layer.assign(5, false);
  const Cluster cluster = with_hosts(load_cluster("demo"));
  Plan plan = find_strategy("zebra").make(model, cluster, small_step());
  offload(plan, model, cluster, {"experts.weights"}, "test");
  const Schedule sound = build_schedule(plan, model);
  for (const Planted& fault : planted_faults()) expect_found(fault, sound, plan, model);
}

std::vector<Planted> planted_in_saved() {
  const auto is_copy = [](const Schedule& s, OpId op, OpKind kind) {
    const Op& at = s.ops[static_cast<std::size_t>(op)];
    return is_saved_copy(at) && at.kind == kind;
  };
  return {
      {"backward reads another slot",
       [](Schedule& s, OpId op) {
         Op& at = s.ops[static_cast<std::size_t>(op)];
         if (at.kind != OpKind::kExperts || at.phase != Phase::kBackward) return false;
         at.saved = static_cast<std::int16_t>(1 - at.saved);
         return true;
       },
       "of saved activations, expected"},
      {"fetch to another slot",
       [=](Schedule& s, OpId op) {
         Op& at = s.ops[static_cast<std::size_t>(op)];
         if (!is_copy(s, op, OpKind::kFetch)) return false;
         at.slot = static_cast<std::int16_t>(1 - at.slot);
         return true;
       },
       "goes to slot"},
      {"fetch before the last reader of the slot, or before the store",
       [=](Schedule& s, OpId op) { return is_copy(s, op, OpKind::kFetch) && drop_dependency(s, op); },
       "may start on"},
      {"store before its rows are there",
       [=](Schedule& s, OpId op) { return is_copy(s, op, OpKind::kStore) && drop_dependency(s, op); },
       "may start on"},
      {"another microbatch is fetched",
       [=](Schedule& s, OpId op) {
         Op& at = s.ops[static_cast<std::size_t>(op)];
         if (!is_copy(s, op, OpKind::kFetch)) return false;
         at.microbatch = 1 - at.microbatch;
         return true;
       },
       "is not part of the step"},
  };
}

TEST(SavedOnHosts, PlantedFaultsAreFound) {
  const ModelConfig model = load_model("demo");
  const Cluster cluster = with_hosts(load_cluster("demo"));
  for (const char* strategy : {"zebra", "ep"}) {
    Plan plan = find_strategy(strategy).make(model, cluster, small_step());
    offload(plan, model, cluster, {"saved"}, "test");
    const Schedule sound = build_schedule(plan, model);
    SCOPED_TRACE(strategy);
    for (const Planted& fault : planted_in_saved()) expect_found(fault, sound, plan, model);
  }
}

/// The dependency that keeps a fetch from a slot whose last reader still works: each one that is there is
/// needed.
TEST(SavedOnHosts, EveryDependencyOfACopyIsNeeded) {
  const ModelConfig model = load_model("demo");
  const Cluster cluster = with_hosts(load_cluster("demo"));
  Plan plan = find_strategy("zebra").make(model, cluster, small_step());
  offload(plan, model, cluster, {"saved"}, "test");
  const Schedule sound = build_schedule(plan, model);
  i64 dropped = 0;
  for (OpId op = 0; op < sound.num_ops(); ++op) {
    if (!is_saved_copy(sound.ops[static_cast<std::size_t>(op)])) continue;
    Schedule planted = sound;
    if (!drop_dependency(planted, op)) continue;
    ++dropped;
    EXPECT_NE(validate(planted, plan, model, {}), std::vector<std::string>{})
        << to_string(sound.ops[static_cast<std::size_t>(op)]);
  }
  EXPECT_GT(dropped, 30);
}

}  // namespace
}  // namespace hetermoe::testing
