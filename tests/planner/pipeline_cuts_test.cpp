#include "hetermoe/planner/search/pipeline_cuts.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/planner/estimate/sketch.h"
#include "tests/support/nodes_of_eight.h"

namespace hetermoe {
namespace {

constexpr Seconds kAnyTime = 1e30;

PlanRequest cut_request(const Cluster& cluster, i64 sequences) {
  PlanRequest request;
  request.model = load_model("qwen3-30b-a3b");
  request.cluster = cluster;
  request.seq_len = 4096;
  request.sequences = request.limits.max_microbatches = sequences;
  return request;
}

TEST(PipelineCuts, EverySetOfTypesMayHaveStages) {
  const PlanRequest request =
      cut_request(testing::nodes_of_eight({{"H100", 8}, {"A100-80", 8}, {"T4", 8}}), 64);
  const Rates rates(request);
  std::set<std::set<std::size_t>> sets;
  for (const PipelineCut& cut : pipeline_cuts(rates, kAnyTime)) {
    std::set<std::size_t> classes;
    for (const StageDevices& stage : cut.stages) classes.insert(stage.cls);
    sets.insert(classes);
  }
  EXPECT_EQ(sets.size(), 7U);
}

TEST(PipelineCuts, StagesDifferInDevicesAndTakeNoMoreThanThereAre) {
  const PlanRequest request =
      cut_request(testing::nodes_of_eight({{"H100", 3}, {"A100-80", 5}, {"L4", 7}}), 64);
  const Rates rates(request);
  bool differ = false, smaller = false;
  for (const PipelineCut& cut : pipeline_cuts(rates, kAnyTime)) {
    std::map<std::size_t, i64> used;
    std::map<std::size_t, std::set<i64>> sizes;
    for (const StageDevices& stage : cut.stages)
      used[stage.cls] += stage.count, sizes[stage.cls].insert(stage.count);
    for (const auto& [cls, count] : used) EXPECT_LE(count, cut.span[cls]);
    differ = differ || (sizes.size() > 1 && sizes.begin()->second != sizes.rbegin()->second);
    for (const auto& [cls, of_class] : sizes) smaller = smaller || of_class.size() > 1;
  }
  EXPECT_TRUE(differ);
  EXPECT_TRUE(smaller);
}

TEST(PipelineCuts, WhatEqualGroupsLeaveMayBeAGroupMore) {
  const PlanRequest request = cut_request(testing::nodes_of_eight({{"H100", 63}}), 512);
  const Rates rates(request);
  bool found = false;
  for (const PipelineCut& cut : pipeline_cuts(rates, kAnyTime))
    found = found || (cut.groups == 3 && cut.span[0] == 16 && sum_of(cut.rest) == 15);
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace hetermoe
