#include "hetermoe/report/live.h"

#include <gtest/gtest.h>

#include <fstream>

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

  WorkFolder folder_;
  LiveRun run_{folder_.path()};
};

TEST_F(Live, GrowsWithTheMetrics) {
  EXPECT_TRUE(has(run_.body(), "has no metrics yet"));
  write("job.json", R"({"model": "de<mo", "cluster": "o1", "strategy": "zebra", "train": {"steps": 10}})");
  add(1);
  EXPECT_TRUE(has(run_.body(), "<td>1 of 10</td>")) << run_.body();
  EXPECT_TRUE(has(run_.body(), "<td>de&lt;mo</td>"));
  EXPECT_TRUE(has(run_.body(), "<td>18 s</td>") || has(run_.body(), "<td>18.0 s</td>"))
      << run_.body();  // left
  add(2, R"(, "warnings": ["loss <jumps>"])");
  write("metrics.jsonl", R"({"step": 3, "lo)", std::ios::app);  // as the writer may leave it for a moment
  const std::string body = run_.body();
  EXPECT_TRUE(has(body, "<td>2 of 10</td>"));
  EXPECT_TRUE(has(body, "<td>step 2: loss &lt;jumps&gt;</td>"));
  EXPECT_TRUE(has(body, "4.0000"));
  EXPECT_TRUE(has(body, "<svg"));
  write("metrics.jsonl", "ss\": 1.5}\n", std::ios::app);
  EXPECT_TRUE(has(run_.body(), "<td>3 of 10</td>"));
}

TEST_F(Live, ARunThatBeginsAnewReplacesTheOther) {
  for (i64 step = 1; step <= 5; ++step) add(step);
  EXPECT_TRUE(has(run_.body(), "<td>5</td>"));
  write("metrics.jsonl", "");
  add(1);
  EXPECT_TRUE(has(run_.body(), "<td>1</td>"));
}

TEST_F(Live, LongRunsAreThinned) {
  std::string lines;
  for (i64 step = 1; step <= 20'000; ++step) lines += fmt::format("{{\"step\": {}, \"loss\": 1}}\n", step);
  write("metrics.jsonl", lines);
  const std::string body = run_.body();
  EXPECT_TRUE(has(body, "<td>20000</td>"));
  EXPECT_LT(body.size(), 200'000u);
}

TEST_F(Live, AReportOfAnEarlierRunIsNotShown) {
  write("report.html", "<p>old</p>");
  add(1);
  std::filesystem::last_write_time(
      folder_ / "report.html",
      std::filesystem::last_write_time(folder_ / "metrics.jsonl") - std::chrono::seconds(5));
  EXPECT_FALSE(has(run_.body(), "report.html"));
  EXPECT_EQ(run_.report(), "");
  write("report.html", "<p>new</p>");
  EXPECT_TRUE(has(run_.body(), "href=\"/report.html\""));
  EXPECT_EQ(run_.report(), "<p>new</p>");
}

}  // namespace
}  // namespace hetermoe
