#include <gtest/gtest.h>

#include <optional>

#include "hetermoe/kernels/host_kernels.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/train/session/session.h"
#include "tests/gpus/fake_gpus.h"
#include "tests/support/case_count.h"
#include "tests/support/guest_plan.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"
#include "tests/support/with_hosts.h"

// Plans whose devices are GPUs of one process: their numbers are those of a CPU, and nothing reads what
// another stream has not written yet, or drops what another stream still reads.
namespace hetermoe::testing {
namespace {

struct Runs {
  ModelConfig model;
  Cluster cluster;
  std::vector<Plan> plans;  ///< one after another
  StepOptions step;
  std::string name = {};
  i64 steps = 2;  ///< with each plan
};

struct Trained {
  std::vector<double> losses, norms;
  TensorsByName values;
};

StepInput input_of(const Plan& plan, const ModelConfig& model, i64 step) {
  StepInput input = random_input(plan, model, static_cast<u64>(3 + step));
  input.step = step;
  input.learning_rate = 1e-2;
  input.max_grad_norm = 0.1;
  return input;
}

/// num_gpus: devices are on these in turn, and hosts on the CPU; 0 = all are on the CPU.
std::unique_ptr<Session> session_of(const Runs& runs, i32 num_gpus,
                                    const MakeStream& streams = make_gpu_stream) {
  Session::Options options{runs.step, {}, {}};
  options.executor.make_stream = streams;
  options.executor.before_op = [](const Op& op, DeviceId device) {
    name_fake_work(fmt::format("{} on device {}", to_string(op), device));
  };
  for (DeviceId d = 0; num_gpus > 0 && d < runs.cluster.num_devices(); ++d)
    options.where.push_back(fake_gpu(d % num_gpus));
  auto session = std::make_unique<Session>(runs.model, runs.cluster, runs.plans[0], options);
  session->initialize(3);
  return session;
}

Trained train(const Runs& runs, i32 num_gpus) {
  const std::unique_ptr<Session> session = session_of(runs, num_gpus);
  Trained run;
  i64 step = 0;
  for (std::size_t p = 0; p < runs.plans.size(); ++p) {
    if (p > 0) session->change_plan(runs.plans[p], {});
    for (i64 i = 0; i < runs.steps; ++i, ++step) {
      const StepResult result = session->train_step(input_of(runs.plans[p], runs.model, step));
      run.losses.push_back(result.loss);
      run.norms.push_back(result.grad_norm);
    }
  }
  run.values = session->values();
  return run;
}

/// By libtorch's kernels, of which every access is seen, and by those of our own, which hand work from
/// stream to stream as on a GPU.
void expect_no_difference(const Runs& runs, i32 num_gpus) {
  const Trained expected = train(runs, 0);
  for (const bool own_kernels : {false, true}) {
    const std::string what = fmt::format("{} on {} GPUs{}", runs.name, num_gpus, own_kernels ? ", own" : "");
    std::optional<kernels::HostKernels> on;
    if (own_kernels) on.emplace();
    clear_fake_gpus();
    const Trained got = train(runs, num_gpus);
    EXPECT_EQ(faults_of_fake_gpus(), std::vector<std::string>{}) << what;
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_LE(relative(got.losses[i], expected.losses[i]), 1e-8) << what << " step " << i;
      EXPECT_LE(relative(got.norms[i], expected.norms[i]), 1e-8) << what << " step " << i;
    }
    for (const auto& [name, value] : expected.values)
      EXPECT_TRUE(at::allclose(got.values.at(name), value, 1e-6, 1e-8)) << what << " " << name;
  }
}

struct Small {
  ModelConfig model = tiny_mixtral();
  Cluster cluster = with_hosts(make_cluster(4, 2));
  StepOptions step = {true, 1, true};

