#include "hetermoe/train/session/changes.h"

#include <gtest/gtest.h>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/sim/migration_memory.h"
#include "hetermoe/train/session/ranks.h"
#include "hetermoe/train/session/session.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

/// A job of 6 steps with zebra on the four devices of `demo`, and a folder for the plans it changes to.
struct ChangesCase {
  WorkFolder folder;
  ModelConfig model = load_model("tiny");
  Cluster cluster = load_cluster("demo");
  Job job = job_from_overrides({{"model", "tiny"},
                                {"cluster", "demo"},
                                {"train.steps", "6"},
                                {"train.seq_len", "8"},
                                {"train.sequences", "4"},
                                {"train.microbatches", "2"}});
  Plan first = make_job_plan(job, model, cluster);

  Plan plan(const std::string& strategy) const {
    Job other = job;
    other.strategy = strategy;
    return make_job_plan(other, model, cluster);
  }
  std::string file(const Plan& plan, const std::string& name = "other.json") const {
    return folder.file(name, to_json(plan).dump());
  }
  std::vector<PlannedChange> load(std::vector<PlanChange> changes) {
    job.train.changes = std::move(changes);
    return load_changes(job, first, model, cluster);
  }
  /// The error without the folder's name.
  std::string error(std::vector<PlanChange> changes) {
    std::string text = error_of<ConfigError>([&] { load(std::move(changes)); });
    const std::string path = folder.path().string() + "/";
    for (std::size_t at = 0; (at = text.find(path)) != std::string::npos;) text.erase(at, path.size());
    return text;
  }
};

TEST(PlanChanges, AreReadFromAJobFileAndFromFlags) {
  const WorkFolder folder;
  const std::string file =
      folder.file("job.yaml", "train: {changes: [{step: 50, plan: a.json}, {step: 60, plan: b.json}]}\n");
  const Job job = load_job(file, {});
  ASSERT_EQ(job.train.changes.size(), 2U);
  EXPECT_EQ(job.train.changes[1].step, 60);
  EXPECT_EQ(job.train.changes[1].plan, "b.json");
  const Job flags = job_from_overrides({{"train.changes", "[{step: 2, plan: c.json}]"}});
  EXPECT_EQ(flags.train.changes.at(0).plan, "c.json");
  EXPECT_EQ(write_fields(load_job(folder.file("again.yaml", write_fields(job).dump()), {})),
            write_fields(job));
}

TEST(PlanChanges, WithoutAStepOrAPlanAreErrors) {
  const WorkFolder folder;
  for (const auto& [text, missing] : {std::pair{"{plan: a.json}", "step"}, {"{step: 50}", "plan"}}) {
    const std::string path = folder.file("job.yaml", fmt::format("train: {{changes: [{}]}}\n", text));
    const std::string error = error_of<ConfigError>([&] { load_job(path, {}); });
    EXPECT_NE(error.find("train.changes[0]"), std::string::npos) << error;
    EXPECT_NE(error.find(fmt::format("has no key \"{}\"", missing)), std::string::npos) << error;
  }
}

TEST(PlanChanges, UnknownKeysAndStepsBelowTwoAreRefusedWithTheirPlace) {
  const auto error = [](const std::string& changes) {
    return error_of<ConfigError>([&] { job_from_overrides({{"train.changes", changes}}); });
  };
  EXPECT_EQ(error("[{step: 1, plan: c.json}]"),
            "[--train.changes[0].step] out of range: got 1, expected >= 2");
  EXPECT_EQ(error("[{step: 2, plan: c.json}, {step: 3, plan: d.json, stop: 3}]").substr(0, 40),
            "[--train.changes[1]] unknown key \"stop\".");
}

TEST(PlanChanges, ComeInTheOrderOfTheirSteps) {
  ChangesCase c;
  const std::string ep = c.file(c.plan("ep"), "ep.json"), zebra = c.file(c.first, "zebra.json");
  const std::vector<PlannedChange> changes = c.load({{5, zebra}, {3, ep}});
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].step, 3);
  EXPECT_EQ(changes[0].name, "ep.json");
  EXPECT_EQ(changes[0].plan.strategy, "ep");
  EXPECT_EQ(changes[1].name, "zebra.json");
}

TEST(PlanChanges, AStepTwiceIsRefused) {
  ChangesCase c;
  const std::string ep = c.file(c.plan("ep"));
  EXPECT_EQ(c.error({{3, ep}, {4, ep}, {3, ep}}),
            "[train.changes[2].step] step 3 is there twice: one plan can take over at a step");
}

