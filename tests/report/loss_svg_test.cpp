#include "hetermoe/report/loss_svg.h"

#include <gtest/gtest.h>

#include <limits>

namespace hetermoe {
namespace {

std::size_t count(const std::string& text, const std::string& word) {
  std::size_t number = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++number;
  return number;
}

LossPlot plot_of(std::vector<LossSeries> runs) {
  LossPlot plot;
  plot.title = "Loss";
  plot.runs = std::move(runs);
  return plot;
}

TEST(LossSvg, HasALineAndALegendEntryPerSeries) {
  const std::string svg =
      loss_svg(plot_of({{"zebra", {{0, 4}, {1, 3}}, {{1, 3.5}}}, {"ep <1>", {{0, 4}, {1, 3}}, {}}}));
  EXPECT_EQ(count(svg, "<path"), 4u);  // axes, two train lines, one validation line
  EXPECT_EQ(count(svg, ">zebra train<"), 1u);
  EXPECT_EQ(count(svg, ">zebra validation<"), 1u);
  EXPECT_EQ(count(svg, ">ep &lt;1&gt; train<"), 1u);
  EXPECT_EQ(count(svg, "validation<"), 1u);
  EXPECT_EQ(count(svg, "<circle"), 1u);
  EXPECT_EQ(svg.find("<svg xmlns"), 0u);
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
}

TEST(LossSvg, PointsLandWhereTheAxesSay) {
  // Loss 0..1 with 5 % margin in a frame of y 44..368; steps 0..10 over x 64..880.
  const std::string svg = loss_svg(plot_of({{"a", {{0, 1}, {10, 0}}, {}}}));
  EXPECT_NE(svg.find("d=\"M64.0 58.7L880.0 353.3\""), std::string::npos) << svg;
}

TEST(LossSvg, NotFinitePointsLiftThePen) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string svg = loss_svg(plot_of({{"a", {{0, 1}, {1, 1}, {2, nan}, {3, 0}, {4, 0}}, {}}}));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  const std::size_t line = svg.rfind("d=\"M64.0");  // the first such path is the axes
  EXPECT_EQ(count(svg.substr(line, svg.find('"', line + 3) - line), "M"), 2u);
}

TEST(LossSvg, DegenerateDataGivesAPicture) {
  EXPECT_NE(loss_svg(plot_of({})).find("no losses recorded"), std::string::npos);
  const std::string point = loss_svg(plot_of({{"a", {{5, 2}}, {}}}));
  EXPECT_EQ(count(point, "<circle"), 1u);
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
  EXPECT_NE(svg.find("x1=\"472.0\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("<title>step 5.5: owners &lt;by&gt; lpt</title>"), std::string::npos);
}

TEST(NiceTicks, AreRoundAndInside) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(3.2, 4.1, 4), (std::vector<double>{3.5, 4}));
  EXPECT_EQ(nice_ticks(2, 2, 4), (std::vector<double>{2}));
  EXPECT_EQ(nice_ticks(-0.5, 0.5, 2), (std::vector<double>{-0.5, 0, 0.5}));
}

}  // namespace
}  // namespace hetermoe