  std::vector<NamedPlan> plans() const { return strategy_plans(model, cluster, small_step()); }
  Runs runs(const Plan& plan, const std::string& name) const { return {model, cluster, {plan}, step, name}; }
  Plan plan(const char* strategy) const {
    Plan made = find_strategy(strategy).make(model, cluster, small_step());
    use_fp64(made);
    return made;
  }
};

TEST(Gpus, EveryStrategyTrainsAsOnTheCpu) {
  const Small small;
  Turns turns(2);
  for (const NamedPlan& named : small.plans()) {
    for (const i32 num_gpus : {1, 4, 3})
      if (turns.takes()) expect_no_difference(small.runs(named.plan, named.name), num_gpus);
  }
}

TEST(Gpus, RandomPlansTrainAsOnTheCpu) {
  const u64 seeds = case_count<u64>(25, 240);
  for (u64 seed = 0; seed < seeds; ++seed) {
    const RandomCase c = random_case(seed);
    expect_no_difference({c.model, c.cluster, {c.plan}, c.step, describe(c)},
                         std::min<i32>(c.cluster.num_devices(), kFakeGpus));
  }
}

TEST(Gpus, WhatLivesOnHostsIsWrittenBeforeItIsRead) {
  const Small small;
  Turns turns(5);
  for (const NamedPlan& named : small.plans()) {
    for (const std::vector<std::string>& entries :
         {std::vector<std::string>{"optimizer"}, {"weights"}, {"all"}, {"all", "saved"}}) {
      Plan plan = named.plan;
      offload(plan, small.model, small.cluster, entries, "test");
      if (!turns.takes() || !validate(plan, small.model, small.cluster).empty()) continue;
      expect_no_difference(small.runs(plan, named.name + " with " + entries.back()), 4);
    }
  }
}

/// Copies that nobody waits for, as from memory that is locked.
TEST(Gpus, HostsChangeNothingThatIsBeingCopied) {
  const Small small;
  lock_memory_for_fake_gpus(true);
  for (const char* strategy : {"ep", "zebra", "pp-ep"}) {
    for (const std::vector<std::string>& entries :
         {std::vector<std::string>{"optimizer"}, {"all", "saved"}}) {
      for (const i64 staleness : {0, 1}) {
        Plan plan = small.plan(strategy);
        offload(plan, small.model, small.cluster, entries, "test");
        Runs runs = small.runs(plan, fmt::format("{} with {}, {}", strategy, entries.back(), staleness));
        if (staleness == 1 && (entries.size() == 1 || !validate(plan, small.model, small.cluster).empty()))
          continue;
        runs.step.staleness = staleness;
        expect_no_difference(runs, 4);
      }
    }
  }
  lock_memory_for_fake_gpus(false);
}

/// Streams of GPUs with a fault: what the tests above find.
class Careless : public WorkStream {
 public:
  enum class Fault { kForgetsWaits, kDropsAtOnce };
  Careless(std::unique_ptr<WorkStream> inner, Fault fault) : inner_(std::move(inner)), fault_(fault) {}

  void launch(std::function<void()> work) override { inner_->launch(std::move(work)); }
  EventPtr record() override { return inner_->record(); }
  void wait(const EventPtr& event) override {
    if (fault_ != Fault::kForgetsWaits) inner_->wait(event);
  }
  void release(std::vector<EventPtr> after, std::function<Released()> take) override {
    inner_->release(fault_ == Fault::kDropsAtOnce ? std::vector<EventPtr>{} : std::move(after),
                    std::move(take));
  }
  void collect() override { inner_->collect(); }