TEST(PlanChanges, AStepOutsideOfTheRunIsRefused) {
  ChangesCase c;
  const std::string ep = c.file(c.plan("ep"));
  EXPECT_EQ(c.load({{2, ep}, {6, ep}}).size(), 2U);
  const std::string hint =
      ", expected 2 to 6, the last step (train.steps). The plan of the first step is "
      "plan.file";
  EXPECT_EQ(c.error({{7, ep}}), "[train.changes[0].step] got 7" + hint);
  EXPECT_EQ(c.error({{0, ep}}), "[train.changes[0].step] got 0" + hint);  // not given
}

TEST(PlanChanges, AChangeWithoutAPlanIsRefused) {
  ChangesCase c;
  EXPECT_EQ(c.error({{3, ""}}), "[train.changes[0].plan] is missing, expected a plan.json");
}

TEST(PlanChanges, APlanThatDoesNotFitIsRefusedInOneSentence) {
  ChangesCase c;
  Plan plan = c.plan("ep");
  plan.groups[0].layers.pop_back();
  plan.chunks = 1;
  EXPECT_EQ(c.error({{3, c.file(plan)}}),
            "[train.changes[0].plan other.json] the plan does not fit model tiny on cluster demo: "
            "[groups[0].layers] has 1 entries, but model tiny has 2 layers");
}

TEST(PlanChanges, APlanWhoseOrderCannotBeScheduledIsRefused) {
  ChangesCase c;
  Plan plan = c.plan("ep");
  plan.order = OrderPolicy::kExplicit;
  plan.explicit_order = "device 0 compute: 0 embed.F m0";
  EXPECT_EQ(c.error({{3, c.file(plan)}}).substr(0, 87),
            "[train.changes[0].plan other.json] [explicit_order] does not hold the ops of this plan ");
}

TEST(PlanChanges, DevicesThatTheClusterLacksAreRefused) {
  ChangesCase c;
  Plan plan = c.plan("ep");
  plan.groups[0].devices.push_back(4);
  EXPECT_EQ(c.error({{3, c.file(plan)}}),
            "[train.changes[0].plan other.json] the plan does not fit model tiny on cluster demo: "
            "[groups[0].devices] device 4 does not exist: cluster demo has 4 devices");
}

TEST(PlanChanges, TheShapeOfAStepMustStay) {
  ChangesCase c;
  Plan plan = c.plan("ep");
  plan.seq_len = 16;
  EXPECT_EQ(c.error({{3, c.file(plan)}}),
            "[train.changes[0].plan other.json] the plan does not fit model tiny on cluster demo: "
            "[seq_len] got 16, but train.seq_len is 8");
  Job more = c.job;
  more.train.sequences = 8;
  EXPECT_EQ(c.error({{3, c.file(make_job_plan(more, c.model, c.cluster))}}),
            "[train.changes[0].plan other.json] the plan does not fit model tiny on cluster demo: "
            "[groups] microbatches add up to 8 sequences, but train.sequences is 4");
}

TEST(PlanChanges, ADeviceKeepsItsDtypesThroughAllPlansOfARun) {
  ChangesCase c;
  Plan half = c.plan("ep");
  half.dtype.assign(half.dtype.size(), Dtype::kBf16);
  EXPECT_EQ(
      c.error({{3, c.file(half)}}),
      "[train.changes, step 3] other.json: [dtype] of device 0 is bf16, but fp32 before: a device keeps "
      "its dtypes in a run");
  // Neither does it get another after a plan without it.
  const std::string single = c.file(c.plan("single"), "single.json");
  const std::string error = c.error({{3, single}, {4, c.file(half, "half.json")}});
  EXPECT_EQ(error.substr(0, 46), "[train.changes, step 4] half.json: [dtype] of ");
  Plan sums = half;
  sums.grad_dtype = Dtype::kBf16;
  EXPECT_EQ(hindrance(half, sums, c.model).value_or("none"),
            "[grad_dtype] of device 0 is bf16, but fp32 before: a device keeps its dtypes in a run");
}

/// Parts of moments would have to move.
TEST(PlanChanges, WhatIsDividedStaysWhereItIs) {
  ChangesCase c;
  Plan sharded = c.plan("ep");
  sharded.shard_optimizer = true;
  EXPECT_EQ(
      c.error({{3, c.file(sharded)}}),
      "[train.changes, step 3] other.json: [shard_optimizer] parts of the embedding are on other devices "
      "or hosts than before: what is divided or on hosts cannot move between steps yet. End the run and "
      "begin it again from its checkpoint with the other plan");
  Session session(c.model, c.cluster, sharded, {});
  EXPECT_NE(error_of<ConfigError>([&] { session.change_plan(c.plan("ep"), {}); }).find("[shard_optimizer]"),
            std::string::npos);
  c.first = sharded;
  std::swap(sharded.groups[0].layers[1].experts.front(), sharded.groups[0].layers[1].experts.back());
  EXPECT_EQ(c.error({{3, c.file(sharded)}}), "no error") << "an expert with one owner is not divided";
}

