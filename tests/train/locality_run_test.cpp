#include <gtest/gtest.h>

#include <cmath>

#include "hetermoe/routing/trace.h"
#include "tests/support/case_count.h"
#include "tests/support/error_of.h"
#include "tests/train/tiny_run.h"

// Runs whose experts go where the sequences that use them are, and whose sequences go where their experts
// are.
namespace hetermoe {
namespace {

/// Two kinds of text that share no byte.
Dataset two_kinds() {
  std::vector<std::uint8_t> train, validation;
  for (i64 i = 0; i < 4000; ++i)
    train.push_back(static_cast<std::uint8_t>(i * 37 % 100 + (i < 2000 ? 0 : 120)));
  for (i64 i = 0; i < 100; ++i) validation.push_back(static_cast<std::uint8_t>(i));
  return byte_dataset(train, validation);
}

Settings in_two_nodes(Settings more) {
  more.insert(
      more.begin(),
      {{"strategy", "ep"}, {"cluster", "demo"}, {"train.sequences", "16"}, {"train.learning_rate", "0.02"}});
  return in_fp64(more);
}

Settings by_locality(const std::string& trace, Settings more) {
  more.insert(more.begin(), {{"balancer.name", "locality"},
                             {"balancer.knows", "foresight"},
                             {"balancer.every", "1"},
                             {"balancer.horizon", "1000000000"},
                             {"balancer.load_cap", "0"}});
  more.push_back(trace.empty() ? Settings::value_type{"balancer.probe", "true"}
                               : Settings::value_type{"routing.replay", trace});
  return in_two_nodes(more);
}

struct LocalEnd {
  TrainOutcome outcome;
  TensorsByName values;
  double rows = 0;  ///< between nodes, mean of the steps
  Bytes sent = 0;   ///< between nodes, of all steps
};

/// Stops after step `stop_at`; -1 = never.
LocalEnd run_of(const std::string& folder, const Settings& settings,
                Checkpoints checkpoints = Checkpoints::kOff, i64 stop_at = -1,
                const Dataset& text = two_kinds()) {
  TinyRun run(folder, settings);
  const Processes processes;
  Trainer trainer(run.job, run.model, run.cluster, run.plan, text, processes, checkpoints);
  LocalEnd out;
  out.outcome = trainer.run([&](const StepRecord& record) {
    const Placement placement(trainer.plan(), run.model, {});
    EXPECT_GT(record.sent, record.sent_between_nodes);
    out.sent += record.sent_between_nodes;
    const RecordedRouting routing = trainer.session().executor().recorded_routing();
    for (i32 l = 0; l < run.model.num_layers; ++l) {
      for (i32 m = 0; run.model.is_moe(l) && m < placement.num_microbatches(0); ++m) {
        const ExchangeLoad load = routing.exchange(placement, 0, l, m, 0);
        const TokenRanges sources = placement.ranges(0, l, m);
        const std::vector<DeviceId>& owners = placement.owners(0, l);
        for (std::size_t s = 0; s < sources.size(); ++s) {
          for (std::size_t o = 0; o < owners.size(); ++o) {
            if (run.cluster.node_of(sources.device(s)) != run.cluster.node_of(owners[o]))
              out.rows += load.rows_between(s, o);
          }
        }
      }
    }
    stop_requested = record.step == stop_at;
  });
  stop_requested = false;
  out.rows /= static_cast<double>(std::max<std::size_t>(1, out.outcome.records.size()));
  out.values = trainer.session().values();
  return out;
}

/// The same sequences in every step, and the same numbers but for rounding of sums in another order, which
/// grows over 50 steps, faster on some processors.
void expect_same_steps(const TrainOutcome& got, const TrainOutcome& expected) {
  ASSERT_EQ(got.records.size(), expected.records.size());
  for (std::size_t s = 0; s < expected.records.size(); ++s) {
    EXPECT_NEAR(got.records[s].loss / expected.records[s].loss, 1, 1e-8) << s;
    EXPECT_NEAR(got.records[s].aux_loss / expected.records[s].aux_loss, 1, 1e-8) << s;
    EXPECT_NEAR(got.records[s].grad_norm / expected.records[s].grad_norm, 1, 1e-7) << s;
    EXPECT_EQ(got.records[s].tokens_hash, expected.records[s].tokens_hash) << s;
  }
}

// Claim (LocalityRun.*, Mpi.SequencesInAnotherOrder*, Mpi.ByDomains*): `locality` in a run: fewer rows change
// nodes; losses, norms, tokens and traces are those of a run without; repeats and resumed runs equal to the
// bit; 2 to 4 processes as one; by foresight and by what domains chose in the steps before
TEST(LocalityRun, FewerRowsChangeNodesAndTheLossesStay) {
  const WorkFolder folder;
  const std::string trace = folder / "none.routes";
  for (const char* aux_group : {"1", "0"}) {  // 0: of the whole step, which then is one microbatch
    const bool alone = aux_group == std::string("1");
    const Settings same = {{"train.steps", alone ? testing::case_count("25", "50") : "10"},
                           {"train.microbatches", alone ? "2" : "1"},
                           {"train.aux_group", aux_group}};
    Settings recorded = same;
    recorded.push_back({"routing.record", trace});
    const LocalEnd none = run_of(folder / "none", in_two_nodes(recorded));
    for (const std::string& replayed : {trace, std::string()}) {
      Settings settings = same;
      settings.push_back({"routing.record", folder / "local.routes"});
      settings = by_locality(replayed, settings);
      const LocalEnd local = run_of(folder / "local", settings);
      std::printf("aux_group %s, %s: rows between nodes %.0f, %.0f without; %zu changes of owners\n",
                  aux_group, replayed.empty() ? "probe" : "replay", local.rows, none.rows,
                  local.outcome.changes.size());
      EXPECT_GE(local.outcome.changes.size(), 3U);
      EXPECT_LT(local.rows, 0.9 * none.rows);
      EXPECT_LT(local.sent, 0.97 * none.sent);
      expect_same_steps(local.outcome, none.outcome);
      const RoutingTrace got(folder / "local.routes"), expected(trace);
      for (const i64 step : expected.steps()) {
        EXPECT_EQ(got.read(step).choices, expected.read(step).choices) << step;
        EXPECT_EQ(got.read(step).sequences, expected.read(step).sequences) << step;
      }
      expect_equal(run_of(folder / "again", settings).values, local.values);
    }
  }
}

/// By what the two domains chose in the steps before; nobody knows the step that comes.
Settings by_history(Settings more) {
  more.insert(more.begin(), {{"balancer.name", "locality"},
                             {"balancer.every", "1"},
                             {"balancer.guard", "false"},
                             {"balancer.load_cap", "0"},
                             {"train.microbatches", "2"}});
  return in_two_nodes(more);
}

TEST(LocalityRun, ByHistoryItGoesByWhatTheDomainsChoseAndTheLossesStay) {
  const WorkFolder folder;
  const Dataset text = two_domains();
  const auto run = [&](const std::string& name, const Settings& settings) {
    return run_of(folder / name, settings, Checkpoints::kOff, -1, text);
  };
  const Settings same = {{"train.steps", "50"}, {"train.microbatches", "2"}},
                 recorded = {{"train.steps", "50"}, {"routing.record", folder / "local.routes"}};
  const LocalEnd none = run("none", in_two_nodes(same)), local = run("local", by_history(recorded));
  std::printf("rows between nodes %.0f, %.0f without; %zu changes of owners\n", local.rows, none.rows,
              local.outcome.changes.size());
  EXPECT_GE(local.outcome.changes.size(), 3U);
  EXPECT_LT(local.rows, 0.93 * none.rows);
  EXPECT_LT(local.sent, 0.98 * none.sent);
  expect_same_steps(local.outcome, none.outcome);
  expect_equal(run("again", by_history({{"train.steps", "50"}})).values, local.values);
  const RoutingTrace trace(folder / "local.routes");
  EXPECT_EQ(trace.header().domains, (std::vector<std::string>{"low", "high"}));
  for (const TraceSequence& sequence : trace.read(50).sequences) EXPECT_LT(sequence.domain, 2U);
}

TEST(LocalityRun, AResumedRunByHistoryEndsWithTheBitsOfAWholeOne) {
  const WorkFolder folder;
  const Dataset text = two_domains();
  const Settings settings = by_history({{"checkpoint.every", "1"}, {"balancer.every", "2"}});
  const LocalEnd whole = run_of(folder / "whole", settings, Checkpoints::kOn, -1, text);
  EXPECT_GE(whole.outcome.changes.size(), 1U);
  for (const i64 stop_at : {1, 3}) {
    const std::string name = folder / std::to_string(stop_at);
    run_of(name, settings, Checkpoints::kOn, stop_at, text);
    const LocalEnd rest = run_of(name, settings, Checkpoints::kOn, -1, text);
    EXPECT_EQ(rest.outcome.first_step, stop_at + 1);
    expect_equal(rest.values, whole.values);
  }
}

TEST(LocalityRun, OrderOfSequencesAloneSavesRows) {
  const WorkFolder folder;
  const std::string trace = folder / "none.routes";
  const LocalEnd none = run_of(folder / "none", in_two_nodes({{"routing.record", trace}})),
                 // Owners stay: no move pays within one step.
      ordered = run_of(folder / "ordered", by_locality(trace, {{"balancer.horizon", "1"}})),
                 // A load-balancing loss over pairs of sequences: these stay where they are.
      pairs =
          run_of(folder / "pairs", by_locality(trace, {{"balancer.horizon", "1"}, {"train.aux_group", "2"}}));
  EXPECT_TRUE(ordered.outcome.changes.empty());
  EXPECT_LT(ordered.rows, 0.98 * none.rows);
  EXPECT_EQ(pairs.rows, none.rows);
}

/// relibra with the parts given.
Settings by_relibra(const std::string& trace, const std::string& parts, Settings more) {
  more.insert(more.begin(), {{"balancer.name", "relibra"},
                             {"balancer.parts", parts},
                             {"balancer.guest_cost", "0"},
                             {"balancer.groups", "device"}});
  return by_locality(trace, more);
}

TEST(RelibraRun, EachPartCanBeLeftOutAndTheLossesStay) {
  const WorkFolder folder;
  const std::string trace = folder / "none.routes";
  const Settings same = {{"train.steps", testing::case_count("25", "50")}, {"train.microbatches", "2"}};
  Settings recorded = same;
  recorded.push_back({"routing.record", trace});
  const LocalEnd none = run_of(folder / "none", in_two_nodes(recorded));
  const auto run = [&](const std::string& parts) {
    const LocalEnd end = run_of(folder / "run", by_relibra(trace, parts, same));
    std::printf("%s: rows between nodes %.0f, %.0f without; %zu changes of owners\n", parts.c_str(), end.rows,
                none.rows, end.outcome.changes.size());
    expect_same_steps(end.outcome, none.outcome);
    return end;
  };
  const LocalEnd all = run(kAllParts), data = run("samples"), experts = run("reorder"),
                 guests = run("guests,split"), exact = run("reorder,samples,split");
  EXPECT_GE(all.outcome.changes.size(), 3U);
  EXPECT_GE(experts.outcome.changes.size(), 3U);
  EXPECT_GE(exact.outcome.changes.size(), 3U);
  EXPECT_TRUE(data.outcome.changes.empty());
  EXPECT_TRUE(guests.outcome.changes.empty());
  EXPECT_LT(data.rows, 0.98 * none.rows);
  EXPECT_LT(exact.rows, experts.rows);
  expect_equal(run(kAllParts).values, all.values);
}

TEST(RelibraRun, AResumedRunWithOrderedSequencesEndsWithTheBitsOfAWholeOne) {
  const WorkFolder folder;
  const Settings settings = by_relibra("", kAllParts, {{"checkpoint.every", "1"}});
  const LocalEnd whole = run_of(folder / "whole", settings, Checkpoints::kOn);
  run_of(folder / "cut", settings, Checkpoints::kOn, 3);
  const LocalEnd rest = run_of(folder / "cut", settings, Checkpoints::kOn);
  EXPECT_EQ(rest.outcome.first_step, 4);
  expect_equal(rest.values, whole.values);
}

TEST(LocalityRun, AResumedRunEndsWithTheBitsOfAWholeOne) {
  const WorkFolder folder;
  const std::string trace = folder / "none.routes";
  run_of(folder / "none", in_two_nodes({{"routing.record", trace}}));
  const Settings settings = by_locality(trace, {{"checkpoint.every", "1"}});
  const LocalEnd whole = run_of(folder / "whole", settings, Checkpoints::kOn);
  for (const i64 stop_at : {1, 4}) {
    const std::string name = folder / std::to_string(stop_at);
    run_of(name, settings, Checkpoints::kOn, stop_at);
    const LocalEnd rest = run_of(name, settings, Checkpoints::kOn);
    EXPECT_EQ(rest.outcome.first_step, stop_at + 1);  // the one that had begun
    expect_equal(rest.values, whole.values);
  }
}

TEST(LocalityRun, RefusesWhatItCannotOrder) {
  const WorkFolder folder;
  const auto error = [&](const Settings& more) {
    return error_of<ConfigError>([&] { run_of(folder / "run", by_locality("", more)); });
  };
  EXPECT_EQ(
      error({{"balancer.knows", "history"}, {"balancer.probe", "false"}}),
      "[balancer.knows] got history, expected foresight with locality where all text is of one domain: by "
      "history it goes by what each domain chose. Give data.paths with data.weights (and data.domains), or "
      "routing.replay or balancer.probe with balancer.knows: foresight");
  EXPECT_EQ(
      error({{"balancer.load_cap", "0.9"}}),
      "[balancer.load_cap] got 0.9, expected 0 (none) or at least 1, at which all device groups take equally "
      "long");
  EXPECT_EQ(
      error({{"train.router_jitter", "0.01"}}),
      "[train.router_jitter] got 0.01, expected 0 with locality: the noise is drawn by places, to which "
      "sequences come in another order");
  EXPECT_NE(error({{"balancer.groups", "[[0,1],[1,2,3]]"}}).find("device 1 is in it twice"),
            std::string::npos);
  EXPECT_NE(error({{"balancer.groups", "[[0,1]]"}}).find("of the plan is in no group"), std::string::npos);
}

}  // namespace
}  // namespace hetermoe
