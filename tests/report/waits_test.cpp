#include "hetermoe/report/waits.h"

#include <gtest/gtest.h>

#include "hetermoe/cost/measured.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/report/table.h"
#include "hetermoe/report/waits_text.h"
#include "hetermoe/sim/simulator.h"
#include "tests/report/synthetic.h"

namespace hetermoe {
namespace {

/// Two attention devices and one expert device; spans are (op, device, start, end) in seconds, step 10.
Timeline three(std::vector<Span> spans) {
  Timeline t;
  t.step = 10;
  t.devices = {{"V#0", "V", "expert"}, {"A#1", "A", "attention"}, {"A#2", "A", "attention"}};
  t.ops = {{"attention", "F", 0, 0, 0, "compute"}, {"dispatch", "F", 0, 0, 0, "to_expert"},
           {"experts", "F", 0, 0, 0, "compute"},   {"combine", "F", 0, 0, 0, "to_attention"},
           {"head", "F", -1, 0, 0, "compute"},     {"dispatch", "F", 0, 1, 0, "to_expert"},
           {"experts", "F", 0, 1, 0, "compute"},   {"experts", "F", 0, 2, 0, "compute"}};
  t.spans = std::move(spans);
  sort_spans(t);
  return t;
}

/// The parts sum to the whole step.
double total(const GroupUse& use) {
  double sum = use.computing + use.transferring + use.overhead + use.finished + use.unused;
  for (const Wait& wait : use.waiting) sum += wait.share;
  return sum;
}

TEST(DeviceGroups, AttentionComesFirstAndUnknownRolesLast) {
  Timeline t = three({});
  t.devices.push_back({"X#3", "V", "idle"});
  t.devices.push_back({"B#4", "B", "attention"});
  const std::vector<DeviceGroup> groups = device_groups(t);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].label(), "attention A");
  EXPECT_EQ(groups[0].devices, (std::vector<DeviceId>{1, 2}));
  EXPECT_EQ(groups[1].label(), "attention B");
  EXPECT_EQ(groups[2].label(), "expert V");
  EXPECT_EQ(groups[3].label(), "idle V");
}

/// A run with staleness begins the next step before this one ends, so that a step adds less than it takes.
TEST(GroupUse, SharesOfOverlappingStepsAreOfOneStepAlone) {
  Timeline t =
      three({{0, 1, 0, 2}, {1, 0, 2, 6}, {1, 1, 2, 6}, {2, 0, 6, 14}, {3, 0, 14, 16}, {3, 1, 14, 16}});
  EXPECT_TRUE(steps_overlap(t));
  for (const GroupUse& use : group_use(t)) EXPECT_DOUBLE_EQ(total(use), 1) << use.group.label();
  double sum = 0;
  for (const PathShare& share : critical_path(t)) sum += share.share;
  EXPECT_DOUBLE_EQ(sum, 1);
  EXPECT_NE(waits_text(t).find("These shares are of one step alone, 16.0 s from its"), std::string::npos)
      << waits_text(t);
  t.step = 16;
  EXPECT_EQ(overlap_text(t), "");
}

/// Devices that do the same may be listed once: plan lists them so, simulate each one.
TEST(GroupUse, ADeviceThatStandsForOthersCountsAsOftenAsTheyAre) {
  Timeline all =
      three({{0, 1, 0, 2}, {1, 0, 2, 3}, {1, 1, 2, 3}, {2, 0, 3, 9}, {3, 0, 9, 10}, {3, 1, 9, 10}});
  Timeline folded = all;
  all.devices.push_back({"A#3", "A", "attention"});
  for (const Span& span : folded.spans)
    if (span.device == 1) all.spans.push_back({span.op, 3, span.start, span.end});
  // The other attention device computes twice as long.
  for (Timeline* t : {&all, &folded}) t->spans.push_back({4, 2, 0, 4}), sort_spans(*t);
  folded.devices[1].stands_for = 2;
  const std::vector<GroupUse> of_all = group_use(all), of_folded = group_use(folded);
  ASSERT_EQ(of_all.size(), of_folded.size());
  for (std::size_t g = 0; g < of_all.size(); ++g) {
    EXPECT_DOUBLE_EQ(of_all[g].computing, of_folded[g].computing);
    EXPECT_DOUBLE_EQ(of_all[g].transferring, of_folded[g].transferring);
    EXPECT_DOUBLE_EQ(of_all[g].finished, of_folded[g].finished);
    EXPECT_DOUBLE_EQ(total(of_folded[g]), 1);
  }
  EXPECT_DOUBLE_EQ(of_folded[0].computing, (2 + 2 + 4) / 30.0);
  EXPECT_EQ(longest_wait_text(of_all), longest_wait_text(of_folded));
}

