#include <gtest/gtest.h>

#include "hetermoe/plan/offload.h"
#include "hetermoe/train/session/session.h"
#include "tests/gpus/fake_gpus.h"
#include "tests/support/case_count.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"
#include "tests/support/tally_plan.h"
#include "tests/support/with_hosts.h"

// Plans whose devices are GPUs of one process: their numbers are those of a CPU, and nothing reads what
// another stream has not written yet, or drops what another stream still reads.
namespace hetermoe::testing {
namespace {

constexpr i64 kSteps = 3;

/// Devices on GPUs in turn; hosts stay on the CPU.
std::vector<c10::Device> gpus_of(const Cluster& cluster, i32 num_gpus) {
  std::vector<c10::Device> where;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) where.push_back(fake_gpu(d % num_gpus));
  return where;
}

struct Trained {
  std::vector<double> losses, norms;
  TensorsByName values;
};

Session::Options options_of(const ModelConfig& model, i64 staleness) {
  Session::Options options{{model.aux_loss_coef > 0 && model.num_moe_layers() > 0, 1, true}, {}, {}};
  options.step.staleness = staleness;
  options.executor.before_op = [](const Op& op, DeviceId device) {
    name_fake_work(fmt::format("{} on device {}", to_string(op), device));
  };
  return options;
}

/// One plan after another, kSteps with each.
Trained train(const ModelConfig& model, const Cluster& cluster, const std::vector<Plan>& plans,
              const Session::Options& options) {
  Session session(model, cluster, plans[0], options);
  session.initialize(3);
  Trained run;
  i64 step = 0;
  for (std::size_t p = 0; p < plans.size(); ++p) {
    if (p > 0) session.change_plan(plans[p], options.executor);
    for (i64 i = 0; i < kSteps; ++i, ++step) {
      StepInput input = random_input(plans[p], model, static_cast<u64>(3 + step));
      input.step = step;
      input.learning_rate = 1e-2;
      input.max_grad_norm = 0.1;
      const StepResult result = session.train_step(input);
      run.losses.push_back(result.loss);
      run.norms.push_back(result.grad_norm);
    }
  }
  run.values = session.values();
  return run;
}

/// Trains on the CPU, and on GPUs of one process.
void expect_no_difference(const ModelConfig& model, const Cluster& cluster, const std::vector<Plan>& plans,
                          i32 num_gpus, const std::string& what, i64 staleness = 0) {
  Session::Options options = options_of(model, staleness);
  const Trained expected = train(model, cluster, plans, options);
  options.where = gpus_of(cluster, num_gpus);
  clear_fake_gpus();
  const Trained got = train(model, cluster, plans, options);
  EXPECT_EQ(faults_of_fake_gpus(), std::vector<std::string>{}) << what;
  if (std::getenv("WAITS")) for (auto& [op, n] : waits_for_fake_gpus()) fmt::print("{}: {} {}\n", what, op, n);
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_LE(relative(got.losses[i], expected.losses[i]), 1e-9) << what << " step " << i;
    EXPECT_LE(relative(got.norms[i], expected.norms[i]), 1e-9) << what << " step " << i;
  }
  for (const auto& [name, value] : expected.values)
    EXPECT_TRUE(at::allclose(got.values.at(name), value, 1e-7, 1e-9)) << what << " " << name;
}

TEST(Gpus, EveryStrategyTrainsAsOnTheCpu) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = make_cluster(4, 2);
  for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    for (const i32 num_gpus : {1, 4})
      expect_no_difference(model, cluster, {named.plan}, num_gpus,
                           fmt::format("{} on {}", named.name, num_gpus));
  }
}

TEST(Gpus, WhatLivesOnHostsIsWrittenBeforeItIsRead) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = with_hosts(make_cluster(4, 2));
  Turns turns(4);
  for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    for (const std::vector<std::string>& entries :
         {std::vector<std::string>{"optimizer"}, {"weights"}, {"all"}, {"all", "saved"}}) {
      if (!turns.takes()) continue;
      Plan plan = named.plan;
      offload(plan, model, cluster, entries, "test");
      if (!validate(plan, model, cluster).empty()) continue;
      expect_no_difference(model, cluster, {plan}, 4, named.name + " with " + entries.back());
    }
  }
}

TEST(Gpus, CountsThatDivideCopiesAreReadWhereTheyAre) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = make_cluster(4, 2);
  for (NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    if (!use_tally(named.plan, model) || !validate(named.plan, model, cluster).empty()) continue;
    expect_no_difference(model, cluster, {named.plan}, 4, named.name + " with tally");
  }
}

TEST(Gpus, RoundRobinMovesChoicesBetweenGpus) {
  const ModelConfig model = load_model("tiny");
  Cluster cluster = make_cluster(4, 1, 1);
  cluster.nodes[0].host = NodeHost{.memory_gib = 64};
  StrategyRequest request = small_step();
  request.sequences = 7;
  request.microbatches = 5;
  Plan plan = find_strategy("roundpipe").make(model, cluster, request);
  use_fp64(plan);
  for (const std::string entry : {"none", "all", "saved"}) {
    for (const i64 staleness : {0, 1}) {
      if (staleness == 1 && entry != "all") continue;
      offload(plan, model, cluster, {entry}, "test");
      expect_no_difference(model, cluster, {plan}, 4, fmt::format("{} staleness {}", entry, staleness),
                           staleness);
    }
  }
}

TEST(Gpus, ChangesOfPlanWaitForWhatTheyCopyAndDrop) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = make_cluster(4, 2);
  const auto plan = [&](const char* strategy) {
    Plan made = find_strategy(strategy).make(model, cluster, small_step());
    use_fp64(made);
    return made;
  };
  const Plan zebra = plan("zebra"), ep = plan("ep"), alone = plan("single");
  for (const i32 num_gpus : {1, 4})
    expect_no_difference(model, cluster, {zebra, ep, alone, zebra}, num_gpus,
                         fmt::format("on {}", num_gpus));
}

}  // namespace
}  // namespace hetermoe::testing
