#include "hetermoe/train/run/step_report.h"

#include <gtest/gtest.h>

#include "hetermoe/report/metrics.h"

namespace hetermoe {
namespace {

TEST(StepReport, WhatARankTellsIsReadBackWhole) {
  StepReport told;
  told.stop = true;
  told.updated = false;
  told.values = {0.25, 1e9, 1.0 / 3};
  told.busy = {0.125, 0};
  told.slowness = {1.5, 0};
  told.copies = {{12, 0, 3.5}, {}};
  const StepReport got = step_report_from(Json::parse(to_json(told).dump()));
  EXPECT_EQ(got.stop, told.stop);
  EXPECT_EQ(got.updated, told.updated);
  EXPECT_EQ(got.values, told.values);
  EXPECT_EQ(got.busy, told.busy);
  EXPECT_EQ(got.slowness, told.slowness);
  EXPECT_EQ(got.copies, told.copies);
}

TEST(StepReport, EachRankTellsTheCopiesOfItsDevices) {
  StepReport a, b;
  a.values = b.values = values_to_merge(StepRecord());
  a.copies = {{1, 2}, {}, {}};
  b.copies = {{}, {3, 4}, {}};
  EXPECT_EQ(merged({a, b}).copies, (std::vector<std::vector<double>>{{1, 2}, {3, 4}, {}}));
}

TEST(StepReport, TheFullestGpuOfAllRanksCounts) {
  StepRecord a, b;
  a.gpu_peak = 2e9, a.sent = 100, a.sent_between_nodes = 10, a.step_s = 3;
  b.gpu_peak = 3e9, b.sent = 50, b.sent_between_nodes = 5, b.step_s = 2;
  const auto report_with = [](const StepRecord& record) {
    StepReport report;
    report.values = values_to_merge(record);
    return report;
  };
  StepRecord both;
  set_merged(both, merged({report_with(a), report_with(b)}).values);
  EXPECT_EQ(both.gpu_peak, 3e9);
  EXPECT_EQ(both.step_s, 3);
  EXPECT_EQ(both.sent, 150);  // each tells what its own devices sent
  EXPECT_EQ(both.sent_between_nodes, 15);
}

}  // namespace
}  // namespace hetermoe