/// Where others wait for messages of one device that has most of the rows, it is named.
TEST(WaitsText, NamesTheDeviceWhoseMessagesAreTheLongest) {
  const auto text_of = [](Seconds end) {
    Timeline t = three({{0, 1, 0, 1},
                        {1, 0, 1, 5},
                        {1, 1, 1, 5},
                        {2, 0, 5, end},
                        {3, 0, end, end + 3},
                        {3, 1, end, end + 3},
                        {6, 3, 5, 5.5},
                        {6, 4, 5, 5.5}});
    t.devices.insert(t.devices.end(), {{"V#3", "V", "expert"}, {"V#4", "V", "expert"}});
    t.step = end + 3;
    return longest_wait_text(group_use(t));
  };
  EXPECT_EQ(text_of(7).find("V#0 computes experts 2.0 times as long as the mean of the expert V devices"),
            text_of(7).find(" for transfers.") + std::string(" for transfers. ").size())
      << text_of(7);
  EXPECT_EQ(text_of(5.6).find("computes experts"), std::string::npos) << text_of(5.6);
}

/// One of two that do the same at the same time is not to blame.
TEST(GroupUse, ADeviceIsNamedWhereNoOtherDoesTheSame) {
  const auto waits_for = [](Seconds end_of_other, i64 stands_for) {
    Timeline t = three({{0, 1, 0, 6}, {0, 2, 0, end_of_other}, {1, 0, 6, 7}, {1, 1, 6, 7}, {2, 0, 7, 10}});
    t.devices[1].stands_for = stands_for;
    return group_use(t)[1].waiting.at(0).device;
  };
  EXPECT_EQ(waits_for(4, 1), "A#1");
  EXPECT_EQ(waits_for(6, 1), "");
  EXPECT_EQ(waits_for(4, 2), "");
}

TEST(GroupUse, ADeviceWaitsForTheLastParticipantThenForTheTransfer) {
  // A#1 attends until 2, A#2 until 3; dispatch 3-4; experts 4-8; combine 8-9; head 9-10 on both.
  const Timeline t = three({{0, 1, 0, 2},
                            {0, 2, 0, 3},
                            {1, 0, 3, 4},
                            {1, 1, 3, 4},
                            {1, 2, 3, 4},
                            {2, 0, 4, 8},
                            {3, 0, 8, 9},
                            {3, 1, 8, 9},
                            {3, 2, 8, 9},
                            {4, 1, 9, 10},
                            {4, 2, 9, 10}});
  const std::vector<GroupUse> uses = group_use(t);
  const GroupUse& attention = uses[0];
  const GroupUse& expert = uses[1];
  EXPECT_DOUBLE_EQ(expert.computing, 0.4);
  ASSERT_EQ(expert.waiting.size(), 1u);
  EXPECT_EQ(expert.waiting[0].group, 0u);
  EXPECT_DOUBLE_EQ(expert.waiting[0].share, 0.3);
  EXPECT_DOUBLE_EQ(expert.transferring, 0.2);  // the dispatch, and the combine after its last op
  EXPECT_DOUBLE_EQ(expert.finished, 0.1);
  // The combine that ends the gaps at 9 hangs on the experts, these on the dispatch, and it on A#2.
  EXPECT_DOUBLE_EQ(attention.computing, (0.3 + 0.4) / 2);
  ASSERT_EQ(attention.waiting.size(), 2u);
  EXPECT_EQ(attention.waiting[0].group, 1u);
  EXPECT_EQ(attention.waiting[0].kind, "experts");
  EXPECT_DOUBLE_EQ(attention.waiting[0].share, 0.4);
  EXPECT_EQ(attention.waiting[1].group, 0u);
  EXPECT_DOUBLE_EQ(attention.waiting[1].share, 0.1 / 2);
  EXPECT_DOUBLE_EQ(attention.transferring, 0.2);
}

