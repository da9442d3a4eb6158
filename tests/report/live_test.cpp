#include "hetermoe/report/live.h"

#include <gtest/gtest.h>

#include <fstream>

#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/report/run_page.h"
#include "hetermoe/report/table.h"
#include "tests/report/synthetic.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class Live : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text, std::ios::openmode mode = std::ios::trunc) {
    std::ofstream(folder_ / name, mode) << text;
  }
  void add(i64 step, const std::string& more = "") {
    write("metrics.jsonl",
          fmt::format("{{\"step\": {}, \"loss\": {}, \"wall_s\": 2{}}}\n", step, 4.5 - 0.25 * double(step),
                      more),
          std::ios::app);
  }
  /// All parts that are shown, one after another.
  std::string body() {
    std::string all;
    const Json parts = Json::parse(run_.parts(-1)).at("parts");
    for (const auto& [id, html] : parts.items()) all += html.get<std::string>();
    return all;
  }
  /// What a run writes with its first step: a plan of the demo and its prediction.
  void write_plan() {
    const ModelConfig model = load_model("demo");
    const Cluster cluster = load_cluster("demo");
    StrategyRequest request;
    request.seq_len = 64;
    request.sequences = 8;
    const Plan plan = find_strategy("zebra").make(model, cluster, request);
    write("model.json", to_hf(model).dump());
    write("cluster.json", to_json(cluster).dump());
    write("plan.json", to_json(plan).dump());
    save_timeline(folder_ / "predicted.json", synthetic::zebra({}));
    write(
        "summary.json",
        R"({"rows": [{"strategy": "zebra", "model": "demo", "suffix": "", "step_s": 0.5, "note": "slow <pace>",
              "memory_bytes": [{"device": "A40/1000#0", "weights": 1048576, "saved": 1048576}]}]})");
  }

  WorkFolder folder_;
  LiveRun run_{folder_.path()};
};

TEST_F(Live, GrowsWithTheMetrics) {
  EXPECT_TRUE(has(body(), "no metrics yet"));
  write("job.json", R"({"model": "de<mo", "cluster": "o1", "strategy": "zebra", "train": {"steps": 10}})");
  add(1);
  EXPECT_TRUE(has(body(), "<dd>1 of 10</dd>")) << body();
  EXPECT_TRUE(has(body(), "<dd>de&lt;mo</dd>"));
  EXPECT_TRUE(has(body(), "<dd>18.0 s</dd>")) << body();  // left
  add(2, R"(, "warnings": ["loss <jumps>"])");
  write("metrics.jsonl", R"({"step": 3, "lo)", std::ios::app);  // as the writer may leave it for a moment
  const std::string now = body();
  EXPECT_TRUE(has(now, "<dd>2 of 10</dd>"));
  EXPECT_TRUE(has(now, "<td class=\"num\">2</td><td>warning: loss &lt;jumps&gt;</td>")) << now;
  EXPECT_TRUE(has(now, "4.0000"));
  EXPECT_TRUE(has(now, "<svg"));
  write("metrics.jsonl", "ss\": 1.5}\n", std::ios::app);
  EXPECT_TRUE(has(body(), "<dd>3 of 10</dd>"));
}

TEST_F(Live, WhatAllStrategiesHaveInCommonIsSaidOnce) {
  for (const char* suffix : {"-ep", "-zebra"}) {
    const bool ep = std::string(suffix) == "-ep";
    write(fmt::format("metrics{}.jsonl", suffix),
          fmt::format("{{\"step\": 2, \"loss\": 1.5, \"validation_loss\": {}}}\n", ep ? 2.5 : 2.25));
  }
  const std::string now = body();
  EXPECT_TRUE(has(now, "<dt>loss</dt><dd>1.5000</dd>")) << now;
  EXPECT_FALSE(has(now, "<dt>ep: loss</dt>"));
  EXPECT_TRUE(has(now, "<dt>ep: validation loss</dt><dd>2.5000</dd>"));
  EXPECT_TRUE(has(now, "<dt>zebra: validation loss</dt><dd>2.2500</dd>"));
}

TEST_F(Live, ARunThatBeginsAnewReplacesTheOther) {
  for (i64 step = 1; step <= 5; ++step) add(step);
  EXPECT_TRUE(has(body(), "<dd>5</dd>"));
  write("metrics.jsonl", "");
  add(1);
  EXPECT_TRUE(has(body(), "<dd>1</dd>"));
}

