#include <gtest/gtest.h>

#include <map>

#include "hetermoe/base/hash.h"
#include "tests/property/random_plans.h"

// hash(Schedule) is made of names. It must tell apart exactly what a hash of the numbers of the enums tells
// apart within one version of the program; that of numbers is how it was made before.
namespace hetermoe {
namespace {

u64 hash_of_numbers(const Schedule& schedule) {
  Fnv fnv;
  fnv.add(schedule.num_devices);
  for (const Op& op : schedule.ops) {
    fnv.add(op.kind).add(op.phase).add(op.chunk).add(op.group);
    fnv.add(op.layer).add(op.microbatch).add(op.state);
  }
  for (const LaneId lane : schedule.lanes) fnv.add(lane);
  for (const i64 begin : schedule.lane_begin) fnv.add(begin);
  for (const OpId dep : schedule.deps) fnv.add(dep);
  for (const i64 begin : schedule.dep_begin) fnv.add(begin);
  return fnv.value();
}

/// Schedules of all strategies under all queue bindings, recomputations and step options, and of random
/// plans.
std::vector<Schedule> many_schedules() {
  std::vector<Schedule> all;
  const ModelConfig model = test::make_model({.num_layers = 3, .dense = {0}});
  for (const std::vector<i32>& nodes : std::vector<std::vector<i32>>{{1}, {2}, {2, 2}, {1, 2, 1}}) {
    const Cluster cluster = test::make_cluster(nodes, 2);
    for (const Strategy& strategy : strategies()) {
      if (cluster.num_devices() == 1 && strategy.name != "single") continue;
      if (cluster.nodes.size() > 1 && strategy.name == "roundpipe") continue;  // refused
      StrategyRequest request;
      request.seq_len = 4;
      request.microbatches = 2;
      request.sequences = 8;
      Plan plan = strategy.make(model, cluster, request);
      for (const QueueBinding binding :
           {QueueBinding::kDirection, QueueBinding::kName, QueueBinding::kPhase}) {
        for (const Recompute recompute : {Recompute::kOff, Recompute::kLocal, Recompute::kResend}) {
          plan.queue_binding = binding;
          plan.recompute = recompute;
          all.push_back(build_schedule(plan, model));
          all.push_back(build_schedule(plan, model, {.backward = false}));
          all.push_back(build_schedule(plan, model, {.balance = true, .aux_group = 1}));
        }
      }
    }
  }
  for (unsigned seed = 1; seed <= 200; ++seed) {
    const test::RandomCase c = test::RandomPlans(seed).make();
    all.push_back(build_schedule(c.plan, c.model, c.options));
  }
  return all;
}

TEST(ScheduleHash, OfNamesIsEqualExactlyWhereThatOfNumbersIs) {
  std::map<u64, u64> names_of, numbers_of;
  const std::vector<Schedule> schedules = many_schedules();
  for (const Schedule& schedule : schedules) {
    const u64 names = hash(schedule), numbers = hash_of_numbers(schedule);
    EXPECT_EQ(names_of.try_emplace(numbers, names).first->second, names);
    EXPECT_EQ(numbers_of.try_emplace(names, numbers).first->second, numbers);
  }
  EXPECT_GT(names_of.size(), schedules.size() / 3);
  EXPECT_LT(names_of.size(), schedules.size());
}

}  // namespace
}  // namespace hetermoe
