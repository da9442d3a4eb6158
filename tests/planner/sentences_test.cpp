#include "hetermoe/planner/words/sentences.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/planner/words/explain.h"
#include "hetermoe/schedule/order_policy.h"
#include "tests/support/case_count.h"
#include "tests/support/random_request.h"
#include "tests/support/sanitized.h"

namespace hetermoe {
namespace {

bool says(const PlanResult& result, const std::string& words) {
  return std::any_of(result.explanation.begin(), result.explanation.end(),
                     [&](const std::string& line) { return line.find(words) != line.npos; });
}

i64 used_of(const Candidate& candidate, const std::string& type) {
  for (const TypeUse& use : candidate.types)
    if (use.type == type) return use.used;
  return 0;
}

double busy_of_busiest(const Candidate& candidate) {
  double most = 0;
  for (const TypeUse& use : candidate.types) most = std::max(most, use.used > 0 ? use.busy : 0);
  return most;
}

double gap_of_busy(const Candidate& candidate) {
  double least = 1;
  for (const TypeUse& use : candidate.types) least = std::min(least, use.used > 0 ? use.busy : 1);
  return busy_of_busiest(candidate) - least;
}

i64 used_types(const Candidate& candidate) {
  return std::count_if(candidate.types.begin(), candidate.types.end(),
                       [](const TypeUse& use) { return use.used > 0; });
}

bool uses_all(const Candidate& candidate) {
  return std::all_of(candidate.types.begin(), candidate.types.end(),
                     [](const TypeUse& use) { return use.used == use.devices; });
}

bool is_full(const Candidate& candidate) {
  constexpr Bytes kGiB = 1024.0 * 1024 * 1024;
  return std::any_of(candidate.types.begin(), candidate.types.end(), [](const TypeUse& use) {
    return use.used > 0 && use.memory / kGiB > 0.95 * use.limit_gib;
  });
}

/// Of a state on several devices.
bool has_sharding(const Candidate& candidate) {
  const Placement placement(candidate.plan, load_model(candidate.plan.model), {});
  return std::any_of(placement.states().begin(), placement.states().end(),
                     [](const State& state) { return state.sharded; });
}

bool needs_sharding(const Candidate& candidate) {
  constexpr Bytes kGiB = 1024.0 * 1024 * 1024;
  return std::any_of(candidate.types.begin(), candidate.types.end(), [](const TypeUse& use) {
    return use.freed > 0 && use.unsharded / kGiB > use.limit_gib;
  });
}

template <class Match>
bool tried(const PlanResult& result, Match match) {
  return std::any_of(result.tried.begin(), result.tried.end(),
                     [&](const Candidate& c) { return c.infeasible.empty() && match(c); });
}

/// Speed of the fastest of these over that of the best; 0 = there is none.
template <class Match>
double share_of_best(const PlanResult& result, Match match) {
  for (const Candidate& c : result.tried)
    if (c.infeasible.empty() && match(c)) return result.best().prediction.step / c.prediction.step;
  return 0;
}

Cause largest_of(const std::vector<Cause>& path) {
  return *std::max_element(path.begin(), path.end(),
                           [](const Cause& a, const Cause& b) { return a.share < b.share; });
}

/// A reason is a difference: a plan that loses waits or computes longer than the best, or leaves devices out.
void expect_reasons_that_differ(const PlanResult& r, u64 seed) {
  for (const Candidate& c : r.tried) {
    if (!c.infeasible.empty() || &c == &r.best()) continue;
    std::smatch found;
    const auto has = [&](const char* pattern) {
      return std::regex_search(c.verdict, found, std::regex(pattern));
    };
    if (has("wait (\\S+) s, not (\\S+) s")) {
      EXPECT_GT(std::stod(found[1]), std::stod(found[2])) << seed << " " << c.verdict;
    } else if (has("compute (\\S+) % longer")) {
      EXPECT_GE(std::stod(found[1]), 0) << seed << " " << c.verdict;
    } else if (has("leaves (\\d+) (\\S+)( and .*)? idle")) {
      EXPECT_LT(used_of(c, found[2]), used_of(r.best(), found[2])) << seed << " " << c.verdict;
    }
    const bool slower = c.prediction.step >= 1.005 * r.best().prediction.step;
    EXPECT_EQ(c.verdict.starts_with("takes "), slower) << seed << " " << c.verdict;
    EXPECT_TRUE(!slower || c.verdict.find(": ") != std::string::npos) << seed << " " << c.verdict;
  }
}

/// What the sentences of a feasible result claim, told again from its figures.
void expect_true_sentences(const PlanResult& r, u64 seed) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  const Candidate& best = r.best();
  const bool newer_alone = best.newer_only && best.types.size() > 1;
  const bool others = tried(r, [](const Candidate& c) { return !c.newer_only; });
  EXPECT_EQ(says(r, "newer devices alone are fastest"), newer_alone && others);
  EXPECT_EQ(says(r, "no plan with others fits"), newer_alone && !others && !r.others_lack.empty());
  EXPECT_EQ(says(r, "no plan with others was simulated"), newer_alone && !others && r.others_lack.empty());
  EXPECT_EQ(says(r, " are the busiest, "),
            used_types(best) > 1 && busy_of_busiest(best) >= 0.8 && gap_of_busy(best) >= 0.03);
  EXPECT_EQ(says(r, "waits longer than another"),
            used_types(best) > 1 && busy_of_busiest(best) >= 0.8 && gap_of_busy(best) < 0.03);
  EXPECT_EQ(says(r, "No type of device is busy all the time"), busy_of_busiest(best) < 0.8);
  // One thing limits a plan: the largest of the critical path.
  EXPECT_TRUE(says(r, fmt::format("What limits it most: {}, ", largest_of(best.path).what)));
  EXPECT_EQ(says(r, "Stages of the pipeline"), traits_of(best.plan.order).has_stages);
  EXPECT_EQ(says(r, "Memory is full"), is_full(best));
  EXPECT_EQ(says(r, "The optimizer is sharded"), has_sharding(best));
  EXPECT_EQ(says(r, "without it the plan does not fit"), needs_sharding(best));
  const double of_all = share_of_best(r, uses_all);
  EXPECT_EQ(says(r, "Leaving devices out is faster"), !uses_all(best) && of_all > 0 && of_all <= 0.995);
  EXPECT_EQ(says(r, "Using all devices would be no faster"), !uses_all(best) && of_all > 0.995);
  EXPECT_EQ(says(r, "No plan of all devices was simulated"), !uses_all(best) && !tried(r, uses_all));
  EXPECT_EQ(says(r, "times the speed of the newer devices alone"),
            !best.newer_only && tried(r, [](const Candidate& c) { return c.newer_only; }));
  const bool newer_fit = tried(r, [](const Candidate& c) { return c.newer_only; });
  EXPECT_EQ(says(r, "have no plan that fits"), !r.newer_unfit.empty());
  EXPECT_FALSE(newer_fit && !r.newer_unfit.empty());
  EXPECT_EQ(says(r, "Bound of the search"), !r.bounds.empty());
  EXPECT_FALSE(says(r, "No plan fits"));
  EXPECT_EQ(says(r, "A token goes once to each node"), !best.plan.row_nodes.empty());
  EXPECT_EQ(says(r, "the plan would be"), !r.narrow_wires.empty());
  for (const NarrowWire& wire : r.narrow_wires)
    EXPECT_GE(wire.tokens_per_s, 1.05 * best.prediction.tokens_per_s);
  EXPECT_EQ(says(r, "of the peak of its devices, which is little"), best.peak_share < 0.05);
  EXPECT_EQ(says(r, "from the first microbatches)") || says(r, "from the first layers and microbatches)"),
            best.prediction.from_first_windows);
}

void expect_different_names(const PlanResult& r) {
  std::set<std::string> names;
  for (const Candidate& candidate : r.tried)
    EXPECT_TRUE(names.insert(candidate.name).second) << candidate.name;
  for (const std::string& name : names) EXPECT_EQ(name.find("number "), std::string::npos) << name;
}

/// Stages name the types of their devices.
TEST(Sentences, StagesNameTheirDevices) {
  PlanRequest request;
  request.model = load_model("d1");
  request.cluster = load_cluster("o1");
  request.seq_len = 8192, request.sequences = 96;
  const PlanResult result = find_plan(request);
  EXPECT_TRUE(says(result, "in order: 1 stage with 5 layers on 6 A40, 1 stage with 3 layers on 6 V100."))
      << fmt::format("{}", fmt::join(result.explanation, "\n"));
}

/// Two plans that differ in the owner of one expert say so, and a busy type of unlike devices its range.
TEST(Sentences, WhatTellsPlansAndDevicesApartIsSaid) {
  PlanRequest request;
  request.model = load_model("d1");
  request.cluster = load_cluster("o1");
  request.seq_len = 8192, request.sequences = 96;
  PlanResult result = find_plan(request);
  const bool named = std::any_of(result.tried.begin(), result.tried.end(), [](const Candidate& c) {
    return c.name.ends_with(", 1 expert on another device");
  });
  EXPECT_TRUE(named);
  TypeUse& use = result.tried[0].types[1];
  use.least_busy = 0.57, use.most_busy = 0.96, use.busy = 0.81;
  result.explanation.clear();
  explain(result);
  EXPECT_TRUE(says(result, "V100 are the busiest, 81 % on average (57 to 96 %) of the step; A40 are idle"))
      << fmt::format("{}", fmt::join(result.explanation, "\n"));
}

/// One device computes all attention, the others wait: what it says is what is wrong.
TEST(Sentences, SayWhatIsWrongWithAPlanFarFromThePeak) {
  PlanRequest request;
  request.model = load_model("d1");
  request.cluster = load_cluster("o1");
  request.seq_len = 32768, request.sequences = 24;
  PlanResult result;
  const auto told = [&](const StrategyRequest& ask) {
    Candidate candidate;
    candidate.plan = find_strategy("dist-ep").make(request.model, request.cluster, ask);
    Predictor predictor(request.model, request.cluster);
    candidate.prediction = predictor.predict(candidate.plan);
    describe(request, candidate.plan, candidate);
    result.tried = {std::move(candidate)};
    result.explanation.clear();
    explain(result);
  };
  StrategyRequest ask;
  ask.seq_len = 32768, ask.sequences = ask.microbatches = 24;
  ask.attention = {0}, ask.experts = {1, 2, 3, 6, 7, 8, 9, 10, 11};
  told(ask);
  EXPECT_LT(result.best().peak_share, 0.05);
  EXPECT_TRUE(says(result, "1 of 10 devices computes all attention")) << result.best().peak_share;
  EXPECT_TRUE(says(result, "teams that share sequences (plan.team)"));
  ask.sequences = ask.microbatches = 2;
  told(ask);
  EXPECT_TRUE(says(result, "the step has 2 sequences for 10 devices"));
}

/// A layer whose experts have room on both servers alone: a token of eight experts reaches each server once.
TEST(Sentences, TellOfRowsByNode) {
  PlanRequest request;
  request.model = load_model("qwen3-235b-a22b");
  request.model.num_layers = 1, request.model.vocab = 32'000;
  request.cluster = parse_cluster(
      parse_yaml(
          "{name: two, network_gbit_s: 200, nodes: [{devices: [V100-32 x3], count: 2, local_gb_s: 100}]}",
          "test"),
      "test ");
  request.seq_len = 2048, request.sequences = 24;
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible()) << result.infeasible;
  EXPECT_EQ(result.best().plan.row_nodes, (std::vector<NodeId>{0, 0, 0, 1, 1, 1}));
  EXPECT_TRUE(says(result, "A token goes once to each node"));
  EXPECT_NE(result.best().name.find(", rows by node"), std::string::npos) << result.best().name;
}