TEST(GroupUse, AReceiverThatPostedEarlyStillWaitsForTheSender) {
  // Measured: the expert enters the dispatch at 0, the senders at 3.
  const Timeline t =
      three({{0, 1, 0, 3}, {0, 2, 0, 3}, {1, 0, 0, 4}, {1, 1, 3, 4}, {1, 2, 3, 4}, {2, 0, 4, 10}});
  const GroupUse expert = group_use(t)[1];
  ASSERT_EQ(expert.waiting.size(), 1u);
  EXPECT_DOUBLE_EQ(expert.waiting[0].share, 0.3);
  EXPECT_DOUBLE_EQ(expert.transferring, 0.1);
}

TEST(GroupUse, ABusyLaneIsWaitingForTheNetwork) {
  // Attention is done at 1, but the lane carries another dispatch until 5: nobody else is to blame for 1-5.
  const Timeline t =
      three({{0, 1, 0, 1}, {5, 0, 1, 5}, {5, 1, 1, 5}, {1, 0, 5, 6}, {1, 1, 5, 6}, {2, 0, 6, 10}});
  const GroupUse expert = group_use(t)[1];
  EXPECT_DOUBLE_EQ(expert.transferring, 0.5);
  ASSERT_EQ(expert.waiting.size(), 1u);
  EXPECT_DOUBLE_EQ(expert.waiting[0].share, 0.1);
}

TEST(GroupUse, AGapWithoutATransferIsOverhead) {
  const Timeline t = three({{2, 0, 0, 4}, {4, 0, 5, 10}});
  const GroupUse expert = group_use(t)[1];
  EXPECT_DOUBLE_EQ(expert.overhead, 0.1);
  EXPECT_DOUBLE_EQ(expert.computing, 0.9);
  EXPECT_DOUBLE_EQ(group_use(t)[0].finished, 0) << "a device without ops has not finished anything";
  EXPECT_DOUBLE_EQ(group_use(t)[0].unused, 1);
}

double waits_for(const GroupUse& use, const std::string& kind) {
  double share = 0;
  for (const Wait& wait : use.waiting) share += wait.kind == kind ? wait.share : 0;
  return share;
}

TEST(GroupUse, ADeviceWithoutAGapIsWaitedForAllTheSame) {
  // The expert device computes from 0 to 9 without a pause. A#1 waits from 1 to 6 for the op that ends at 6.
  Timeline t = three(
      {{0, 1, 0, 1}, {2, 0, 0, 3}, {6, 0, 3, 6}, {7, 0, 6, 9}, {3, 0, 6, 7}, {3, 1, 6, 7}, {4, 1, 7, 10}});
  for (const bool knows_after : {false, true}) {
    if (knows_after) t.ops[3].after = {6}, t.ops[4].after = {3};
    const GroupUse attention = group_use(t)[0];
    ASSERT_EQ(attention.waiting.size(), 1u);
    EXPECT_EQ(attention.waiting[0].group, 1u);
    EXPECT_DOUBLE_EQ(waits_for(attention, "experts"), 0.5 / 2);  // A#2 has nothing to do
    EXPECT_DOUBLE_EQ(attention.transferring, 0.1 / 2);
  }
}

TEST(GroupUse, TheCauseIsFoundThroughSeveralTransfers) {
  // A#2 attends until 4; its rows reach the expert at 5, which computes until 6; A#1 gets them at 8.
  Timeline t = three(
      {{0, 2, 0, 4}, {1, 2, 4, 5}, {1, 0, 4, 5}, {2, 0, 5, 6}, {3, 0, 6, 8}, {3, 1, 6, 8}, {4, 1, 8, 10}});
  t.ops[1].after = {0}, t.ops[2].after = {1}, t.ops[3].after = {2}, t.ops[4].after = {3};
  const std::vector<GroupUse> uses = group_use(t);
  EXPECT_DOUBLE_EQ(waits_for(uses[0], "attention"), 0.4 / 2) << "A#1, of its peer";
  EXPECT_DOUBLE_EQ(waits_for(uses[0], "experts"), 0.1 / 2);
  EXPECT_DOUBLE_EQ(waits_for(uses[1], "attention"), 0.4);
  EXPECT_DOUBLE_EQ(uses[1].transferring, 0.3);
}

