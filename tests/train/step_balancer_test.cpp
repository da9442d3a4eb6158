#include "hetermoe/train/run/step_balancer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/report/metrics.h"
#include "hetermoe/sim/migration_memory.h"
#include "hetermoe/train/run/results.h"
#include "hetermoe/train/run/step_report.h"
#include "tests/support/error_of.h"
#include "tests/train/tiny_run.h"

namespace hetermoe {
namespace {

/// Experts on two slow devices and a fast one; what a balancer chooses is taken, however little it saves.
Settings balanced(Settings more) {
  more.insert(more.begin(), {{"plan.attention_dtype", "fp64"},
                             {"plan.expert_dtype", "fp64"},
                             {"plan.wire_dtype", "fp64"},
                             {"clock.kind", "virtual"},
                             {"cluster", "o1"},
                             {"strategy", "zebra"},
                             {"plan.attention", "0,1"},
                             {"plan.experts", "2,6,7"},
                             {"train.steps", "20"},
                             {"train.learning_rate", "0.02"},
                             {"balancer.every", "3"},
                             {"balancer.history", "2"},
                             {"balancer.guard", "false"},
                             {"checkpoint.every", "0"}});
  return more;
}

TEST(StepBalancer, OwnersChangeAndTheLossesDoNot) {
  const WorkFolder folder;
  TinyRun none(folder / "none", balanced({{"train.steps", "50"}}));
  const TrainOutcome expected = none.run(Checkpoints::kOff).outcome;
  EXPECT_TRUE(expected.changes.empty());
  for (const Settings& balancer : {Settings{{"balancer.name", "lpt"}},
                                   Settings{{"balancer.name", "eplb"},
                                            {"balancer.replicas", "1"},
                                            {"balancer.history", "1"},
                                            {"balancer.every", "1"}},
                                   Settings{{"balancer.name", "lplb"},
                                            {"balancer.topology", "ring"},
                                            {"balancer.history", "1"},
                                            {"balancer.every", "1"}}}) {
    Settings settings = balanced({{"train.steps", "50"}});
    settings.insert(settings.end(), balancer.begin(), balancer.end());
    TinyRun run(folder / "run", settings);
    const TinyRun::End got = run.run(Checkpoints::kOff);
    // Others have other shares alone, or fewer copies.
    EXPECT_GE(std::count_if(got.outcome.changes.begin(), got.outcome.changes.end(),
                            [](const PlanTakeover& change) { return change.moves > 0; }),
              3)
        << balancer[0].second;
    for (std::size_t s = 0; s < expected.records.size(); ++s) {
      EXPECT_NEAR(got.outcome.records[s].loss / expected.records[s].loss, 1, 1e-9)
          << balancer[0].second << " step " << s;
    }
    TinyRun again(folder / "again", settings);
    const TinyRun::End repeated = again.run(Checkpoints::kOff);
    expect_equal(repeated.values, got.values);
    EXPECT_EQ(repeated.outcome.changes.size(), got.outcome.changes.size());
  }
}

TEST(StepBalancer, TheTimeRatioFalls) {
  const WorkFolder folder;
  const auto mean_ratio = [&](const std::string& name) {
    TinyRun run(folder / name, balanced({{"balancer.name", name}, {"train.learning_rate", "0"}}));
    const TrainOutcome out = run.run(Checkpoints::kOff).outcome;
    double sum = 0;
    for (std::size_t s = 3; s < out.records.size(); ++s) sum += out.records[s].routing.time_ratio.value();
    return sum / static_cast<double>(out.records.size() - 3);
  };
  const double none = mean_ratio("none"), lpt = mean_ratio("lpt");
  std::printf("time ratio: none %.3f, lpt %.3f\n", none, lpt);
  EXPECT_LT(lpt, none - 0.05);
}

TEST(StepBalancer, AResumedRunTakesTheSameDecisions) {
  const WorkFolder folder;
  // One owner each, with measured speeds, and copies: by shares, and by counts.
  for (const Settings& balancer :
       {Settings{{"balancer.name", "lpt"}}, Settings{{"balancer.name", "lpt"}, {"balancer.measure", "true"}},
        Settings{{"balancer.name", "eplb"}, {"balancer.replicas", "1"}},
        Settings{{"balancer.name", "lplb"}, {"balancer.topology", "ring"}}}) {
    const std::string of = balancer.front().second + balancer.back().second;
    Settings settings = balanced({{"checkpoint.every", "1"}});
    settings.insert(settings.end(), balancer.begin(), balancer.end());
    TinyRun whole(folder / (of + "/whole"), settings);
    const TinyRun::End expected = whole.run();
    EXPECT_GE(expected.outcome.changes.size(), 2U) << of;
    for (const i64 stop_at : {4, 8, 13}) {
      const std::string name = folder / (of + "/" + std::to_string(stop_at));
      TinyRun cut(name, settings);
      cut.run(Checkpoints::kOn,
              [&](Session&, const StepRecord& record) { stop_requested = record.step == stop_at; });
      stop_requested = false;
      TinyRun rest(name, settings);
      const TinyRun::End got = rest.run();
      EXPECT_EQ(got.outcome.first_step, stop_at + 1) << of;
      expect_equal(got.values, expected.values);
    }
  }
}

TEST(StepBalancer, ForesightGoesByTheStepThatComes) {
  const WorkFolder folder;
  const std::string trace = folder / "run.routes";
  TinyRun first(folder / "first", balanced({{"routing.record", trace}}));
  const TrainOutcome expected = first.run(Checkpoints::kOff).outcome;
  TinyRun run(folder / "run", balanced({{"balancer.name", "lpt"},
                                        {"balancer.every", "1"},
                                        {"balancer.knows", "foresight"},
                                        {"routing.replay", trace}}));
  const TrainOutcome got = run.run(Checkpoints::kOff).outcome;
  ASSERT_GE(got.changes.size(), 3U);
  EXPECT_EQ(got.changes[0].step, 1);  // before any step was seen
  for (std::size_t s = 0; s < expected.records.size(); ++s) {
    EXPECT_NEAR(got.records[s].loss / expected.records[s].loss, 1, 1e-9) << s;
    EXPECT_EQ(got.records[s].replayed_choices, 1.0);
  }
  const auto mean_ratio = [](const TrainOutcome& out) {
    double sum = 0;
    for (const StepRecord& record : out.records) sum += record.routing.time_ratio.value();
    return sum / static_cast<double>(out.records.size());
  };
  EXPECT_LT(mean_ratio(got), mean_ratio(expected));
}

TEST(StepBalancer, WhereChoicesAreReplayedNoCountsAreTold) {
  const WorkFolder folder;
  const std::string trace = folder / "run.routes";
  TinyRun(folder / "first", balanced({{"routing.record", trace}})).run(Checkpoints::kOff);
  const auto run_of = [&](const std::string& name, const std::string& tally) {
    const Settings settings = balanced({{"balancer.topology", "ring"},
                                        {"balancer.knows", "foresight"},
                                        {"routing.replay", trace},
                                        {"plan.tally", tally}});
    Settings copying = settings, staying = settings;
    copying.push_back({"balancer.name", "lplb"});
    staying.push_back({"balancer.name", "none+exact"});
    TinyRun run(folder / name, staying);
    run.plan = TinyRun(folder / "copies", copying).plan;  // owners stay, so that only what is told differs
    return run;
  };
  TinyRun known = run_of("known", "false"), told = run_of("told", "true");
  EXPECT_TRUE(known.plan.foreseen);
  EXPECT_FALSE(known.plan.tally);
  EXPECT_FALSE(told.plan.foreseen);
  EXPECT_TRUE(told.plan.tally);
  const TinyRun::End got = known.run(Checkpoints::kOff), expected = told.run(Checkpoints::kOff);
  EXPECT_TRUE(got.outcome.changes.empty());
  EXPECT_TRUE(expected.outcome.changes.empty());
  expect_equal(got.values, expected.values);
  double faster = 0;
  for (std::size_t s = 0; s < expected.outcome.records.size(); ++s) {
    EXPECT_EQ(got.outcome.records[s].loss, expected.outcome.records[s].loss);
    EXPECT_LT(got.outcome.records[s].sent, expected.outcome.records[s].sent);
    faster += expected.outcome.records[s].step_s - got.outcome.records[s].step_s;
  }
  EXPECT_GT(faster, 0);
  // Nobody else knows them.
  Job job = known.job;
  job.routing.replay.clear();
  EXPECT_EQ(error_of<ConfigError>([&] { make_job_plan(job, known.model, known.cluster); }),
            "[balancer.knows] got foresight, expected history where no choices are replayed. Give "
            "routing.replay or balancer.probe");
}

TEST(StepBalancer, AMoveThatDoesNotPayIsLeft) {
  const WorkFolder folder;
  TinyRun run(folder / "run", in_fp64({{"cluster", "demo"},
                                       {"strategy", "ep"},
                                       {"train.steps", "20"},
                                       {"train.learning_rate", "0.02"},
                                       {"balancer.name", "lpt"},
                                       {"balancer.every", "3"},
                                       {"balancer.history", "2"},
                                       {"balancer.horizon", "1"}}));
  const TrainOutcome out = run.run(Checkpoints::kOff).outcome;
  EXPECT_TRUE(out.changes.empty());
  const std::string stay = "owners of experts stay: ", unpaid = "what it saves would not pay for the move";
  std::vector<std::string> reasons;
  for (const std::string& note : out.notes) {
    if (const std::size_t at = note.find(stay); at != std::string::npos)
      reasons.push_back(note.substr(at + stay.size()));
  }
  EXPECT_GE(std::count(reasons.begin(), reasons.end(), unpaid), 1);
  EXPECT_LT(reasons.size(), 6U);                                                 // looks
  EXPECT_EQ(std::adjacent_find(reasons.begin(), reasons.end()), reasons.end());  // said once
}

Seconds sum_of_steps(const TrainOutcome& out) {
  Seconds sum = 0;
  for (const StepRecord& record : out.records) sum += record.step_s;
  return sum;
}

i64 steps_held(const TrainOutcome& out) {
  return std::count_if(out.records.begin(), out.records.end(),
                       [](const StepRecord& record) { return record.owners_held; });
}

/// Every expert is chosen equally often, and the two owners are alike: to deal experts out anew wins nothing.
// Claim (StepBalancer.TheGuard*): the guard in a run leaves owners that would not shorten the step and, with
// foresight, gives up copies that lengthen it; it counts how often
TEST(StepBalancer, TheGuardLeavesOwnersWhereOthersWouldNotShortenTheStep) {
  const WorkFolder folder;
  const auto run_of = [&](const std::string& name, const Settings& more) {
    Settings settings =
        balanced({{"balancer.name", "lpt"}, {"plan.experts", "6,7"}, {"train.forced_balance", "true"}});
    settings.insert(settings.end(), more.begin(), more.end());
    return TinyRun(folder / name, settings).run(Checkpoints::kOff).outcome;
  };
  const TrainOutcome none = run_of("none", {{"balancer.name", "none"}}),
                     guarded = run_of("guarded", {{"balancer.guard", "true"}}), taken = run_of("taken", {});
  EXPECT_TRUE(guarded.changes.empty());
  EXPECT_EQ(steps_held(guarded), 6);  // of 20 steps, every third but the first
  EXPECT_EQ(metrics_json(guarded.records[3]).at("owners_held"), true);
  EXPECT_FALSE(metrics_json(guarded.records[4]).contains("owners_held"));
  ASSERT_EQ(guarded.notes.size(), 2U);
  EXPECT_EQ(
      guarded.notes[0],
      "step 4: owners of experts stay: others would not shorten the step by half a percent (simulated)");
  EXPECT_EQ(
      guarded.notes[1],
      "the guard held lpt back in 6 of 6 looks: its owners would not have shortened the simulated step by "
      "half a percent (balancer.guard)");
  EXPECT_EQ(sum_of_steps(guarded), sum_of_steps(none));
  EXPECT_GE(taken.changes.size(), 1U);
  EXPECT_EQ(steps_held(taken), 0);
  EXPECT_GE(sum_of_steps(taken), (1 - kLeastGain) * sum_of_steps(none));  // they were worth nothing indeed
}

/// The network is slow and the model small: what copies win is less than the reduce of their gradients takes.
TEST(StepBalancer, TheGuardGivesUpCopiesThatLengthenTheStepForeseen) {
  const WorkFolder folder;
  const std::string trace = folder / "run.routes";
  const TrainOutcome none =
      TinyRun(folder / "none", balanced({{"routing.record", trace}})).run(Checkpoints::kOff).outcome;
  const auto made = [&](const std::string& name, const std::string& guard) {
    return TinyRun(folder / (name + guard), balanced({{"balancer.name", name},
                                                      {"balancer.topology", "ring"},
                                                      {"balancer.knows", "foresight"},
                                                      {"routing.replay", trace},
                                                      {"balancer.guard", guard}}));
  };
  TinyRun with_guard = made("lplb", "true"), without_guard = made("lplb", "false");
  i64 owners = 0;
  for (const ExpertOwners& of_expert : with_guard.plan.groups[0].layers[0].experts)
    owners += static_cast<i64>(of_expert.size());
  EXPECT_EQ(owners, with_guard.model.num_experts + 3);  // a copy on each owner
  const TrainOutcome guarded = with_guard.run(Checkpoints::kOff).outcome,
                     taken = without_guard.run(Checkpoints::kOff).outcome;
  ASSERT_FALSE(guarded.changes.empty());
  EXPECT_EQ(guarded.changes[0].step, 1);
  EXPECT_EQ(guarded.changes[0].moves, 0);  // copies go, nothing moves
  EXPECT_EQ(guarded.notes[0].find("step 1: the guard gave up copies of experts, for steps of "), 0U)
      << guarded.notes[0];
  EXPECT_GE(steps_held(guarded), 1);
  std::printf("20 steps: none %.6f s, lplb guarded %.6f s, unguarded %.6f s (virtual clock)\n",
              sum_of_steps(none), sum_of_steps(guarded), sum_of_steps(taken));
  EXPECT_LT(sum_of_steps(guarded), (1 - kLeastGain) * sum_of_steps(taken));
  for (std::size_t s = 0; s < none.records.size(); ++s)
    EXPECT_NEAR(guarded.records[s].loss / none.records[s].loss, 1, 1e-9) << s;
  // Where nobody chooses owners those of the plan stay, whatever they cost.
  TinyRun divides = made("none+exact", "true");
  divides.plan = with_guard.plan;
  EXPECT_TRUE(divides.run(Checkpoints::kOff).outcome.changes.empty());
}

/// [devices that own experts in layer 0] how many.
std::map<DeviceId, i64> experts_of(const Plan& plan) {
  std::map<DeviceId, i64> out;
  for (const ExpertOwners& owners : plan.groups[0].layers[0].experts) ++out[owners[0].device];
  return out;
}

// Claim: a device that shows to be slow gets fewer experts, and speeds of the cluster file are not counted
// twice
TEST(StepBalancer, ADeviceThatShowsToBeSlowGetsLess) {
  const WorkFolder folder;
  // The emulated device 7 computes at a hundredth of its like's speed, which makes its small ops, mostly
  // launches, a few times as long; the balancer is told of a cluster in which it is as fast.
  TinyRun run(folder / "slow", balanced({{"train.steps", "2"}, {"balancer.name", "none"}}));
  const Cluster nominal = run.cluster;
  run.cluster.devices[7].speed = 0.01;
  std::vector<double> slowness;
  run.run(Checkpoints::kOff, [&](Session& session, const StepRecord&) {
    StepReport report;
    add_device_work(report, session.executor());
    slowness = report.slowness;
  });
  ASSERT_EQ(slowness.size(), nominal.devices.size());
  EXPECT_GT(slowness[7], 2.5 * slowness[6]);
  const ProfileSet profiles = load_profiles(nominal);
  const auto owners = [&](const Cluster& known, bool measure) {
    Job job = run.job;
    job.balancer.name = "lpt";
    job.balancer.measure = measure;
    StepBalancer balancer(job, run.model, known, run.plan, profiles);
    balancer.add(std::vector<std::vector<double>>(
        static_cast<std::size_t>(run.model.num_layers),
        std::vector<double>(static_cast<std::size_t>(run.model.num_experts), 10)));
    for (int step = 0; step < 3; ++step) balancer.add_slowness(slowness);
    const PricedPlan priced(job, run.plan, run.model, known, nominal, profiles);
    const BalancedOwners chosen = balancer.choose(priced);
    if (measure) {
      const double expected = known.devices[7].speed < 1 ? 1 : slowness[7] / slowness[6];
      EXPECT_NEAR(balancer.history().slowness[7] / expected, 1, 1e-6);
      StepBalancer resumed(job, run.model, known, run.plan, profiles);
      resumed.restore(balancer.history());
      EXPECT_EQ(to_json(resumed.choose(priced).plan.value_or(run.plan)),
                to_json(chosen.plan.value_or(run.plan)));
    }
    return experts_of(chosen.plan.value_or(run.plan));
  };
  auto alike = owners(nominal, false), noticed = owners(nominal, true), known = owners(run.cluster, true);
  EXPECT_LT(noticed[7], alike[7]);
  EXPECT_LT(noticed[7], noticed[6]);
  EXPECT_EQ(noticed[7], known[7]);
}

/// Where threads share cores nobody can tell; else it is measured, also where no stragglers are looked for.
TEST(StepBalancer, SlownessIsMeasuredOrRefused) {
  const WorkFolder folder;
  const Settings measure =
      balanced({{"balancer.name", "lpt"}, {"balancer.measure", "true"}, {"train.straggler_share", "0"}});
  std::vector<double> slowness;
  TinyRun(folder / "run", measure).run(Checkpoints::kOff, [&](Session& session, const StepRecord&) {
    StepReport report;
    add_device_work(report, session.executor());
    slowness = report.slowness;
  });
  EXPECT_GT(*std::max_element(slowness.begin(), slowness.end()), 0);
  Settings real = measure;
  real.push_back({"clock.kind", "real"});
  EXPECT_EQ(error_of<ConfigError>([&] {
              TinyRun(folder / "real", real).run(Checkpoints::kOff);
            }).find("[balancer.measure] got true, expected false with one process under the real clock"),
            0U);
}

/// Not at the first look, which may be hours later.
TEST(StepBalancer, RefusesAtTheStartWhatItCannotPlace) {
  const WorkFolder folder;
  TinyRun turns(folder / "turns", {{"strategy", "roundpipe"},
                                   {"cluster", "rtx4090x8"},
                                   {"plan.attention", "0,1"},
                                   {"balancer.name", "lpt"}});
  const std::string error = error_of<ConfigError>([&] { turns.make_balancer(); });
  EXPECT_NE(error.find("where their tokens are"), std::string::npos) << error;
  TinyRun from_file(folder / "file", balanced({{"balancer.name", "lplb"}}));
  from_file.job.balancer.topology = "[[1,1,0]]";
  EXPECT_NE(
      error_of<ConfigError>([&] { from_file.make_balancer(); }).find("expected each device from 0 to 2 once"),
      std::string::npos);
}

TEST(StepBalancer, RefusesWhatCannotBeBalanced) {
  const WorkFolder folder;
  const auto error = [&](const Settings& more) {
    return error_of<ConfigError>([&] { TinyRun(folder / "run", balanced(more)).run(Checkpoints::kOff); });
  };
  EXPECT_EQ(error({{"balancer.name", "lpt"}, {"balancer.knows", "foresight"}}),
            "[balancer.knows] got foresight, expected history where no choices are replayed. Give "
            "routing.replay or balancer.probe");
  EXPECT_NE(error({{"balancer.name", "oracle"}}).find("the bound is for traces"), std::string::npos);
  EXPECT_NE(error({{"balancer.name", "eplbb"}}).find("eplb"), std::string::npos);
  EXPECT_NE(
      error({{"balancer.name", "lpt"}, {"plan.shard_optimizer", "true"}}).find("[balancer.name] got lpt"),
      std::string::npos);
  EXPECT_NE(error({{"balancer.name", "lpt"}, {"balancer.every", "0"}}).find("balancer.every"),
            std::string::npos);
  TinyRun ordered(folder / "run", balanced({{"balancer.name", "lpt"}}));
  ordered.plan.explicit_order =
      to_text(build_schedule(ordered.plan, ordered.model, step_options(ordered.job, ordered.model)));
  ordered.plan.order = OrderPolicy::kExplicit;
  EXPECT_EQ(error_of<ConfigError>([&] { ordered.run(Checkpoints::kOff); }),
            "[balancer.name] got lpt, expected none: the plan has an explicit order, which fits one choice "
            "of owners");
}

TEST(StepBalancer, CopiesNeedRoom) {
  const WorkFolder folder;
  const auto error = [&](const Settings& balancer) {
    Settings settings = {
        {"model", "olmoe-1b-7b"},         {"cluster", "rtx4090x8"},      {"strategy", "ep"},
        {"plan.attention_dtype", "fp16"}, {"plan.expert_dtype", "fp16"}, {"train.sequences", "16"}};
    settings.insert(settings.end(), balancer.begin(), balancer.end());
    return error_of<ConfigError>([&] { TinyRun(folder / "run", settings).make_balancer(); });
  };
  // Of the first plan with lplb, between steps with eplb.
  const std::string full =
      "[replicas] got 64 copies for the 64 experts of a layer, for which there is no room: the devices that "
      "own "
      "hold 64; RTX4090#0 (24 GiB, 22.3 usable) holds 8";
  EXPECT_EQ(error({{"balancer.name", "lplb"}, {"balancer.topology", "ring"}, {"balancer.replicas", "64"}}),
            full);
  EXPECT_EQ(error({{"balancer.name", "eplb"}, {"balancer.replicas", "64"}}), full);
  // Nobody asked for a number: seven columns are seven copies a device.
  const std::string by_itself = error({{"balancer.name", "lplb"},
                                       {"balancer.topology",
                                        "[[1,2,3,4,5,6,7,0],[2,3,4,5,6,7,0,1],[3,4,5,6,7,0,1,2],"
                                        "[4,5,6,7,0,1,2,3],[5,6,7,0,1,2,3,4],[6,7,0,1,2,3,4,5],"
                                        "[7,0,1,2,3,4,5,6]]"}});
  EXPECT_TRUE(by_itself.starts_with("[balancer.name] got lplb, for which there is no room: device "))
      << by_itself;
  // Between steps, with eplb: owners stay, and the run says why.
  TinyRun run(folder / "run", balanced({{"balancer.name", "eplb"}, {"balancer.replicas", "4"}}));
  const std::vector<Bytes> now = migration_memory(run.plan, run.plan, run.model, run.cluster, {});
  const Bytes most = kReservedMemory + 1.001 * *std::max_element(now.begin(), now.end()) / kUsableMemory;
  for (DeviceType& type : run.cluster.types) type.memory_gib = most / (1024.0 * 1024 * 1024);
  const TrainOutcome out = run.run(Checkpoints::kOff).outcome;
  EXPECT_TRUE(out.changes.empty());
  ASSERT_FALSE(out.notes.empty());
  EXPECT_TRUE(out.notes[0].starts_with("step 4: owners of experts stay: while experts move, device "))
      << out.notes[0];
}

}  // namespace
}  // namespace hetermoe
