#include "hetermoe/report/heat_map.h"

#include <gtest/gtest.h>

#include "hetermoe/report/html.h"
#include "tests/report/count.h"

namespace hetermoe {
namespace {

const ExpertLoad kLoad{"Copies <of> experts", {1, 3}, {{6, 2, 0, 0}, {1, 1, 1, 1}}};

TEST(HeatMap, HasACellForEveryExpertOfEveryLayer) {
  const std::string svg = heat_map_svg(kLoad);
  EXPECT_EQ(count(svg, "class=\"cell\""), 8u);
  EXPECT_EQ(count(svg, "layer 1 expert 0: 6 copies, 3.00 of the mean"), 1u);
  EXPECT_EQ(count(svg, "layer 3 expert 2: 1 copies, 1.00 of the mean"), 1u);
  EXPECT_EQ(count(svg, ">3.00</text>"), 1u);  // the scale ends at the most
  EXPECT_EQ(count(svg, "Copies &lt;of&gt; experts"), 1u);
  EXPECT_EQ(count(svg, "fill=\"#08306b\""), 1u);  // the darkest cell, that of expert 0 in layer 1
}

/// One busy expert among many does not make the others pale.
TEST(HeatMap, OneBusyExpertLeavesTheOthersTheirShades) {
  ExpertLoad load{"Copies", {}, {}};
  for (int l = 0; l < 4; ++l) {
    load.layers.push_back(l);
    load.copies.emplace_back();
    for (int e = 0; e < 64; ++e) load.copies.back().push_back(e % 2 == 0 ? 120 : 80);
  }
  load.copies[0][0] = 4000;
  const std::string busy = heat_map_svg(load);
  EXPECT_EQ(count(busy, "largest "), 1u);
  EXPECT_GE(count(busy, "fill=\"" + heat_colour(1.2 / (1.5 * 1.2)) + "\""), 96u);
}

TEST(HeatMap, WithoutCopiesAllIsBlank) {
  const std::string svg = heat_map_svg({"none", {0}, {{0, 0}}});
  EXPECT_EQ(count(svg, "class=\"cell\""), 2u);
  EXPECT_EQ(count(svg, "height=\"22\" fill=\"#ffffff\""), 2u);
}

/// Experts 0 and 2 were made of expert 0, the others of expert 1.
TEST(HeatMap, TwinsStandSideBySide) {
  ExpertLoad load{"grown", {1}, {{5, 1, 3, 3}}};
  load.families = {{0, 1, 0, 1}};
  const std::string svg = heat_map_svg(load);
  const auto at = [&](const std::string& text) { return svg.find("<title>layer 1 " + text); };
  EXPECT_LT(at("expert 0, made of 0: 5 copies"), at("expert 2, made of 0: 3 copies"));
  EXPECT_LT(at("expert 2, made of 0: 3 copies"), at("expert 1, made of 1: 1 copies"));
  EXPECT_LT(at("expert 1, made of 1: 1 copies"), at("expert 3, made of 1: 3 copies"));
  EXPECT_EQ(count(svg, "class=\"family\" d=\"M427.00 40v22\""), 1u) << svg;  // in the middle
  EXPECT_EQ(count(heat_map_svg(kLoad), "class=\"family\""), 0u);
}

TEST(HtmlReport, ShowsLoadsOfExpertsAndTheirCurves) {
  ReportInput input;
  input.title = "routing";
  EXPECT_EQ(count(html_report(input), "Load of the experts"), 0u);
  input.expert_loads = {kLoad};
  input.routing = {
      {"Gini coefficient", "step", "Gini", {{"mean over layers", {{1, 0.2}, {2, 0.3}}, {}}}, 900, 420}};
  const std::string html = html_report(input);
  EXPECT_EQ(count(html, "<h2>Load of the experts</h2>"), 1u);
  EXPECT_EQ(count(html, "class=\"cell\""), 8u);
  EXPECT_GE(count(html, "Gini coefficient"), 1u);
}

}  // namespace
}  // namespace hetermoe
