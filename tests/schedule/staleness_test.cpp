#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/schedule/builder.h"
#include "tests/schedule/plans.h"
#include "tests/support/strategy_plans.h"

// A step that computes while the optimizer of the step before still works: what waits for what.
namespace hetermoe::testing {
namespace {

using hetermoe::test::has_fault;
using hetermoe::test::no_faults;

StepOptions lagging() {
  StepOptions options;
  options.staleness = 1;
  return options;
}

struct OffloadedPlan {
  ModelConfig model = load_model("tiny");
  Cluster cluster = load_cluster("demo");
  std::vector<NamedPlan> plans;
};

OffloadedPlan offloaded_plans() {
  OffloadedPlan out;
  for (Node& node : out.cluster.nodes) node.host = NodeHost{.memory_gib = 64};
  out.plans = strategy_plans(out.model, out.cluster, small_step());
  for (NamedPlan& named : out.plans) offload(named.plan, out.model, out.cluster, {"all"}, "test");
  return out;
}

Plan plan_of(const OffloadedPlan& all, const std::string& name) {
  for (const NamedPlan& named : all.plans) {
    if (named.name == name) return named.plan;
  }
  ADD_FAILURE() << "no plan " << name;
  return {};
}

/// What has ended when an op starts: by dependencies and lanes of so many steps.
class Order {
 public:
  Order(const Schedule& step, i32 steps) : all_(repeat(step, steps)), before_(all_.ops.size()) {
    std::vector<OpId> last(idx(all_.num_places()) * kLanesOfPlace, -1);
    for (OpId op = 0; op < all_.num_ops(); ++op) {
      std::set<OpId>& ended = before_[idx(op)];
      const auto add = [&](OpId earlier) {
        ended.insert(before_[idx(earlier)].begin(), before_[idx(earlier)].end());
        ended.insert(earlier);
      };
      for (const OpId dep : all_.deps_of(op)) add(dep);
      for (const LaneId lane : all_.lanes_of(op)) {
        if (last[idx(lane)] >= 0) add(last[idx(lane)]);
        last[idx(lane)] = op;
      }
    }
  }
  bool is_before(OpId first, OpId second) const { return before_[idx(second)].count(first) > 0; }