 private:
  std::unique_ptr<WorkStream> inner_;
  Fault fault_;
};

TEST(Gpus, StreamsThatForgetToWaitOrDropAtOnceAreFound) {
  const Small small;
  const Runs runs = small.runs(small.plan("zebra"), "zebra");
  for (const Careless::Fault fault : {Careless::Fault::kForgetsWaits, Careless::Fault::kDropsAtOnce}) {
    clear_fake_gpus();
    const std::unique_ptr<Session> session = session_of(runs, 4, [&](c10::Device device, bool transfers) {
      std::unique_ptr<WorkStream> inner = make_gpu_stream(device, transfers);
      return inner == nullptr ? nullptr : std::make_unique<Careless>(std::move(inner), fault);
    });
    session->train_step(input_of(runs.plans[0], runs.model, 0));
    EXPECT_FALSE(faults_of_fake_gpus().empty());
  }
  clear_fake_gpus();
}

TEST(Gpus, CountsAndGuestsAreReadWhereTheyAre) {
  const Small small;
  Turns turns(2);
  for (const NamedPlan& named : small.plans()) {
    for (const bool guests : {false, true}) {
      Plan plan = named.plan;
      const bool may = guests ? use_guests(plan, small.model) : use_tally(plan, small.model);
      if (!may || !validate(plan, small.model, small.cluster).empty() || !turns.takes()) continue;
      expect_no_difference(small.runs(plan, named.name + (guests ? " with guests" : " with tally")), 4);
    }
  }
}

TEST(Gpus, DividedOptimizersTrainAsOnTheCpu) {
  const Small small;
  for (const char* strategy : {"ep", "dist-ep", "zebra"}) {
    Plan plan = small.plan(strategy);
    plan.shard_optimizer = true;
    expect_no_difference(small.runs(plan, std::string(strategy) + " divided"), 4);
  }
}

TEST(Gpus, RoundRobinMovesChoicesBetweenGpus) {
  Cluster cluster = make_cluster(4, 1, 1);
  cluster.nodes[0].host = NodeHost{.memory_gib = 64};
  StrategyRequest request = small_step();
  request.sequences = 7, request.microbatches = 5;
  const ModelConfig model = load_model("tiny");
  Plan plan = find_strategy("roundpipe").make(model, cluster, request);
  use_fp64(plan);
  for (const std::string entry : {"none", "all", "saved"}) {
    for (const i64 staleness : {0, 1}) {
      if (staleness == 1 && entry != "all") continue;
      offload(plan, model, cluster, {entry}, "test");
      StepOptions step = {true, 1, true};
      step.staleness = staleness;
      expect_no_difference(
          {model, cluster, {plan}, step, fmt::format("{} staleness {}", entry, staleness), 3}, 4);
    }
  }
}

TEST(Gpus, ChangesOfPlanWaitForWhatTheyCopyAndDrop) {
  const Small small;
  const Plan zebra = small.plan("zebra"), ep = small.plan("ep"), alone = small.plan("single");
  for (const i32 num_gpus : {1, 4}) {
    Runs runs = small.runs(zebra, "zebra, ep, single, zebra");
    runs.plans = {zebra, ep, alone, zebra};
    expect_no_difference(runs, num_gpus);
  }
}

/// Of a step, by kind of op.
std::map<std::string, i64> waits_of_a_step(const Runs& runs) {
  const kernels::HostKernels own;
  const std::unique_ptr<Session> session = session_of(runs, 4);
  session->train_step(input_of(runs.plans[0], runs.model, 0));
  clear_fake_gpus();
  session->train_step(input_of(runs.plans[0], runs.model, 1));
  std::map<std::string, i64> by_kind;
  for (const auto& [name, count] : waits_for_fake_gpus()) by_kind[name.substr(0, name.find('.'))] += count;
  return by_kind;
}

TEST(Gpus, TheHostWaitsForSizesAndForNumbersOfTheStepAlone) {
  const Small small;
  for (const char* strategy : {"zebra", "ep", "ep-overlap", "dist-ep"}) {
    for (const bool tally : {false, true}) {
      Plan plan = small.plan(strategy);
      ASSERT_TRUE(!tally || use_tally(plan, small.model));
      std::map<std::string, i64> waits = waits_of_a_step(small.runs(plan, strategy));
      EXPECT_GT(waits["synchronize of dispatch"], 0) << strategy;
      waits.erase("synchronize of dispatch");
      const auto num_devices = static_cast<i64>(devices_of(plan).size());
      std::map<std::string, i64> expected = {};
      for (const auto& [name, count] : waits) {
        if (name.starts_with("synchronize of norm")) {
          EXPECT_EQ(count, 1) << name;
          expected[name] = count;
        }
      }
      EXPECT_EQ(static_cast<i64>(expected.size()), num_devices) << strategy;
      // A source hands over its choices, and all read the counts of all sources at once.
      const auto sources = static_cast<i64>(plan.groups[0].layers[0].attention[0].size());
      const auto exchanges =
          static_cast<i64>(plan.groups[0].microbatches.size()) * small.model.num_moe_layers();
      if (tally) expected["synchronize of tally"] = 2 * sources * exchanges;
      EXPECT_EQ(waits, expected) << strategy << (tally ? " with tally" : "");
    }
  }
}

}  // namespace
}  // namespace hetermoe::testing
