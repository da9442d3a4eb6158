#include "hetermoe/report/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string_view>

#include "hetermoe/base/json.h"

namespace hetermoe {
namespace {

TEST(Metrics, HaveKeysOfTheirOwnAndPlotsThatAreThere) {
  std::set<std::string> keys, plots, used;
  for (const MetricPlot& plot : metric_plots()) EXPECT_TRUE(plots.insert(plot.name).second) << plot.name;
  for (const Metric& metric : metrics()) {
    EXPECT_TRUE(keys.insert(metric.key).second) << metric.key;
    EXPECT_EQ(metric.merge != MetricMerge::kNone, metric.member != nullptr) << metric.key;
    if (std::string_view(metric.plot).empty()) continue;
    EXPECT_TRUE(plots.contains(metric.plot)) << metric.key << " names the plot " << metric.plot;
    used.insert(metric.plot);
  }
  EXPECT_EQ(used, plots);
}

TEST(Metrics, TheReportPageNamesAll) {
  const std::string page = read_text(HM_SOURCE_DIR "/docs/report.md");
  const std::string names = page.substr(page.find("## Names"));
  for (const Metric& metric : metrics())
    EXPECT_NE(names.find(fmt::format("`{}`", metric.key)), std::string::npos)
        << "docs/report.md lacks " << metric.key << " in its table of names";
}

/// What rank 0 computes of all ranks, whichever of them is asked first.
TEST(Metrics, RanksAreMergedInAnyOrder) {
  std::mt19937 random(5);
  std::uniform_int_distribution<int> number(0, 1000);
  for (int i = 0; i < 50; ++i) {
    std::vector<StepRecord> ranks(1 + static_cast<std::size_t>(number(random)) % 6);
    for (StepRecord& rank : ranks) {
      for (const Metric& metric : metrics()) {
        if (metric.member != nullptr) rank.*metric.member = number(random);
      }
    }
    std::vector<double> all = values_to_merge(ranks[0]);
    for (std::size_t r = 1; r < ranks.size(); ++r) merge_values(all, values_to_merge(ranks[r]));
    std::reverse(ranks.begin(), ranks.end());
    std::vector<double> reversed = values_to_merge(ranks[0]);
    for (std::size_t r = 1; r < ranks.size(); ++r) merge_values(reversed, values_to_merge(ranks[r]));
    EXPECT_EQ(all, reversed);
    StepRecord merged;
    set_merged(merged, all);
    double sent = 0, longest = 0;
    for (const StepRecord& rank : ranks) sent += rank.sent, longest = std::max(longest, rank.step_s);
    EXPECT_EQ(merged.sent, sent);
    EXPECT_EQ(merged.step_s, longest);
  }
}

TEST(Metrics, WhatAStepLacksIsNoKey) {
  StepRecord record;
  record.step = 7;
  const Json bare = metrics_json(record);
  EXPECT_EQ(bare.begin().key(), "step");
  for (const char* key :
       {"top_k", "layers", "gpu_peak_bytes", "updated", "mfu", "validation_loss", "warnings", "time_ratio",
        "rank_max_over_mean", "aux_loss", "expert_gini", "expert_max_over_mean", "expert_wait"})
    EXPECT_FALSE(bare.contains(key)) << key;
  record.updated = false;
  record.routing.time_ratio = 1.5;
  record.loads = {{.layer = 1, .cv = 0.5, .dead = 2}, {.layer = 3, .cv = 1, .dead = 1}};
  record.validation = {.step = 7, .loss = 2, .sources = {{"a/x.txt", 1}, {"b/x.txt", 3}}};
  const Json full = metrics_json(record);
  EXPECT_EQ(full.at("updated"), false);
  EXPECT_EQ(full.at("expert_cv"), 0.75);
  for (const char* key : {"aux_loss", "expert_gini", "expert_max_over_mean", "expert_wait"})
    EXPECT_EQ(full.at(key), 0) << key;
  EXPECT_EQ(full.at("time_ratio"), 1.5);
  EXPECT_EQ(full.at("dead_experts"), 3);
  EXPECT_EQ(full.at("validation_losses"), (Json{{"x.txt", 1.0}, {"b/x.txt", 3.0}}));
}

}  // namespace
}  // namespace hetermoe