TEST_F(Live, LongRunsAreThinned) {
  std::string lines;
  for (i64 step = 1; step <= 20'000; ++step)
    lines += fmt::format("{{\"step\": {}, \"loss\": 1, \"validation_loss\": 2}}\n", step);
  write("metrics.jsonl", lines);
  const std::string now = body();
  EXPECT_TRUE(has(now, "<dd>20000</dd>"));
  EXPECT_LT(now.size(), 600'000u);
}

TEST_F(Live, LossesAreInWhatTheRunSays) {
  const auto titled = [&](const std::string& summary, const std::string& tokenizer) {
    write("summary.json", summary);
    write("job.json", R"({"data": {"tokenizer": ")" + tokenizer + R"("}})");
    return body();
  };
  add(1);
  EXPECT_TRUE(has(titled(R"({"rows": [{"strategy": "a", "suffix": "", "loss_per": "token"}]})", "bytes"),
                  "Loss (nats per token)"));
  EXPECT_TRUE(has(titled(R"({"rows": [{"strategy": "a", "suffix": "", "loss_per": "byte"}]})", "bytes"),
                  "Loss (nats per byte)"));
  EXPECT_TRUE(has(titled(R"({"rows": [{"strategy": "a", "suffix": ""}]})", "bytes"), "Loss (nats per byte)"));
  EXPECT_TRUE(
      has(titled(R"({"rows": [{"strategy": "a", "suffix": ""}]})", "x.model"), "Loss (nats per token)"));
}

TEST_F(Live, EqualLossesOfStrategiesAreSaidToBeEqual) {
  write("summary.json", R"({"rows": [{"strategy": "a", "suffix": "-a"}, {"strategy": "b", "suffix": "-b"},
                                     {"strategy": "c", "suffix": "-c"}]})");
  const auto add_losses = [&](const char* name, double shift) {
    for (int step = 1; step <= 5; ++step)
      write(std::string("metrics-") + name + ".jsonl",
            fmt::format("{{\"step\": {}, \"loss\": {}}}\n", step, 6.0 - step + shift), std::ios::app);
  };
  add_losses("a", 0), add_losses("b", 1e-7), add_losses("c", 0.01);
  const std::string now = body();
  EXPECT_TRUE(has(now, "The losses of a, b are equal at every step that is drawn (largest difference "))
      << now;
  EXPECT_TRUE(has(now, "data-name=\"2 strategies, equal\""));
  EXPECT_TRUE(has(now, "data-name=\"c\""));
  EXPECT_FALSE(has(now, "data-name=\"b\""));
}

TEST_F(Live, AFolderOfASimulationHasItsPredictionAndNoRun) {
  write_plan();
  std::filesystem::remove(folder_ / "predicted.json");
  save_timeline(folder_ / "timeline.json", synthetic::zebra({}));
  const ReportInput page = run_page(folder_.path());
  ASSERT_EQ(page.strategies.size(), 1u);
  EXPECT_TRUE(page.strategies[0].simulated.has_value());
  EXPECT_FALSE(page.strategies[0].executed.has_value());
  EXPECT_TRUE(page.strategies[0].plan.has_value());
  EXPECT_EQ(page.strategies[0].memory.size(), 1u);
}

/// Four devices of 0.5 an hour, 512 tokens a step: half a second by the prediction, one as measured.
TEST_F(Live, MoneyIsToldWhereAllDevicesOfThePlanHaveAPrice) {
  const auto fact = [&](const std::string& name) {
    for (const Fact& fact : run_page(folder_.path()).facts)
      if (fact.first == name) return fact.second;
    return std::string();
  };
  const std::string per_hour = "price per hour of the devices that the plan uses";
  write_plan();
  add(4, ", \"step_s\": 1");
  EXPECT_EQ(fact(per_hour), "");
  EXPECT_EQ(fact("tokens per unit of money"), "");
  Cluster cluster = load_cluster("demo");
  cluster.types[0].price_per_hour = 0.5;
  write("cluster.json", to_json(cluster).dump());
  EXPECT_EQ(fact(per_hour), "");  // one type has no price
  for (DeviceType& type : cluster.types) type.price_per_hour = 0.5;
  write("cluster.json", to_json(cluster).dump());
  const auto expect_money = [&](double step, const std::string& by) {
    const double tokens = 512 / step * 3600 / 2, cost = 4 * step / 3600 * 2;
    EXPECT_EQ(fact(per_hour), "2");
    EXPECT_EQ(fact("tokens per unit of money"), fmt::format("{} by the {} step", format_count(tokens), by));
    EXPECT_EQ(fact("cost so far"), fmt::format("{}, 4 times the {} step", format_count(cost), by));
  };
  expect_money(0.5, "predicted");
  save_timeline(folder_ / "timeline.json", synthetic::zebra({}, "executed (virtual clock, emulated)"));
  expect_money(1, "measured");
  save_timeline(folder_ / "timeline.json",
                synthetic::zebra({}, "executed (measured on this CPU, not on A40)"));
  expect_money(0.5, "predicted");
}