 private:
  Schedule all_;
  std::vector<std::set<OpId>> before_;
};

TEST(Staleness, EveryStrategyIsSound) {
  const OffloadedPlan all = offloaded_plans();
  for (const NamedPlan& named : all.plans) {
    const Schedule schedule = build_schedule(named.plan, all.model, lagging());
    EXPECT_TRUE(no_faults(validate(schedule, named.plan, all.model, lagging()))) << named.name;
    EXPECT_FALSE(schedule.carry.empty()) << named.name;
    Plan listed = named.plan;
    listed.order = OrderPolicy::kExplicit;
    listed.explicit_order = to_text(schedule);
    EXPECT_EQ(hash(build_schedule(listed, all.model, lagging())), hash(schedule)) << named.name;
  }
}

TEST(Staleness, WithoutItNothingChanges) {
  const OffloadedPlan all = offloaded_plans();
  for (const NamedPlan& named : all.plans) {
    const Schedule schedule = build_schedule(named.plan, all.model);
    EXPECT_FALSE(schedule.overlaps()) << named.name;
    for (const Op& op : schedule.ops) {
      EXPECT_NE(op.kind, OpKind::kPublish) << named.name;
      EXPECT_NE(op.kind, OpKind::kTake) << named.name;
    }
  }
}

/// The ops of a state on a host, in append order.
struct StateOps {
  std::vector<OpId> fetches, stores, publishes, takes, updates;
};

StateOps ops_of(const Schedule& schedule, i32 state, PlaceId host) {
  StateOps out;
  for (OpId id = 0; id < schedule.num_ops(); ++id) {
    const Op& op = schedule.ops[idx(id)];
    const std::span<const LaneId> lanes = schedule.lanes_of(id);
    const bool here = std::any_of(lanes.begin(), lanes.end(), [&](LaneId l) { return device_of(l) == host; });
    if (op.state != state || !here) continue;
    if (op.kind == OpKind::kFetch) out.fetches.push_back(id);
    if (op.kind == OpKind::kStore) out.stores.push_back(id);
    if (op.kind == OpKind::kPublish) out.publishes.push_back(id);
    if (op.kind == OpKind::kTake) out.takes.push_back(id);
    if (op.kind == OpKind::kUpdate) out.updates.push_back(id);
  }
  return out;
}

/// The five rules of the paper, each for every state on every host, in the third of three steps.
void expect_rules(const Schedule& schedule, const Order& order, i32 state, PlaceId host,
                  const std::string& what) {
  const StateOps ops = ops_of(schedule, state, host);
  ASSERT_EQ(ops.publishes.size(), 1u) << what;
  ASSERT_EQ(ops.takes.size(), 1u) << what;
  ASSERT_EQ(ops.updates.size(), 1u) << what;
  ASSERT_FALSE(ops.fetches.empty()) << what;
  ASSERT_FALSE(ops.stores.empty()) << what;
  const OpId n = schedule.num_ops(), now = n, next = 2 * n;
  const OpId publish = ops.publishes[0], take = ops.takes[0], update = ops.updates[0];
  for (const OpId fetch : ops.fetches) {
    EXPECT_TRUE(order.is_before(now + fetch, now + publish)) << what << ": 1, publish after the uploads";
    EXPECT_TRUE(order.is_before(now + publish, next + fetch)) << what << ": 2, next uploads after publish";
  }
  for (const OpId store : ops.stores) {
    EXPECT_TRUE(order.is_before(now + store, now + take)) << what << ": 3, take after the downloads";
    EXPECT_TRUE(order.is_before(now + take, next + store)) << what << ": 4, next downloads after take";
  }
  // 5: both copies stand between two optimizer steps.
  EXPECT_TRUE(order.is_before(update, now + publish)) << what << ": 5, publish after the update before";
  EXPECT_TRUE(order.is_before(now + publish, now + update)) << what << ": 5, publish before the update";
  EXPECT_TRUE(order.is_before(update, now + take)) << what << ": 5, take after the update before";
  EXPECT_TRUE(order.is_before(now + take, now + update)) << what << ": 5, take before the update";
}

TEST(Staleness, TheFiveRulesFollowFromTheTable) {
  const OffloadedPlan all = offloaded_plans();
  for (const NamedPlan& named : all.plans) {
    const Schedule schedule = build_schedule(named.plan, all.model, lagging());
    const Order order(schedule, 3);
    for (std::size_t s = 0; s < schedule.states.size(); ++s) {
      for (const PlaceId host : schedule.states[s].homes)
        expect_rules(schedule, order, static_cast<i32>(s), host, fmt::format("{} state {}", named.name, s));
    }
  }
}

/// No update of a step has to end before the next step computes, and the next step may fetch a state while
/// gradients of another are still on their way.
TEST(Staleness, ThereIsNoBarrier) {
  const OffloadedPlan all = offloaded_plans();
  for (const NamedPlan& named : all.plans) {
    const Schedule schedule = build_schedule(named.plan, all.model, lagging());
    const Order order(schedule, 2);
    const OpId n = schedule.num_ops();
    i64 free_updates = 0, updates = 0, free_of_all_stores = 0;
    for (OpId op = 0; op < n; ++op) {
      const OpKind kind = schedule.ops[idx(op)].kind;
      if (kind == OpKind::kUpdate) {
        ++updates;
        // The last attention part of the next step does not wait for it.
        for (OpId other = 0; other < n; ++other) {
          if (schedule.ops[idx(other)].kind != OpKind::kHead) continue;
          free_updates += order.is_before(op, n + other) ? 0 : 1;
          break;
        }
      }
      if (kind != OpKind::kFetch) continue;
      for (OpId store = 0; store < n; ++store) {
        if (schedule.ops[idx(store)].kind == OpKind::kStore && !order.is_before(store, n + op)) {
          ++free_of_all_stores;
          break;
        }
      }
    }
    EXPECT_EQ(free_updates, updates) << named.name;
    EXPECT_GT(free_of_all_stores, 0) << named.name;
  }
}

/// A host does one thing after another. Gradients come at the end of a step, and the next step must not wait
/// for them to begin with what is published.
TEST(Staleness, AllIsPublishedBeforeGradientsAreTaken) {
  const OffloadedPlan all = offloaded_plans();
  for (const NamedPlan& named : all.plans) {
    const Schedule schedule = build_schedule(named.plan, all.model, lagging());
    OpId last_publish = -1, first_take = schedule.num_ops();
    for (OpId op = 0; op < schedule.num_ops(); ++op) {
      if (schedule.ops[idx(op)].kind == OpKind::kPublish) last_publish = op;
      if (schedule.ops[idx(op)].kind == OpKind::kTake) first_take = std::min(first_take, op);
    }
    EXPECT_GE(last_publish, 0) << named.name;
    EXPECT_LT(last_publish, first_take) << named.name;
    EXPECT_LT(first_take, schedule.num_ops()) << named.name;
  }
}

TEST(Staleness, CarryIsListedOnceAndCounted) {
  const OffloadedPlan all = offloaded_plans();
  const Schedule schedule = build_schedule(plan_of(all, "zebra"), all.model, lagging());
  const Schedule twice = repeat(schedule, 2);
  EXPECT_EQ(twice.num_ops(), 2 * schedule.num_ops());
  EXPECT_EQ(twice.deps.size(), 2 * schedule.deps.size() + schedule.carry.size());
  EXPECT_EQ(twice.lanes.size(), 2 * schedule.lanes.size());
}

// ---- Planted faults ----

void drop_dependencies(Schedule& s, OpId op) {
  const i64 begin = s.dep_begin[idx(op)], count = s.dep_begin[idx(op) + 1] - begin;
  s.deps.erase(s.deps.begin() + begin, s.deps.begin() + begin + count);
  for (std::size_t i = idx(op) + 1; i < s.dep_begin.size(); ++i) s.dep_begin[i] -= count;
}

void drop_carry(Schedule& s, OpId op) {
  const i64 begin = s.carry_begin[idx(op)], count = s.carry_begin[idx(op) + 1] - begin;
  s.carry.erase(s.carry.begin() + begin, s.carry.begin() + begin + count);
  for (std::size_t i = idx(op) + 1; i < s.carry_begin.size(); ++i) s.carry_begin[i] -= count;
}

TEST(StalenessFaults, AnUpdateThatDoesNotWaitIsFound) {
  const OffloadedPlan all = offloaded_plans();
  const Plan plan = plan_of(all, "zebra");
  Schedule schedule = build_schedule(plan, all.model, lagging());
  const auto update = std::find_if(schedule.ops.begin(), schedule.ops.end(),
                                   [](const Op& op) { return op.kind == OpKind::kUpdate; });
  drop_dependencies(schedule, static_cast<OpId>(update - schedule.ops.begin()));
  EXPECT_TRUE(has_fault(validate(schedule, plan, all.model, lagging()), "though both use norm"));
}

TEST(StalenessFaults, EveryCarriedDependencyIsNeeded) {
  const OffloadedPlan all = offloaded_plans();
  const Plan plan = plan_of(all, "zebra");
  const Schedule sound = build_schedule(plan, all.model, lagging());
  i64 dropped = 0;
  for (OpId op = 0; op < sound.num_ops(); ++op) {
    if (sound.carry_of(op).empty()) continue;
    Schedule schedule = sound;
    drop_carry(schedule, op);
    ++dropped;
    EXPECT_TRUE(has_fault(validate(schedule, plan, all.model, lagging()), "of the next step may start"));
  }
  EXPECT_GT(dropped, 10);
}

TEST(StalenessFaults, ADependencyOnTheStepBeforeThatNobodyNeedsIsFound) {
  const OffloadedPlan all = offloaded_plans();
  const Plan plan = plan_of(all, "zebra");
  Schedule schedule = build_schedule(plan, all.model, lagging());
  // A barrier for one op: the first waits for the last of the step before on its device.
  const DeviceId device = device_of(schedule.lanes_of(0)[0]);
  OpId last = 0;
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    for (const LaneId lane : schedule.lanes_of(op)) last = device_of(lane) == device ? op : last;
  }
  schedule.carry.insert(schedule.carry.begin() + schedule.carry_begin[1], last);
  for (std::size_t i = 1; i < schedule.carry_begin.size(); ++i) ++schedule.carry_begin[i];
  EXPECT_TRUE(has_fault(validate(schedule, plan, all.model, lagging()), "but they share no buffer"));
}

/// The order with the last op of one kind just before or behind the last one of another, of the same state.
Plan with_moved(const Plan& plan, const ModelConfig& model, OpKind moved, OpKind anchor, bool behind) {
  const Schedule schedule = build_schedule(plan, model, lagging());
  const auto last = [&](OpKind kind) {
    OpId found = -1;
    for (OpId op = 0; op < schedule.num_ops(); ++op) {
      if (schedule.ops[idx(op)].kind == kind && schedule.ops[idx(op)].state == 1) found = op;
    }
    return found;
  };
  const auto number = [&](OpId op) {
    return op == last(moved) ? 2 * last(anchor) + (behind ? 3 : 1) : 2 * op + 2;
  };
  Plan listed = plan;
  listed.order = OrderPolicy::kExplicit;
  for (PlaceId place = 0; place < schedule.num_places(); ++place) {
    const bool is_host = place >= schedule.num_devices;
    for (i32 at = 0; at < (is_host ? kLanesOfPlace : kNumQueues); ++at) {
      const LaneId here = lane_of(place, Queue::kCompute) + at;
      std::string line = fmt::format("{} {} {}:", is_host ? "host" : "device",
                                     is_host ? place - schedule.num_devices : place, lane_name(here));
      const std::size_t empty = line.size();
      for (OpId op = 0; op < schedule.num_ops(); ++op) {
        for (const LaneId lane : schedule.lanes_of(op)) {
          if (lane != here) continue;
          const std::string text = to_string(schedule.ops[idx(op)]);
          line += fmt::format("{} {} {}", line.size() == empty ? "" : " |", number(op), text);
        }
      }
      if (line.size() > empty) listed.explicit_order += line + "\n";
    }
  }
  return listed;
}

/// Hazards alone allow these orders, with weights of another age.
TEST(StalenessFaults, OpsInAnotherOrderAreFound) {
  const OffloadedPlan all = offloaded_plans();
  const Plan plan = plan_of(all, "ep");
  const struct {
    OpKind moved, anchor;
    bool behind;
    const char* expected;
  } moves[] = {
      {OpKind::kPublish, OpKind::kFetch, false, "comes after its state is published"},
      {OpKind::kTake, OpKind::kStore, false, "comes after the gradients of its state are taken"},
      {OpKind::kPublish, OpKind::kUpdate, true, "comes after the update of its step"},
  };
  for (const auto& move : moves) {
    const Plan listed = with_moved(plan, all.model, move.moved, move.anchor, move.behind);
    const Schedule schedule = build_schedule(listed, all.model, lagging());
    EXPECT_TRUE(has_fault(validate(schedule, listed, all.model, lagging()), move.expected));
  }
}

TEST(Staleness, WeightsThatStayOnADeviceAreRefused) {
  OffloadedPlan all = offloaded_plans();
  Plan plan = find_strategy("zebra").make(all.model, all.cluster, small_step());
  offload(plan, all.model, all.cluster, {"experts.weights"}, "test");
  try {
    build_schedule(plan, all.model, lagging());
    FAIL() << "not refused";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_TRUE(hetermoe::test::has_text(text, "[train.staleness] the embedding on device"));
    EXPECT_TRUE(hetermoe::test::has_text(text, "plan.offload: [all]"));
  }
}

}  // namespace
}  // namespace hetermoe::testing
