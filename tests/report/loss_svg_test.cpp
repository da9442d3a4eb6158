#include "hetermoe/report/loss_svg.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <sstream>

#include "tests/report/count.h"

namespace hetermoe {
namespace {

LossPlot plot_of(std::vector<LossSeries> runs) {
  LossPlot plot;
  plot.title = "Loss";
  plot.runs = std::move(runs);
  return plot;
}

TEST(LossSvg, HasALineAndALegendEntryPerSeries) {
  const std::string svg =
      loss_svg(plot_of({{"zebra", {{0, 4}, {1, 3}}, {{1, 3.5}}}, {"ep <1>", {{0, 4}, {1, 3}}, {}}}));
  EXPECT_EQ(count(svg, "<path"), 5u);  // axes, two train lines, one validation line and its dots
  EXPECT_EQ(count(svg, ">zebra train<"), 1u);
  EXPECT_EQ(count(svg, ">zebra validation<"), 1u);
  EXPECT_EQ(count(svg, ">ep &lt;1&gt; train<"), 1u);
  EXPECT_EQ(count(svg, "validation<"), 1u);
  EXPECT_EQ(count(svg, "class=\"dots\""), 1u);
  EXPECT_EQ(svg.find("<svg xmlns"), 0u);
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
}

TEST(LossSvg, PointsLandWhereTheAxesSay) {
  // Loss 0..1 with 5 % margin in a frame of y 44..368; steps 0..10 over x 88..880.
  const std::string svg = loss_svg(plot_of({{"a", {{0, 1}, {10, 0}}, {}}}));
  EXPECT_NE(svg.find("d=\"M0 1L10 0\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("<svg x=\"88.0\" y=\"44.0\" width=\"792.0\" height=\"324.0\">"), std::string::npos)
      << svg;
  EXPECT_NE(svg.find("transform=\"matrix(79.2 0 0 -294.5454545 -0 309.2727273)\""), std::string::npos) << svg;
}

TEST(LossSvg, NotFinitePointsLiftThePen) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string svg = loss_svg(plot_of({{"a", {{0, 1}, {1, 1}, {2, nan}, {3, 0}, {4, 0}}, {}}}));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  const std::size_t line = svg.find("d=\"M0 1");
  EXPECT_EQ(count(svg.substr(line, svg.find('"', line + 3) - line), "M"), 2u);
}

TEST(LossSvg, DegenerateDataGivesAPicture) {
  EXPECT_NE(loss_svg(plot_of({})).find("no losses recorded"), std::string::npos);
  const std::string point = loss_svg(plot_of({{"a", {{5, 2}}, {}}}));
  EXPECT_EQ(count(point, "class=\"dots\""), 1u);
  EXPECT_EQ(point.find("inf"), std::string::npos);
}

TEST(LossSvg, TheLegendLeavesTheCurvesInSight) {
  const auto has_legend_at = [](const char* y, double first, double last) {
    const std::string svg = loss_svg(plot_of({{"a", {{0, first}, {9, last}, {10, last}}, {}}}));
    return svg.find(std::string("<rect x=\"829.0\" y=\"") + y + "\" width=\"51.0\"") != std::string::npos;
  };
  EXPECT_TRUE(has_legend_at("44.0", 1, 0));   // falling: top right
  EXPECT_TRUE(has_legend_at("338.0", 0, 1));  // rising: below
}

/// Where curves run through all corners it stands beside them: the axes end before it begins.
TEST(LossSvg, TheLegendStandsBesideCurvesThatLeaveNoCornerFree) {
  const std::string svg = loss_svg(plot_of({{"up", {{0, 0}, {10, 1}}, {}}, {"down", {{0, 1}, {10, 0}}, {}}}));
  const std::size_t axes = svg.find('H', svg.find("V368")), box = svg.rfind("<rect x=\"");
  ASSERT_NE(axes, std::string::npos);
  const double end = std::stod(svg.substr(axes + 1)), left = std::stod(svg.substr(box + 9));
  EXPECT_LT(end, left);
  EXPECT_GT(end, 600);
}

TEST(LossSvg, MarksStandBeforeTheirStepAndSayWhy) {
  LossPlot plot = plot_of({{"a", {{0, 1}, {10, 0}}, {}}});
  plot.marks = {{5.5, "owners <by> lpt"}, {20, "not in sight"}};
  const std::string svg = loss_svg(plot);
  EXPECT_EQ(count(svg, "class=\"mark\""), 1u);
  EXPECT_NE(svg.find("x1=\"5\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("<title>step 5.5: owners &lt;by&gt; lpt</title>"), std::string::npos);
}

/// What the line with these attributes is drawn in.
std::string colour_of(const std::string& svg, const std::string& name) {
  const std::size_t end = svg.find("data-name=\"" + name + "\"");
  const std::size_t begin = svg.rfind("stroke=\"", end) + 8;
  return svg.substr(begin, 7);
}

TEST(LossSvg, ValidationHasAColourOfItsOwn) {
  std::vector<LossSeries> runs;
  for (const char* name : {"a", "b", "c"}) runs.push_back({name, {{0, 4}, {1, 3}}, {{1, 3.5}}});
  const std::string svg = loss_svg(plot_of(runs));
  std::set<std::string> colours;
  for (const char* name : {"a train", "b train", "c train", "a validation", "b validation", "c validation"})
    colours.insert(colour_of(svg, name));
  EXPECT_EQ(colours.size(), 6u);
}

TEST(LossSvg, ManyPointsHaveTheirMeansAbovePaleOnes) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> noise(0, 1);
    LossSeries run{"a", {}, {}};
    for (int step = 0; step < 5000; ++step) run.train.push_back({double(step), 7 + noise(random)});
    const std::string svg = loss_svg(plot_of({run}));
    const std::size_t end = svg.find("class=\"smooth\""), begin = svg.rfind("d=\"", end) + 3;
    std::istringstream line(svg.substr(begin, svg.find('"', begin) - begin));
    char pen = 0;
    double step = 0, loss = 0;
    int points = 0;
    for (; line >> pen >> step >> loss; ++points) {
      const double far = std::min({step, 4999 - step, 50.0});  // means of 2 far + 1 points
      EXPECT_NEAR(loss, 7, 5 / std::sqrt(2 * far + 1)) << "seed " << seed << " step " << step;
    }
    EXPECT_EQ(points, 200);
  }
  EXPECT_EQ(loss_svg(plot_of({{"a", {{0, 1}, {1, 2}}, {}}})).find("smooth"), std::string::npos);
}

TEST(LossSvg, OnlyWholeStepsHaveATick) {
  const std::string svg = loss_svg(plot_of({{"a", {{0, 1}, {1, 2}, {2, 1}}, {}}}));
  const std::size_t axis = svg.find("x-axis");
  const std::string ticks = svg.substr(axis, svg.find("</g>", axis) - axis);
  EXPECT_EQ(count(ticks, "<text"), 3u) << ticks;
  const std::string large = loss_svg(plot_of({{"a", {{0, 1}, {1e6, 2}}, {}}}));
  EXPECT_NE(large.find(">1000000<"), std::string::npos);
}

TEST(NiceTicks, AreRoundAndInside) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(3.2, 4.1, 4), (std::vector<double>{3.5, 4}));
  EXPECT_EQ(nice_ticks(2, 2, 4), (std::vector<double>{2}));
  EXPECT_EQ(nice_ticks(-0.5, 0.5, 2), (std::vector<double>{-0.5, 0, 0.5}));
}

}  // namespace
}  // namespace hetermoe
