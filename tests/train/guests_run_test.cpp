#include <gtest/gtest.h>

#include <cmath>

#include "hetermoe/train/run/verify.h"
#include "tests/support/case_count.h"
#include "tests/support/error_of.h"
#include "tests/train/tiny_run.h"

// Runs in which owners lend each other experts: the losses are those of runs that know nothing of it.
namespace hetermoe {
namespace {

/// Guests however little they save, and moves that always pay.
Settings lending(Settings more) {
  more.insert(more.begin(), {{"plan.attention_dtype", "fp64"},
                             {"plan.expert_dtype", "fp64"},
                             {"plan.wire_dtype", "fp64"},
                             {"clock.kind", "virtual"},
                             {"strategy", "ep"},
                             {"train.steps", "20"},
                             {"train.learning_rate", "0.02"},
                             {"balancer.guest_cost", "0"},
                             {"balancer.every", "3"},
                             {"balancer.history", "2"},
                             {"balancer.guard", "false"},
                             {"checkpoint.every", "0"}});
  return more;
}

struct Counted {
  TinyRun::End end;
  i64 guests = 0;
};

Counted counted_run(TinyRun& run, Checkpoints checkpoints = Checkpoints::kOff, i64 stop_at = -1) {
  Counted out;
  out.end = run.run(checkpoints, [&](Session& session, const StepRecord& record) {
    const RecordedRouting routing = session.executor().recorded_routing();
    const Placement placement(session.plan(), session.model(), {});
    for (const Op& op : session.schedule().ops) {
      if (op.kind != OpKind::kLend || op.phase != Phase::kForward) continue;
      out.guests +=
          static_cast<i64>(routing.exchange(placement, op.group, op.layer, op.microbatch, 0).guests.size());
    }
    if (record.step == stop_at) stop_requested = true;
  });
  stop_requested = false;
  return out;
}

// Claim (GuestsRun.*, Mpi.GuestsOfOtherProcesses*): runs with guests and changes of owners, by history, by
// replayed choices and by a probe, have the losses of runs without, repeat and resume to the bit; over MPI
// they are those of one process
TEST(GuestsRun, LossesAreThoseWithoutWhileOwnersChange) {
  const WorkFolder folder;
  const std::string trace = folder / "run.routes";
  const std::string steps = testing::case_count("25", "50");
  for (const std::string strategy : {"ep", "zebra"}) {
    if (!testing::every_case() && strategy == "zebra") continue;
    TinyRun none(folder / "none",
                 lending({{"strategy", strategy}, {"train.steps", steps}, {"routing.record", trace}}));
    const TrainOutcome expected = none.run(Checkpoints::kOff).outcome;
    for (const Settings& balancer :
         {Settings{{"balancer.name", "relibra"}, {"balancer.history", "1"}, {"balancer.every", "1"}},
          Settings{{"balancer.name", "relibra"},
                   {"balancer.every", "1"},
                   {"balancer.knows", "foresight"},
                   {"routing.replay", trace}},
          Settings{{"balancer.name", "relibra"},
                   {"balancer.every", "1"},
                   {"balancer.knows", "foresight"},
                   {"balancer.probe", "true"}},
          Settings{{"balancer.name", "none+guests"}, {"plan.chunks", "3"}}}) {
      Settings settings = lending({{"strategy", strategy}, {"train.steps", steps}});
      settings.insert(settings.end(), balancer.begin(), balancer.end());
      TinyRun run(folder / "run", settings);
      EXPECT_EQ(run.plan.tally, run.job.balancer.knows == Knows::kHistory);
      const Counted got = counted_run(run);
      const std::string name = fmt::format("{} {} {}", strategy, balancer[0].second, balancer.back().second);
      std::printf("%s: %ld guests, %ld changes of owners\n", name.c_str(), static_cast<long>(got.guests),
                  static_cast<long>(got.end.outcome.changes.size()));
      EXPECT_GT(got.guests, testing::case_count(25, 50)) << name;
      EXPECT_GE(got.end.outcome.changes.size(), balancer[0].second == "relibra" ? 3U : 0U) << name;
      for (std::size_t s = 0; s < expected.records.size(); ++s)
        EXPECT_NEAR(got.end.outcome.records[s].loss / expected.records[s].loss, 1, 1e-9) << name << " " << s;
      TinyRun again(folder / "again", settings);
      const Counted repeated = counted_run(again);
      expect_equal(repeated.end.values, got.end.values);
      EXPECT_EQ(repeated.guests, got.guests);
    }
  }
}

TEST(GuestsRun, AResumedRunIsEqualToTheBit) {
  const WorkFolder folder;
  const std::string trace = folder / "run.routes";
  TinyRun(folder / "first", lending({{"routing.record", trace}})).run(Checkpoints::kOff);
  testing::Turns turns(4);
  for (const Settings& knows : {Settings{{"balancer.knows", "history"}},
                                Settings{{"balancer.knows", "foresight"}, {"routing.replay", trace}},
                                Settings{{"balancer.probe", "true"}, {"balancer.knows", "foresight"}}}) {
    Settings settings = lending({{"balancer.name", "relibra"}, {"checkpoint.every", "1"}});
    settings.insert(settings.end(), knows.begin(), knows.end());
    const std::string at = folder / knows[0].second;
    TinyRun whole(at + "-whole", settings);
    const Counted expected = counted_run(whole, Checkpoints::kOn);
    ASSERT_GE(expected.end.outcome.changes.size(), 1U);
    EXPECT_GT(expected.guests, 20);
    for (const i64 stop_at : {4, 8, 13}) {
      if (!turns.takes()) continue;
      const std::string name = at + std::to_string(stop_at);
      TinyRun cut(name, settings);
      counted_run(cut, Checkpoints::kOn, stop_at);
      TinyRun rest(name, settings);
      const Counted got = counted_run(rest, Checkpoints::kOn);
      EXPECT_EQ(got.end.outcome.first_step, stop_at + 1);
      expect_equal(got.end.values, expected.end.values);
    }
  }
}

TEST(GuestsRun, VerifyAgreesWithTheReference) {
  const WorkFolder folder;
  const std::string trace = folder / "run.routes";
  TinyRun(folder / "first", lending({{"routing.record", trace}})).run(Checkpoints::kOff);
  for (const Settings& knows : {Settings{{"balancer.knows", "history"}},
                                Settings{{"balancer.knows", "foresight"}, {"routing.replay", trace}}}) {
    Settings settings = lending({{"balancer.name", "relibra"}});
    settings.insert(settings.end(), knows.begin(), knows.end());
    TinyRun run(folder / "run", settings);
    const Sampler sampler(counting_data(), {run.job.train.seq_len, run.job.train.seed});
    const VerifyResult result = verify_plan(run.job, run.model, run.cluster, run.plan,
                                            sampler.batch(0, run.job.train.sequences, run.model.vocab));
    EXPECT_TRUE(result.passed()) << knows[0].second;
  }
}

TEST(GuestsRun, RefusesWhatCannotLend) {
  const WorkFolder folder;
  const auto error = [&](const Settings& more) {
    Settings settings = lending({{"balancer.name", "relibra"}});
    settings.insert(settings.end(), more.begin(), more.end());
    return error_of<ConfigError>([&] { TinyRun(folder / "run", settings).run(Checkpoints::kOff); });
  };
  EXPECT_EQ(error({{"balancer.knows", "foresight"}}),
            "[balancer.knows] got foresight, expected history where no choices are replayed. Give "
            "routing.replay or balancer.probe");
  EXPECT_NE(
      error({{"plan.recompute", "resend"}}).find("is resend, which no plan with guests may have. Use local"),
      std::string::npos);
  EXPECT_NE(error({{"train.lora.rank", "2"}}).find("[train.lora] cannot go with guests"), std::string::npos);
  const auto plan_error = [&](const std::string& guests) {
    return error_of<ConfigError>([&] {
      TinyRun(folder / "run", lending({{"model", "demo"},
                                       {"balancer.name", "relibra"},
                                       {"balancer.guest_depth", "8"},
                                       {"balancer.guests", guests}}));
    });
  };
  const std::string full = plan_error("4096");
  EXPECT_TRUE(full.starts_with("[balancer.guests] got 4096, for which there is no room: device ")) << full;
  EXPECT_NE(full.find(" GiB. Without guests the plan fits"), std::string::npos) << full;
  EXPECT_EQ(plan_error("2"), "no error");
  EXPECT_NE(error({{"balancer.probe", "true"}})
                .find("[balancer.probe] got true, expected false where owners are chosen by history"),
            std::string::npos);
  EXPECT_NE(error({{"balancer.name", "oracle"}}).find("the bound is for traces"), std::string::npos);
}

}  // namespace
}  // namespace hetermoe
