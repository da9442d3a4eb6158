#include "hetermoe/routing/analysis.h"

#include <gtest/gtest.h>

#include "hetermoe/routing/synthetic.h"
#include "tests/routing/golden_trace.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

TraceFigures figures_of(const std::string& window, const std::vector<TraceStep>& steps,
                        std::vector<i64> degrees = {}) {
  TraceAnalyser analyser(golden_header(), window_from(window, "--window"), std::move(degrees));
  for (const TraceStep& step : steps) analyser.add(step);
  return analyser.finish("trace");
}

TEST(TraceAnalysis, CountsOverTheWindowThatIsAskedFor) {
  const TraceStep step = golden_step();
  const TraceFigures all = figures_of("all", {step, step}, {1, 2, 4});
  EXPECT_EQ(all.windows, 1);
  EXPECT_EQ(all.tokens, 12);
  EXPECT_EQ(all.layers[0].copies, (std::vector<double>{8, 4, 4, 4}));
  EXPECT_DOUBLE_EQ(all.layers[0].straggler.mean, 8.0 / 5);
  EXPECT_DOUBLE_EQ(all.layers[0].rank_ratio[1].mean, 12.0 / 10);
  EXPECT_EQ(figures_of("step", {step, step}).windows, 2);
  const TraceFigures microbatch = figures_of("microbatch", {step});
  EXPECT_EQ(microbatch.windows, 2);  // counts 3 2 1 0 and 1 0 1 2
  EXPECT_DOUBLE_EQ(microbatch.layers[0].straggler.low, 2);
  EXPECT_DOUBLE_EQ(microbatch.layers[0].straggler.high, 2);
  EXPECT_EQ(figures_of("1", {step}).windows, 2);
}

TEST(TraceAnalysis, RefusesWhatItCannotCount) {
  EXPECT_EQ(error_of<ConfigError>([] { window_from("day", "--window"); }),
            "[--window] got \"day\", expected microbatch, step, all or a number of sequences");
  EXPECT_EQ(error_of<InputError>([] { figures_of("3", {golden_step()}); }),
            "[trace] no window of \"3\" has a token: got 2 sequences in 1 steps");
  EXPECT_EQ(error_of<InputError>([] { figures_of("all", {golden_step()}, {5}); }),
            "[--ep] got 5, expected 1 to 4, the experts of a layer");
}

/// A trace whose routing does not change over time.
TEST(TraceAnalysis, ExcessDoesNotDependOnTheWindowWhileTheGiniCoefficientDoes) {
  TraceHeader header = golden_header();
  header.num_experts = 64;
  header.top_k = 6;
  header.domains.clear();
  const SyntheticTrace trace(header, {.seq_len = 256, .sequences = 32, .spread = 0.4});
  const TraceStep step = trace.step(0);
  const auto figures = [&](const std::string& window) {
    TraceAnalyser analyser(trace.header(), window_from(window, ""), {});
    analyser.add(step);
    return analyser.finish("trace").layers[0];
  };
  const LayerFigures one = figures("1"), all = figures("32");
  EXPECT_GT(one.gini.mean, 1.05 * all.gini.mean);
  EXPECT_NEAR(one.excess.mean / all.excess.mean, 1, 0.1);
  EXPECT_FALSE(one.is_noise());
}

TEST(TraceAnalysis, AnEvenRouterIsCalledNoise) {
  TraceHeader header = golden_header();
  header.num_experts = 64;
  header.top_k = 6;
  header.domains.clear();
  const SyntheticTrace trace(header, {.seq_len = 256, .sequences = 8});
  TraceAnalyser analyser(trace.header(), window_from("step", ""), {});
  for (i64 step = 0; step < 4; ++step) analyser.add(trace.step(step));
  EXPECT_TRUE(analyser.finish("trace").layers[0].is_noise());
}

/// A token that is padding chooses nothing, and is no draw.
TEST(TraceAnalysis, PaddingAddsNoNoise) {
  const TraceStep step = golden_step();
  TraceStep padded = step;
  padded.sequences[1].tokens = 7;
  padded.choices[0].insert(padded.choices[0].end(), 8, kNoExpert);
  index_tokens(padded);
  count_choices(padded, golden_header());
  EXPECT_DOUBLE_EQ(figures_of("all", {padded}).layers[0].noise.mean,
                   figures_of("all", {step}).layers[0].noise.mean);
  EXPECT_DOUBLE_EQ(figures_of("all", {step}).layers[0].noise.mean, noise_floor(4, 2, 5));
}

TEST(TraceAnalysis, CsvHasALineForEveryExpert) {
  EXPECT_EQ(copies_csv(figures_of("all", {golden_step()})),
            "layer,expert,copies,share\n1,0,4,0.400000\n1,1,2,0.200000\n1,2,2,0.200000\n1,3,2,0.200000\n");
}

}  // namespace
}  // namespace hetermoe
