#include "hetermoe/routing/trace_routing.h"

#include <gtest/gtest.h>

#include "tests/routing/golden_trace.h"
#include "tests/schedule/plans.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

/// One group of two devices that share two sequences of three tokens; experts 0, 1 on device 0, 2, 3 on
/// device 1.
struct Case {
  ModelConfig model = test::make_model({.num_layers = 2, .num_experts = 4, .top_k = 2, .dense = {0}});
  Cluster cluster = test::make_cluster({1, 1});
  Plan plan;
  explicit Case(i64 seq_len = 3, i64 sequences = 2) {
    StrategyRequest request;
    request.seq_len = seq_len;
    request.sequences = sequences;
    plan = find_strategy("ep").make(model, cluster, request);
  }
  ExchangeLoad load(const TraceRouting& routing, i32 chunk = 0) const {
    return routing.exchange(Placement(plan, model, {}), 0, 1, 0, chunk);
  }
  TraceRouting routing(const TraceHeader& header = golden_header(),
                       const TraceStep& step = golden_step()) const {
    return TraceRouting(header, step, model, "trace");
  }
};

using Numbers = std::vector<double>;

TEST(TraceRouting, AnotherModelsNameIsSaid) {
  Case c;
  c.model.name = "mine";
  TraceHeader header = golden_header();
  header.model.reset();
  EXPECT_EQ(note_of_model(header, c.model), "");
  header.model = "mine";
  EXPECT_EQ(note_of_model(header, c.model), "");
  header.model = "another";
  EXPECT_EQ(note_of_model(header, c.model),
            "the trace is of model another, whose layers and experts are as many as those of mine");
}

TEST(TraceRouting, RowsAndCopiesOfTheGoldenTrace) {
  Case c;
  EXPECT_EQ(c.load(c.routing()).rows, (Numbers{3, 1, 1, 2}));
  EXPECT_EQ(c.load(c.routing()).copies, (Numbers{5, 1, 1, 3}));
  c.plan.row_dedup = false;
  EXPECT_EQ(c.load(c.routing()).rows, (Numbers{5, 1, 1, 3}));
}

TEST(TraceRouting, ChunksAddUpToTheWhole) {
  Case c;
  c.plan.chunks = 3;
  Numbers rows(4, 0);
  for (i32 chunk = 0; chunk < 3; ++chunk) {
    const ExchangeLoad load = c.load(c.routing(), chunk);
    EXPECT_EQ(load.tokens, (Numbers{1, 1}));
    for (std::size_t i = 0; i < 4; ++i) rows[i] += load.rows[i];
  }
  EXPECT_EQ(rows, (Numbers{3, 1, 1, 2}));
}

TEST(TraceRouting, ReplicasShareTheCopiesOfAnExpertByPosition) {
  Case c;
  c.plan.groups[0].layers[1].experts[0] = {{.device = 0, .share = 0.5}, {.device = 1, .share = 0.5}};
  // Source 0 has three copies of expert 0: the first two (positions 0.5 and 1.5 of 3) stay.
  EXPECT_EQ(c.load(c.routing()).copies, (Numbers{4, 2, 1, 3}));
}

TEST(TraceRouting, RefusesATraceOfSomethingElse) {
  const Case c;
  TraceHeader header = golden_header();
  header.num_experts = 8;
  EXPECT_EQ(error_of<InputError>([&] { c.routing(header); }),
            "[trace] experts of a layer: got 8, expected 4 as model model has");
  header = golden_header();
  header.top_k = 1;
  EXPECT_EQ(error_of<InputError>([&] { c.routing(header); }),
            "[trace] experts of a token (top_k): got 1, expected 2 as model model has");
  header = golden_header();
  header.layers = {0, 1};
  EXPECT_EQ(error_of<InputError>([&] { c.routing(header); }),
            "[trace] layers with experts: got [0,1], expected [1] as model model has");
  TraceStep step = golden_step();
  step.choices[0].clear();
  EXPECT_TRUE(error_of<InputError>([&] { c.routing(golden_header(), step); }).find("got counts alone") !=
              std::string::npos);
}

TEST(TraceRouting, RefusesAPlanThatIsLongerThanTheTrace) {
  const Case more(3, 4), longer(4, 2);
  EXPECT_EQ(error_of<InputError>([&] { more.load(more.routing()); }),
            "[trace] got 2 sequences, expected 4 as the plan's step has. Give the job that recorded it, or "
            "train.sequences; simulate also joins steps, as FILE:A..B");
  EXPECT_EQ(error_of<InputError>([&] { longer.load(longer.routing()); }),
            "[trace] sequence 0: got 3 tokens, expected 4 as the plan has (seq_len)");
}

}  // namespace
}  // namespace hetermoe