TEST(GroupUse, WhatOnlyHappensToEndLastIsNoCause) {
  // The combine waits for the experts, which end at 5; another dispatch ends there at the same time.
  Timeline t = three({{2, 0, 0, 5}, {5, 0, 0, 5}, {5, 2, 0, 5}, {3, 0, 5, 6}, {3, 1, 5, 6}, {4, 1, 6, 10}});
  t.ops[3].after = {2}, t.ops[4].after = {3};
  EXPECT_DOUBLE_EQ(waits_for(group_use(t)[0], "experts"), 0.5 / 2);
}

/// Two expert devices: V#0 computes each microbatch for 4 s, V#3 for 1 s. Rows come while V#0 is still busy.
Timeline overloaded() {
  Timeline t = three({});
  t.devices.push_back({"V#3", "V", "expert"});
  t.ops = {{"dispatch", "F", 0, 0, 0, "to_expert"},   {"experts", "F", 0, 0, 0, "compute", {0}},
           {"experts", "F", 0, 0, 0, "compute", {0}}, {"dispatch", "F", 0, 1, 0, "to_expert"},
           {"experts", "F", 0, 1, 0, "compute", {3}}, {"experts", "F", 0, 1, 0, "compute", {3}}};
  t.spans = {{0, 0, 0, 1},   {0, 3, 0, 1},   {1, 0, 1, 5}, {2, 3, 1, 2},
             {3, 0, 2, 4.5}, {3, 3, 2, 4.5}, {4, 0, 5, 9}, {5, 3, 4.5, 5.5}};
  t.step = 9;
  sort_spans(t);
  return t;
}

TEST(GroupUse, WhoeverIsStillBusyWhenItsRowsComeIsWaitedForAndNotTheNetwork) {
  Timeline t = overloaded();
  const GroupUse expert = group_use(t)[1];
  // From 2 to 4.5 rows are on their way to both; V#3 would wait for V#0 without them, too.
  EXPECT_DOUBLE_EQ(waits_for(expert, "experts"), 2.5 / 9 / 2);
  EXPECT_DOUBLE_EQ(expert.transferring, 1 / 9.0) << "of both, at the begin";
  EXPECT_EQ(expert.waiting[0].device, "V#0");
  EXPECT_NEAR(total(expert), 1, 1e-12);
  EXPECT_EQ(longest_wait_text({group_use(t)[0], expert}),
            "Longest wait: expert V devices wait 13.9 % of the step for experts on V#0.");
  // Had V#0 ended at 2, both would wait for the network.
  for (Span& span : t.spans)
    if (span.op == 1) span.end = 2;
  for (Span& span : t.spans)
    if (span.op == 4) span.start = 4.5;
  EXPECT_TRUE(group_use(t)[1].waiting.empty());
}

TEST(CriticalPath, NamesOpsDevicesTransfersAndGaps) {
  // Attention on A#2 until 2, dispatch 2-3, nothing 3-4, experts 4-8, combine 8-9, head 9-10.
  Timeline t = three({{0, 1, 0, 1},
                      {0, 2, 0, 2},
                      {1, 0, 2, 3},
                      {1, 1, 2, 3},
                      {1, 2, 2, 3},
                      {2, 0, 4, 8},
                      {3, 0, 8, 9},
                      {3, 1, 8, 9},
                      {3, 2, 8, 9},
                      {4, 1, 9, 10},
                      {4, 2, 9, 10}});
  t.ops[1].after = {0}, t.ops[2].after = {1}, t.ops[3].after = {2}, t.ops[4].after = {3};
  EXPECT_EQ(critical_path_text(critical_path(t)),
            "Critical path: experts on V 40.0 %, attention on A 20.0 %, head on attention A 10.0 %, "
            "combine 10.0 %, gaps between ops 10.0 %, dispatch 10.0 %.");
  double sum = 0;
  for (const PathShare& share : critical_path(t)) sum += share.share;
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_EQ(longest_wait_text(group_use(t)),
            "Longest wait: attention A devices wait 40.0 % of the step for experts on V.");
  EXPECT_TRUE(critical_path(Timeline()).empty());
}

Timeline simulated(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  const Plan plan = find_strategy("zebra").make(model, cluster, request);
  const Placement placement(plan, model, {});
  const Schedule schedule = build_schedule(plan, model);
  const OpTimes times = simulate(schedule, placement, model, cluster, *make_cost(model, cluster, plan, {}),
                                 ExpectedRouting(model));
  return make_timeline(schedule, times, plan, cluster, "simulated");
}

