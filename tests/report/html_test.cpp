#include "hetermoe/report/html.h"

#include <gtest/gtest.h>

#include <random>

#include "hetermoe/base/json.h"
#include "hetermoe/report/escape.h"
#include "tests/report/count.h"
#include "tests/report/synthetic.h"

namespace hetermoe {
namespace {

constexpr const char* kExecuted = "executed (paced clock, emulated)";

/// What `hetermoe train` on an emulated 2+2 cluster would hand over.
ReportInput typical(const synthetic::Shape& shape) {
  synthetic::Shape measured = shape;
  measured.jitter = 0.05;
  measured.expert_factor = 1.06;
  measured.seed = 7;
  ReportInput input;
  input.title = "Zebra parallelism on 2 A40 + 2 V100";
  input.facts = {{"model", "d1: 4 layers, 8 experts, top 2, 1.2 B parameters"},
                 {"cluster", "demo: 2 x A40, 2 x V100, 100 Gbit/s"},
                 {"command", "hetermoe train --job configs/jobs/demo.yaml --train.steps 20"},
                 {"date", "2025-05-01 12:00 UTC"}};
  StrategyReport zebra;
  zebra.name = "zebra";
  zebra.simulated = synthetic::zebra(shape);
  zebra.executed = synthetic::zebra(measured, kExecuted);
  constexpr double kGib = 1024.0 * 1024 * 1024;
  for (const TimelineDevice& device : zebra.simulated->devices) {
    zebra.memory.push_back({device.name,
                            {.in_flight = (device.role == "expert" ? 14.2 : 31.7) * kGib},
                            (device.role == "expert" ? 14.4 : 31.5) * kGib,
                            (device.role == "expert" ? 16 : 48) * kGib});
  }
  zebra.note = "chosen by the planner";
  StrategyReport ep;
  ep.name = "ep";
  ep.simulated = synthetic::expert_parallel(shape);
  ep.executed = synthetic::expert_parallel(measured, kExecuted);
  StrategyReport planned;
  planned.name = "dist-ep";
  planned.simulated_step = 0.87;
  planned.note = "simulated only";
  input.strategies = {zebra, ep, planned};
  LossPlot losses{"Loss of every strategy, same data", "step", "loss", {}, 900, 420};
  for (const char* name : {"zebra", "ep"}) {
    LossSeries run{name, {}, {}};
    for (int step = 0; step < 60; ++step) {
      const double loss = 4 + 6.4 * std::exp(-step / 14.0) + 0.08 * std::sin(step * 1.7 + (name[0] == 'e'));
      run.train.push_back({static_cast<double>(step), loss});
      if (step % 10 == 9) run.validation.push_back({static_cast<double>(step), loss + 0.15});
    }
    losses.runs.push_back(run);
  }
  input.losses = {losses};
  return input;
}

/// The data as a browser reads it: the text between the script tags.
Json embedded(const std::string& html) {
  const std::string begin = "<script type=\"application/json\" id=\"report-data\">";
  const std::size_t from = html.find(begin) + begin.size();
  return Json::parse(html.substr(from, html.find("</script", from) - from));
}

TEST(HtmlReport, EmbedsEverySpanOfEveryTimeline) {
  const ReportInput input = typical({});
  const Json data = embedded(html_report(input));
  EXPECT_EQ(data, report_data(input));
  ASSERT_EQ(data["strategies"].size(), 3u);
  const Timeline& timeline = *input.strategies[0].executed;
  const Json& spans = data["strategies"][0]["executed"]["spans"];
  ASSERT_EQ(spans.size(), 4 * timeline.spans.size());
  for (std::size_t i = 0; i < timeline.spans.size(); ++i) {
    EXPECT_EQ(spans[4 * i], timeline.spans[i].op);
    EXPECT_EQ(spans[4 * i + 1], timeline.spans[i].device);
    EXPECT_NEAR(spans[4 * i + 2].get<double>(), timeline.spans[i].start * 1e9, 0.5);
    EXPECT_NEAR(spans[4 * i + 3].get<double>(), (timeline.spans[i].end - timeline.spans[i].start) * 1e9, 1);
  }
}

TEST(HtmlReport, OpsStandOnceWhenBothSidesShareThem) {
  ReportInput input = typical({});
  Json data = report_data(input);
  EXPECT_EQ(data["strategies"][0]["simulated"]["ops"].size(), input.strategies[0].simulated->ops.size());
  EXPECT_TRUE(data["strategies"][0]["executed"]["ops"].is_null());
  input.strategies[0].executed->ops[3].layer = 9;
  data = report_data(input);
  EXPECT_EQ(data["strategies"][0]["executed"]["ops"][3][2], 9);
}

TEST(HtmlReport, DevicesOfTheMeasurementAreFoundByName) {
  ReportInput input = typical({});
  Timeline& executed = *input.strategies[0].executed;
  std::swap(executed.devices[0], executed.devices[3]);
  executed.devices[1].name = "H100#9";
  const Json data = report_data(input)["strategies"][0];
  const std::string wait = data["simulated"]["longest_wait"], path = data["simulated"]["critical_path"];
  EXPECT_EQ(wait.substr(0, 13), "Longest wait:");
  EXPECT_EQ(path.substr(0, 14), "Critical path:");
  EXPECT_EQ(data["devices"].size(), 5u);
  EXPECT_EQ(data["devices"][4]["name"], "H100#9");
  EXPECT_EQ(data["order"], (Json{0, 1, 4, 2, 3}));
  for (std::size_t i = 0; i < executed.spans.size(); ++i) {
    const int device = executed.spans[i].device;
    EXPECT_EQ(data["executed"]["spans"][4 * i + 1], device == 0   ? 3
                                                    : device == 3 ? 0
                                                    : device == 1 ? 4
                                                                  : device);
  }
}

TEST(HtmlReport, ForeignTextIsEscapedEverywhere) {
  const std::string evil = "</script><script>alert(1)</script><!-- \"'& \xFF";
  ReportInput input = typical({});
  input.title = input.strategies[0].name = input.strategies[0].note = input.strategies[2].name = evil;
  input.labels = {evil};
  input.facts.push_back({evil, evil});
  input.losses[0].title = input.losses[0].runs[0].name = evil;
  input.losses[0].marks = {{5, evil}};
  input.events = {{5, evil}};
  input.strategies[0].plan = PlanLayout{{evil}, {evil}, 1, 2, {{1}}, {{2}}, {1}, {1}};
  for (std::optional<Timeline>* timeline : {&input.strategies[0].simulated, &input.strategies[0].executed}) {
    (*timeline)->source = (*timeline)->devices[0].name = (*timeline)->devices[0].role = evil;
    (*timeline)->ops[0].kind = (*timeline)->ops[0].phase = evil;
  }
  input.strategies[0].memory[0].device = evil;
  input.strategies[0].memory[0].measured = 1e15;
  const std::string html = html_report(input);
  EXPECT_EQ(html.find("<script>alert"), std::string::npos);
  EXPECT_EQ(html.find("<!--"), std::string::npos);
  EXPECT_EQ(count(html, "</script"), 3u);
  EXPECT_EQ(html.find('\xFF'), std::string::npos);
  EXPECT_EQ(embedded(html)["strategies"][0]["name"],
            "</script><script>alert(1)</script><!-- \"'& \xEF\xBF\xBD");
}

TEST(HtmlReport, NeedsNoNetwork) {
  const std::string html = html_report(typical({}));
  for (const char* word : {"https://", "src=", "href=", "@import", "fetch(", "XMLHttpRequest"}) {
    EXPECT_EQ(html.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(count(html, "http://"), count(html, "http://www.w3.org/2000/svg"));
}

TEST(HtmlReport, SaysWhatIsSimulatedAndWhatIsEmulated) {
  ReportInput input = typical({});
  EXPECT_NE(html_report(input).find("<span class=\"label\">executed times are emulated"), std::string::npos);
  EXPECT_NE(html_report(input).find("<span class=\"label\">predicted times are simulated"),
            std::string::npos);
  for (StrategyReport& strategy : input.strategies) {
    if (strategy.executed) strategy.executed->source = "executed";
  }
  EXPECT_EQ(html_report(input).find("are emulated"), std::string::npos);
  input.labels = {"emulated cluster"};
  EXPECT_NE(html_report(input).find("<span class=\"label\">emulated cluster</span>"), std::string::npos);
}

TEST(HtmlReport, TimesOfACpuInThePlaceOfGpusAreLabelledAndComparedWithNoPrediction) {
  ReportInput input = typical({});
  input.strategies.resize(1);
  EXPECT_FALSE(embedded(html_report(input))["strategies"][0]["elsewhere"]);
  input.strategies[0].executed_step = 0.5;
  EXPECT_NE(html_report(input).find(" %</td><td>fastest</td>"), std::string::npos);
  input.strategies[0].executed->source = "executed (measured on this CPU, not on A40, V100)";
  const std::string html = html_report(input);
  EXPECT_NE(
      html.find("<span class=\"label\">executed times are measured on this CPU, not on A40, V100</span>"),
      std::string::npos);
  EXPECT_NE(html.find("<b>500 ms</b>"), std::string::npos);
  EXPECT_NE(html.find("<td>&ndash;</td><td>fastest (predicted)</td>"), std::string::npos);
  EXPECT_TRUE(embedded(html)["strategies"][0]["elsewhere"]);
}

/// Strategies are compared by one kind of times, and measured ones only if all runs kept their pace on the
/// named devices.
TEST(HtmlReport, HeadlineAndTableCompareTimesThatCanBeTrusted) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> time(0.1, 0.2);
    ReportInput input;
    bool lost = false, replays = true, executes = false;
    for (const char* name : {"a", "b", "c"}) {
      StrategyReport strategy;
      strategy.name = name;
      strategy.simulated_step = time(random);
      if (random() % 4 != 0) {
        strategy.executed_step = 3 * time(random);
        strategy.kept_pace = random() % 2 != 0;
        if (random() % 4 != 0) strategy.replayed_step = 2 * time(random);
        lost = lost || !strategy.kept_pace;
        replays = replays && strategy.replayed_step > 0;
        executes = true;
      }
      input.strategies.push_back(strategy);
    }
    const std::string html = html_report(input), basis = embedded(html)["basis"];
    EXPECT_EQ(basis, !executes || (lost && !replays) ? "simulated"
                     : lost                          ? "replayed"
                                                     : "executed")
        << "seed " << seed;
    const std::size_t word = basis == "executed"   ? html.find("compared by executed steps")
                             : basis == "replayed" ? html.find("compared by replayed steps")
                                                   : html.find("compared by predicted steps");
    EXPECT_NE(word, std::string::npos) << "seed " << seed;
    EXPECT_EQ(html.find("exec/replay") != std::string::npos,
              std::any_of(input.strategies.begin(), input.strategies.end(),
                          [](const auto& s) { return s.replayed_step > 0; }));
  }
}

TEST(HtmlReport, ARunThatLostItsPaceIsMarkedWhereItsTimesAre) {
  ReportInput input;
  input.strategies.resize(2);
  for (StrategyReport& strategy : input.strategies) {
    strategy.simulated_step = 0.1, strategy.replayed_step = 0.11, strategy.executed_step = 0.22;
  }
  EXPECT_EQ(html_report(input).find("(lost its pace)</td>"), std::string::npos);
  input.strategies[1].kept_pace = false;
  input.strategies[1].executed_over_replayed = 2.125;  // the median of the steps, as the terminal says it
  const std::string html = html_report(input);
  EXPECT_NE(html.find("<td>2.125 (lost its pace)</td>"), std::string::npos) << html;
  EXPECT_NE(html.find("<td>2.000</td>"), std::string::npos);
  EXPECT_FALSE(embedded(html)["strategies"][1]["kept_pace"]);
}

TEST(HtmlReport, MemoryBarsReachToTheCapacityAndEqualDevicesAreARow) {
  ReportInput input;
  input.strategies.resize(1);
  for (int d = 0; d < 20; ++d)
    input.strategies[0].memory.push_back(
        {"A40#" + std::to_string(d), {.in_flight = d < 8 ? 4e9 : 8e9}, 0, 16e9});
  const std::string html = html_report(input);
  EXPECT_NE(html.find("A40#0 to A40#7</th>"), std::string::npos);
  EXPECT_NE(html.find("A40#8 to A40#19</th>"), std::string::npos);
  EXPECT_NE(html.find("style=\"width:25.0%\""), std::string::npos);
  EXPECT_NE(html.find("style=\"width:50.0%\""), std::string::npos);
}

TEST(HtmlReport, OfManyEqualDevicesOneIsDrawn) {
  synthetic::Shape shape;
  shape.num_attention = 512, shape.num_expert = 512, shape.num_layers = 2, shape.num_microbatches = 2;
  ReportInput input;
  input.strategies.resize(1);
  input.strategies[0].simulated = synthetic::zebra(shape);
  const std::string html = html_report(input);
  const Json data = embedded(html)["strategies"][0];
  ASSERT_EQ(data["devices"].size(), 2u);
  EXPECT_EQ(data["devices"][0]["names"], "A40#0 to A40#511");
  EXPECT_EQ(data["devices"][1]["count"], 512);
  EXPECT_EQ(data["all_devices"], 1024);
  EXPECT_LT(html.size(), 300000u);
}

/// 1,024 devices of which no two do the same.
TEST(HtmlReport, APageOfManyUnequalDevicesStaysBelow5Megabytes) {
  synthetic::Shape shape;
  shape.num_attention = 512, shape.num_expert = 512, shape.num_layers = 8, shape.num_microbatches = 8,
  shape.jitter = 0.3;
  ReportInput input;
  input.strategies.resize(1);
  input.strategies[0].simulated = synthetic::zebra(shape);
  const std::string html = html_report(input);
  write_text(std::filesystem::path(HM_BINARY_DIR) / "report_1024.html", html);
  EXPECT_LT(html.size(), 5u << 20);
  const Json data = embedded(html)["strategies"][0];
  EXPECT_GT(data["devices"].size(), 30u);
  EXPECT_LE(data["devices"].size(), 48u);
}

/// The most points that MetricsFile keeps, in as many curves as a run with six layers has.
TEST(HtmlReport, APageOfLongCurvesStaysBelow5Megabytes) {
  ReportInput input = typical({});
  input.strategies.resize(1);
  for (int p = 0; p < 16; ++p) {
    LossPlot plot{"Curve " + std::to_string(p), "step", "value", {}, 640, 290};
    for (int c = 0; c < (p < 4 ? 6 : 1); ++c) {
      LossSeries series{"layer " + std::to_string(c), {}, {}};
      for (int step = 0; step < 4000; ++step)
        series.train.push_back({250.0 * step, 2 + std::sin(0.9 * step + c) / 7});
      plot.runs.push_back(std::move(series));
    }
    input.run.push_back(std::move(plot));
  }
  const std::string html = html_report(input);
  write_text(std::filesystem::path(HM_BINARY_DIR) / "report_long.html", html);
  EXPECT_LT(html.size(), 5u << 20);
  EXPECT_GT(count(html, "class=\"smooth\""), 30u);
}

TEST(HtmlReport, TableShowsStepsErrorAndNotes) {
  ReportInput input;
  input.strategies.resize(2);
  input.strategies[0].name = "a";
  input.strategies[0].simulated_step = 0.1;
  input.strategies[0].executed_step = 0.105;
  input.strategies[1].name = "b";
  input.strategies[1].simulated_step = 0.21;
  input.strategies[1].note = "simulated only";
  const std::string html = html_report(input);
  for (const char* text :
       {"<b>100 ms</b>", "<b>105 ms</b>", "+5.0 %", ">fastest<", "<td colspan=\"6\">simulated only</td>"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(html.find("id=\"canvas\""), std::string::npos) << "nothing to draw";
  // A prediction is compared with predictions: 0.21 with 0.1, not with the measured 0.105.
  EXPECT_NE(html.find("<td>2.10x slower (predicted)</td>"), std::string::npos) << html;
}

TEST(HtmlReport, HasAPartForAllThatIsKnownOfARun) {
  ReportInput input = typical({});
  input.strategies[0].plan = PlanLayout{{"zebra: 1 group"}, {"A40#0"}, 1, 2, {{1}}, {{2}}, {1}, {1}};
  input.run = {{"Tokens per second", "step", "tokens/s", {{"zebra", {{1, 5}, {2, 6}}, {}}}, 640, 300}};
  input.run[0].marks = {{2, "owners by eplb"}};
  input.events = {{2, "owners by eplb"}};
  const std::string html = html_report(input);
  for (const char* text :
       {"<h2>The plan</h2>", "<li>zebra: 1 group</li>", "<h2>Memory of each device</h2>", "<b>31.5 GiB</b>",
        "-0.6 %", "<h2>The run, step by step</h2>", "<line class=\"mark\"",
        "<title>step 2: owners by eplb</title>", "<td class=\"num\">2</td><td>owners by eplb</td>"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
  for (const PagePart& part : page_parts({})) EXPECT_TRUE(part.id == "head" || part.html.empty()) << part.id;
}

TEST(HtmlReport, OnlyALivePageAsksForMore) {
  EXPECT_EQ(html_report(typical({})).find("fetch("), std::string::npos);
  EXPECT_NE(html_report(typical({}), PageKind::kLive).find("fetch('/parts?seen='"), std::string::npos);
}

TEST(HtmlReport, EmptyInputGivesAPage) {
  const std::string html = html_report({});
  EXPECT_EQ(embedded(html)["strategies"].size(), 0u);
  EXPECT_EQ(html.substr(html.size() - 8), "</html>\n");
}

TEST(HtmlReport, MeasurementAloneIsShown) {
  ReportInput input = typical({});
  input.strategies[0].simulated.reset();
  const Json strategy = embedded(html_report(input))["strategies"][0];
  EXPECT_TRUE(strategy["simulated"].is_null());
  EXPECT_EQ(strategy["executed"]["ops"].size(), input.strategies[0].executed->ops.size());
  EXPECT_TRUE(strategy["steps"]["simulated"].is_null());
}

// For looking at: these pages stay in the build folder.
TEST(HtmlReport, ExamplePagesAreWritten) {
  const std::filesystem::path folder = HM_BINARY_DIR;
  write_text(folder / "report_small.html", html_report(typical({})));
  synthetic::Shape large;
  large.num_attention = 8;
  large.num_expert = 8;
  large.num_layers = 12;
  large.num_microbatches = 8;
  const std::string html = html_report(typical(large));
  write_text(folder / "report_large.html", html);
  EXPECT_GT(embedded(html)["strategies"][0]["executed"]["spans"].size() / 4, 5000u);
}

TEST(Escape, MarkupKeepsTextAndNothingElse) {
  EXPECT_EQ(escape_markup("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(escape_markup("\x01x\n\xC3\xA9\xC3"), " x\n\xC3\xA9\xEF\xBF\xBD");
}

TEST(Escape, ScriptJsonReadsBackUnchanged) {
  const Json value = {{"</script>", "<!--<script>"}, {"n", 1.5}};
  EXPECT_EQ(script_json(value).find('<'), std::string::npos);
  EXPECT_EQ(Json::parse(script_json(value)), value);
}

}  // namespace
}  // namespace hetermoe