TEST_F(Live, ARunThatLostItsPaceIsNotTrusted) {
  write("summary.json", R"({"rows": [{"strategy": "a", "suffix": "", "step_s": 0.5, "executed":
      {"step_s": 0.9, "replayed_step_s": 0.6, "executed_over_replayed": 1.625, "pace": {"kept_up": false}}}]})");
  add(1);
  save_timeline(folder_ / "timeline.json", synthetic::zebra({}, "executed (paced clock, emulated)"));
  write("job.json", R"({"clock": {"kind": "virtual"}})");
  const ReportInput page = run_page(folder_.path());
  ASSERT_EQ(page.strategies.size(), 1u);
  EXPECT_FALSE(page.strategies[0].kept_pace);
  EXPECT_EQ(page.strategies[0].replayed_step, 0.6);
  EXPECT_EQ(page.strategies[0].executed_over_replayed, 1.625);
  EXPECT_TRUE(has(body(), "virtual; of the steps that are timed: paced"));
}

TEST_F(Live, AReportOfAnEarlierRunIsNotShown) {
  write("report.html", "<p>old</p>");
  add(1);
  std::filesystem::last_write_time(
      folder_ / "report.html",
      std::filesystem::last_write_time(folder_ / "metrics.jsonl") - std::chrono::seconds(5));
  EXPECT_FALSE(has(body(), "report.html"));
  EXPECT_EQ(run_.report(), "");
  write("report.html", "<p>new</p>");
  EXPECT_TRUE(has(body(), "href=\"/report.html\""));
  EXPECT_EQ(run_.report(), "<p>new</p>");
}

TEST_F(Live, ShowsPlanPredictionExpertsAndMemory) {
  write_plan();
  add(1, R"(, "memory_bytes": {"A40/1000#0": 3145728}, "marks": ["4 experts"],
             "layers": [{"layer": 0, "max_over_mean": 1.5, "cv": 0.25, "dead_experts": 1, "dropped_share": 0}])");
  // One line of metrics is one line of the file.
  std::string text = read_text(folder_ / "metrics.jsonl");
  std::erase(text, '\n');
  write("metrics.jsonl", text + "\n");
  write("experts.json", R"({"first_step": 1, "last_step": 1, "layers": [0], "copies": [[3, 1]]})");
  const std::string now = body();
  for (const char* part :
       {"zebra: 1 group of 4 devices", "<h2>The plan</h2>", "<b>2.00 MiB</b>", "<b>3.00 MiB</b>", "+50.0 %",
        "slow &lt;pace&gt;", "steps 1 to 1", "layer 0 expert 0: 3 copies", ">dead</text>", ">1.50</text>",
        "<td class=\"num\">1</td><td>4 experts</td>"}) {
    EXPECT_TRUE(has(now, part)) << part;
  }
}

TEST_F(Live, ShowsExpertsBeforeAndAfterTheyGrow) {
  write_plan();
  add(3);
  write("experts.json", R"({"first_step": 3, "last_step": 3, "layers": [0], "copies": [[3, 1, 2, 2]]})");
  write("growth.json", R"({"first_step": 1, "last_step": 2, "layers": [0], "copies": [[7, 1]],
                           "source_of": [[0, 1, 0, 1]]})");
  const std::string now = body();
  for (const char* part : {"before the growth, steps 1 to 2", "layer 0 expert 0: 7 copies", "steps 3 to 3",
                           "layer 0 expert 2, made of 0: 2 copies"})
    EXPECT_TRUE(has(now, part)) << part;
  write("growth.json", R"({"first_step": 1, "last_step": 2, "layers": [0], "copies": [[7, 1]],
                           "source_of": [[0, 1]]})");  // of another run
  EXPECT_FALSE(has(body(), "before the growth"));
}

TEST_F(Live, TimelinesComeOnceUntilThereAreOthers) {
  write_plan();
  add(1);
  const Json first = Json::parse(run_.parts(-1));
  const i64 version = first.at("version");
  EXPECT_EQ(first.at("data").at("strategies").size(), 1u);
  EXPECT_TRUE(first.at("data").at("strategies")[0].at("executed").is_null());
  EXPECT_TRUE(Json::parse(run_.parts(version)).at("data").is_null());
  save_timeline(folder_ / "timeline.json", synthetic::zebra({}, "executed"));
  const Json second = Json::parse(run_.parts(version));
  EXPECT_FALSE(second.at("data").at("strategies")[0].at("executed").is_null());
  EXPECT_GT(second.at("version").get<i64>(), version);
}

TEST_F(Live, FilesThatCannotBeReadAreLeftOut) {
  write_plan();
  add(1);
  write("plan.json", "{");
  write("predicted.json", "[]");
  write("experts.json", R"({"layers": 3})");
  const std::string now = body();
  EXPECT_TRUE(has(now, "<dd>1</dd>"));
  EXPECT_FALSE(has(now, "<h2>The plan</h2>"));
}

}  // namespace
}  // namespace hetermoe