/// What narrower rows would gain is what a plan with them gains.
TEST(Sentences, TellOfNarrowerWires) {
  PlanRequest request;
  request.model = load_model("d1");
  request.cluster = load_cluster("o1");
  request.seq_len = 4096, request.sequences = 256;
  const PlanResult result = find_plan(request);
  ASSERT_FALSE(result.narrow_wires.empty());
  EXPECT_EQ(result.narrow_wires[0].flag, "--wire fp8_row");
  EXPECT_TRUE(says(result, "With --wire fp8_row (rows of experts in 8 bits) the plan would be "));
  request.wire = Wire::kFp8Row;
  const PlanResult narrow = find_plan(request);
  EXPECT_GE(narrow.best().prediction.tokens_per_s, 0.99 * result.narrow_wires[0].tokens_per_s);
  EXPECT_TRUE(narrow.narrow_wires.empty() || narrow.narrow_wires[0].flag != "--wire fp8_row");
}

constexpr i64 kBudget = 10'000;  ///< what is said of a plan must be true after a short search, too

TEST(Sentences, ArePrintedExactlyWhenTheyAreTrueOverRandomRequests) {
  int feasible = 0, infeasible = 0;
  std::set<std::string> seen;
  const i64 requests = testing::cases(testing::case_count(250, 500));
  for (u64 seed = 1; seed <= static_cast<u64>(requests); ++seed) {
    PlanRequest request = testing::random_request(seed, {});
    request.limits.simulation_budget = kBudget;
    request.limits.weigh_newer = seed % 2 == 0;
    const PlanResult result = find_plan(request);
    expect_different_names(result);
    for (const Sentence& sentence : sentences()) {
      if (sentence.holds(result)) seen.insert(sentence.name);
    }
    if (result.feasible()) {
      ++feasible;
      expect_true_sentences(result, seed);
      expect_reasons_that_differ(result, seed);
    } else {
      ++infeasible;
      EXPECT_TRUE(says(result, "No plan fits"));
      EXPECT_NE(result.advice, "");
    }
  }
  EXPECT_GT(feasible, requests * 3 / 5);
  if (testing::kSanitized) return;
  // Sentences that no request brings out would not be tested.
  EXPECT_GT(infeasible, testing::case_count(2, 5));
  for (const char* name : {"pace", "nobody busy", "path", "memory", "newer alone fastest", "leaving out",
                           "gain", "narrow wires"})
    EXPECT_TRUE(seen.contains(name)) << name;
}

}  // namespace
}  // namespace hetermoe