TEST(GroupUse, ASlowNetworkIsToldApartFromTheExperts) {
  const ModelConfig model = load_model("d1");
  StrategyRequest request;
  request.seq_len = 8192, request.sequences = 48, request.microbatches = 4;
  Cluster cluster = load_cluster("o1");
  const GroupUse as_it_is = group_use(simulated(model, cluster, request))[0];
  for (Node& node : cluster.nodes) node.network *= 100;
  const GroupUse fast_network = group_use(simulated(model, cluster, request))[0];
  for (const GroupUse& use : {as_it_is, fast_network}) {
    ASSERT_FALSE(use.waiting.empty());
    EXPECT_EQ(use.waiting[0].kind, "experts");
    EXPECT_GT(use.waiting[0].share, 0.02);
  }
  EXPECT_GT(as_it_is.transferring, 10 * fast_network.transferring);
  EXPECT_GT(as_it_is.transferring, 0.1);
}

TEST(GroupUse, PartsSumToTheStepAndComputingIsTheBusyShare) {
  synthetic::Shape shape;
  shape.jitter = 0.1;
  shape.num_expert = 3;
  for (const Timeline& t : {synthetic::zebra(shape), synthetic::expert_parallel(shape)}) {
    const std::vector<double> busy = busy_share(t);
    for (const GroupUse& use : group_use(t)) {
      EXPECT_NEAR(total(use), 1, 1e-9) << use.group.label();
      double mean = 0;
      for (const DeviceId device : use.group.devices) mean += busy[static_cast<std::size_t>(device)];
      EXPECT_NEAR(use.computing, mean / static_cast<double>(use.group.devices.size()), 1e-12);
    }
  }
}

TEST(GroupUse, FastDevicesOfExpertParallelismWaitForSlowOnes) {
  const std::vector<GroupUse> uses = group_use(synthetic::expert_parallel({}));
  ASSERT_EQ(uses[0].group.label(), "A40");
  double for_slow = 0;
  for (const Wait& wait : uses[0].waiting) for_slow += wait.group == 1 ? wait.share : 0;
  EXPECT_GT(for_slow, 0.3);
}

TEST(GroupUse, AnEmptyTimelineHasNoGroups) { EXPECT_TRUE(group_use(Timeline{}).empty()); }

/// No share of the step that a group waits, for devices or for transfers, is above the one that is named.
TEST(WaitsText, TheLongestWaitIsTheLongest) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    synthetic::Shape shape;
    shape.num_attention = 1 + i32(seed % 3), shape.num_expert = 1 + i32(seed % 4), shape.jitter = 0.6,
    shape.seed = seed;
    shape.expert_factor = seed % 2 != 0 ? 0.1 : 1;
    const Timeline t = seed % 5 != 0 ? synthetic::zebra(shape) : synthetic::expert_parallel(shape);
    const std::vector<GroupUse> uses = group_use(t);
    double longest = 0;
    for (const GroupUse& use : uses) {
      longest = std::max(longest, use.transferring);
      for (const Wait& wait : use.waiting) longest = std::max(longest, wait.share);
    }
    const std::string text = longest_wait_text(uses);
    EXPECT_NE(text.find(" wait " + format_percent(longest) + " of the step"), std::string::npos)
        << text << longest;
  }
}

TEST(WaitsText, TransfersAreAWait) {
  GroupUse use;
  use.group = {"both", "A40", {0}};
  use.computing = 0.4, use.transferring = 0.5;
  use.waiting = {{0, "experts", 0.1}};
  EXPECT_EQ(longest_wait_text({use}), "Longest wait: A40 devices wait 50.0 % of the step for transfers.");
}

TEST(WaitsText, DevicesWithoutWorkAreNamed) {
  Timeline t = three({{2, 0, 0, 10}, {0, 1, 0, 10}, {0, 2, 0, 10}});
  t.devices.push_back({"X#3", "X", "idle"});
  const GroupUse idle = group_use(t).back();
  EXPECT_EQ(idle.group.label(), "idle X");
  EXPECT_EQ(std::pair(idle.unused, idle.finished), std::pair(1.0, 0.0));
  EXPECT_NE(waits_text(t).find("without work"), std::string::npos);
}

}  // namespace
}  // namespace hetermoe