TEST(PlanChanges, UpdatesThatLagAreUnderWayBetweenSteps) {
  ChangesCase c;
  c.job.train.staleness = 1;
  EXPECT_EQ(c.error({{3, c.file(c.first)}}),
            "[train.changes] got 1 change, expected none with train.staleness 1: its updates are under way "
            "between steps");
}

TEST(PlanChanges, AllPlansOfARunUseTheSameHosts) {
  ChangesCase c;
  c.cluster = load_cluster("demo-hosts");
  c.job.cluster = "demo-hosts";
  c.first = c.plan("ep");
  Plan offloaded = c.first;
  offload(offloaded, c.model, c.cluster, {"attention.optimizer"}, "plan.offload");
  const std::string file = c.file(offloaded);
  EXPECT_EQ(
      c.error({{3, file}}),
      "[train.changes, step 3] other.json: [hosts] one of the plans before and after uses hosts and one "
      "does not, or other ones: all plans of a run use the same");
  c.first = offloaded;
  EXPECT_EQ(c.error({{3, file}}), "no error");
  offload(offloaded, c.model, c.cluster, {"head.optimizer"}, "plan.offload");
  EXPECT_EQ(c.error({{3, c.file(offloaded)}}).substr(0, 73),
            "[train.changes, step 3] other.json: [hosts] parts of the head are on othe");
}

TEST(PlanChanges, DevicesInFp64AndOthersDoNotMix) {
  ChangesCase c;
  c.first = c.plan("single");
  Plan other = c.plan("single");
  const DeviceId used = devices_of(other)[0];
  for (std::size_t d = 0; d < other.dtype.size(); ++d) {
    if (static_cast<DeviceId>(d) != used) other.dtype[d] = Dtype::kFp64;
  }
  EXPECT_EQ(c.error({{3, c.file(other)}}), "no error") << "devices that no plan uses have no say";
  EXPECT_FALSE(hindrance(c.first, other, c.model));
  Plan wide = c.plan("ep");
  wide.dtype = other.dtype;
  EXPECT_EQ(
      *hindrance(c.first, wide, c.model),
      "[dtype] some devices of the two plans compute in fp64 and some do not: moments would lose digits");
}

TEST(PlanChanges, ThatNeedMoreMemoryOnTheWayThanADeviceHasAreRefusedByItsName) {
  ChangesCase c;
  // Room for each plan and not for both storages of a layer beside each other.
  const std::vector<Bytes> way = migration_memory(c.first, c.plan("ep"), c.model, c.cluster);
  const std::string ep = c.file(c.plan("ep"));
  for (DeviceType& type : c.cluster.types) type.memory_gib = 1000;
  EXPECT_EQ(c.load({{3, ep}}).size(), 1U);
  const DeviceId device = 3;
  DeviceType& type = c.cluster.types[static_cast<std::size_t>(c.cluster.devices[device].type)];
  type.memory_gib = (0.98 * way[device] / kUsableMemory + kReservedMemory) / (1024.0 * 1024 * 1024);
  const std::string error = c.error({{3, ep}});
  EXPECT_EQ(error.substr(0, 62), "[train.changes, step 3] other.json: while layers move, device ");
  EXPECT_NE(error.find("#"), std::string::npos) << error;
}

TEST(RanksOfDevices, AreTheSameUnderAllPlansOfARun) {
  const ChangesCase c;
  const Plan single = c.plan("single"), ep = c.plan("ep");
  const std::vector<const Plan*> both = {&single, &ep}, one = {&ep};
  EXPECT_EQ(ranks_of_devices(both, c.cluster, 1), (std::vector<i32>{0, 0, 0, 0}));
  EXPECT_EQ(ranks_of_devices(one, c.cluster, 2), (std::vector<i32>{0, 0, 1, 1}));
}

TEST(RanksOfDevices, MoreProcessesThanDevicesOfSomePlanAreRefused) {
  const ChangesCase c;
  const Plan single = c.plan("single"), ep = c.plan("ep");
  const std::vector<const Plan*> one = {&ep}, both = {&ep, &single};
  EXPECT_EQ(error_of<ConfigError>([&] { ranks_of_devices(one, c.cluster, 5); }),
            "[mpi] 5 processes for 4 devices: every process needs a device. Start with -np 4");
  EXPECT_EQ(
      error_of<ConfigError>([&] { ranks_of_devices(both, c.cluster, 2); }),
      "[train.changes] plan 2 of 2 gives only 1 of 2 processes a device, expected all: a device stays with "
      "its process through all plans. Start fewer processes");
}

}  // namespace
}  // namespace hetermoe
