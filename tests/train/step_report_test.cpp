#include "hetermoe/train/run/step_report.h"

#include <gtest/gtest.h>

namespace hetermoe {
namespace {

TEST(StepReport, WhatARankTellsIsReadBackWhole) {
  StepReport told;
  told.stop = true;
  told.updated = false;
  told.step_s = 0.25;
  told.peak_memory = 1e9;
  told.gpu_peak = 2e9;
  told.sent = 3000;
  told.sent_between_nodes = 1000;
  told.busy = {0.125, 0};
  told.slowness = {1.5, 0};
  const StepReport got = step_report_from(Json::parse(to_json(told).dump()));
  EXPECT_EQ(got.stop, told.stop);
  EXPECT_EQ(got.updated, told.updated);
  EXPECT_EQ(got.step_s, told.step_s);
  EXPECT_EQ(got.peak_memory, told.peak_memory);
  EXPECT_EQ(got.gpu_peak, told.gpu_peak);
  EXPECT_EQ(got.sent, told.sent);
  EXPECT_EQ(got.sent_between_nodes, told.sent_between_nodes);
  EXPECT_EQ(got.busy, told.busy);
  EXPECT_EQ(got.slowness, told.slowness);
}

TEST(StepReport, TheFullestGpuOfAllRanksCounts) {
  StepReport a, b;
  a.gpu_peak = 2e9, a.sent = 100, a.sent_between_nodes = 10;
  b.gpu_peak = 3e9, b.sent = 50, b.sent_between_nodes = 5;
  const StepReport both = merged({a, b});
  EXPECT_EQ(both.gpu_peak, 3e9);
  EXPECT_EQ(both.sent, 150);  // each tells what its own devices sent
  EXPECT_EQ(both.sent_between_nodes, 15);
}

}  // namespace
}  // namespace hetermoe
