#include "hetermoe/report/balance_page.h"

#include <gtest/gtest.h>

#include "tests/report/count.h"

namespace hetermoe {
namespace {

/// Device 1 was lent expert 0, of which it computed 20 copies beside 60 of its own.
const DeviceMap kMap{.title = "guests",
                     .devices = {"A#0", "A#1"},
                     .copies = {{80, 0}, {20, 60}},
                     .times = {1, 1},
                     .lent = {{0, 0}, {20, 0}}};

// Claim (BalancePage.*): on the page of balancers what was lent is framed and counted apart
TEST(BalancePage, AGuestHasAFrameAndItsPartOfTheTime) {
  const std::string svg = device_map_svg(kMap, 80, 1);
  EXPECT_EQ(count(svg, "class=\"cell\""), 2u);
  EXPECT_EQ(count(svg, "class=\"cell guest\""), 1u);
  EXPECT_EQ(count(svg, "A#1, expert 0: 20 copies, as a guest"), 1u);
  EXPECT_EQ(count(svg, "A#1, expert 1: 60 copies<"), 1u);
  EXPECT_EQ(count(svg, "<rect class=\"guest\" x=\"905.0\" y=\"68\" width=\"55.0\""), 1u) << svg;  // a quarter
  EXPECT_EQ(count(svg, "a guest: lent for single exchanges"), 1u);
}

TEST(BalancePage, WithoutGuestsNothingSpeaksOfThem) {
  DeviceMap map = kMap;
  map.lent = {};
  EXPECT_EQ(count(device_map_svg(map, 80, 1), "guest\""), 0u);
  map.lent = {{0, 0}, {0, 0}};
  EXPECT_EQ(count(device_map_svg(map, 80, 1), "lent for"), 0u);
}

TEST(BalancePage, TablesSayWhatTheirColumnsMean) {
  BalancePage page;
  page.title = "Balancers";
  page.tables = {
      {"First <table>", {"balancer", "step"}, {{"none", "2 ms"}, {"lpt", "1 ms"}}, {"step: of <this> run"}},
      {"Without rows", {"balancer"}, {}}};
  const std::string html = balance_page(page);
  for (const char* text : {"<h2>First &lt;table&gt;</h2>", "<th>step</th>", "<th scope=\"row\">lpt</th>",
                           "<td class=\"num\">1 ms</td>", "<li>step: of &lt;this&gt; run</li>"})
    EXPECT_EQ(count(html, text), 1u) << text;
  EXPECT_EQ(count(html, "Without rows"), 0u);
}

}  // namespace
}  // namespace hetermoe
