#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "hetermoe/base/index.h"
#include "hetermoe/comm/nccl.h"
#include "hetermoe/comm/transports.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/train/session/session.h"
#include "hetermoe/train/session/start.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/fast_nodes.h"
#include "tests/support/faults.h"
#include "tests/support/strategy_plans.h"

// Whole plans over an NCCL of threads: the numbers of one process, and one order of launches.
namespace hetermoe::testing {
namespace {

struct Outcome {
  double loss = 0, grad_norm = 0;
  TensorsByName gradients;
};

Outcome run(Session& session) {
  session.initialize(1);
  StepInput input = random_input(session.plan(), session.model());
  input.learning_rate = 1e-3;
  Outcome out;
  for (i64 step = 0; step < 2; ++step) {
    input.step = step;
    const StepResult result = session.train_step(input);
    out.loss = result.loss, out.grad_norm = result.grad_norm;
  }
  out.gradients = session.gradients();
  return out;
}

/// Launches of two ranks that carry something between them, as the first sees them.
std::vector<std::vector<i64>> shared(const std::vector<NcclLaunch>& launches, i32 peer, bool mirrored) {
  std::vector<std::vector<i64>> all;
  for (const NcclLaunch& launch : launches) {
    std::vector<i64> sent, received;
    for (const NcclCall& call : launch.calls) {
      if (call.peer == peer) (call.sends != mirrored ? sent : received).push_back(call.bytes);
    }
    if (sent.empty() && received.empty()) continue;
    std::vector<i64> one = {launch.communicator, -1};
    one.insert(one.end(), sent.begin(), sent.end());
    one.push_back(-1);
    one.insert(one.end(), received.begin(), received.end());
    all.push_back(std::move(one));
  }
  return all;
}

void expect_one_order(const NcclWorld& world, const std::string& what) {
  const auto num_ranks = static_cast<i32>(world.launches.size());
  for (i32 a = 0; a < num_ranks; ++a) {
    for (i32 b = a + 1; b < num_ranks; ++b) {
      EXPECT_EQ(shared(world.launches[idx(a)], b, false), shared(world.launches[idx(b)], a, true))
          << what << ", ranks " << a << " and " << b;
    }
  }
}

/// No sizes travel but those of dispatch, which are an exchange of their own.
void expect_one_launch_for_each_exchange(const NcclWorld& world, const Session& session,
                                         const Cluster& cluster, i64 num_steps, const std::string& what) {
  i64 expected = 0, got = 0;
  const Schedule& schedule = session.schedule();
  for (std::size_t i = 0; i < schedule.ops.size(); ++i) {
    const Op& op = schedule.ops[i];
    if (is_compute(op.kind)) continue;
    std::vector<DeviceId> participants;
    for (const LaneId lane : schedule.lanes_of(static_cast<OpId>(i))) participants.push_back(device_of(lane));
    for (const TransferOp* each = &transfer_op_of(op, session.placement(), cluster); each;
         each = each->next) {
      for (const DeviceId device : participants)
        expected += peers_of(*each, cluster, participants, device).size() > 1 ? num_steps : 0;
    }
  }
  for (const std::vector<NcclLaunch>& launches : world.launches)
    got += std::count_if(launches.begin(), launches.end(),
                         [](const NcclLaunch& launch) { return !launch.calls.empty(); });
  EXPECT_EQ(got, expected) << what;
}

std::vector<NamedPlan> plans(const ModelConfig& model, const Cluster& cluster) {
  const StrategyRequest request = small_step();
  std::vector<NamedPlan> all = strategy_plans(model, cluster, request);
  std::erase_if(all, [&](const NamedPlan& named) {
    return static_cast<i32>(devices_of(named.plan).size()) < cluster.num_devices();
  });
  return all;
}

/// All ranks of a plan; what rank 0 computes must equal one process, and all launch in one order.
void run_plan(const ModelConfig& model, const Cluster& cluster, const NamedPlan& named,
              const CostModel* launch_by) {
  Session alone(model, cluster, named.plan, {{true, 1, true}, {}, {}});
  const Outcome expected = run(alone);
  const std::vector<DeviceId> working = devices_of(named.plan);
  const auto num_ranks = static_cast<i32>(working.size());
  const std::vector<i32> rank_of = spread_working_devices(working, cluster.num_devices(), num_ranks);
  NcclWorld world(num_ranks);
  std::vector<Outcome> got(world.launches.size());
  std::vector<std::thread> threads;
  for (i32 rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const RankThread processes(world, rank);
      Session::Options options{{true, 1, true}, {}, {working[idx(rank)]}};
      options.launch_by = launch_by;
      Session session(model, cluster, named.plan, options, [&](const Schedule& schedule) {
        return make_nccl_transport(
            processes, std::make_unique<FakeNccl>(world, rank),
            {.rank_of = rank_of, .queues = transfer_queues(schedule), .device = c10::DeviceType::CPU});
      });
      got[idx(rank)] = run(session);
      processes.gather("done");
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_one_order(world, named.name);
  expect_one_launch_for_each_exchange(world, alone, cluster, 2, named.name);
  for (const Outcome& outcome : got) {
    EXPECT_EQ(outcome.loss, expected.loss) << named.name;
    EXPECT_EQ(outcome.grad_norm, expected.grad_norm) << named.name;
    for (const auto& [name, grad] : outcome.gradients)
      EXPECT_TRUE(at::equal(grad, expected.gradients.at(name))) << named.name << " " << name;
  }
}

TEST(Nccl, EveryStrategyLaunchesInOneOrderAndEqualsOneProcessBitForBit) {
  const Deadline deadline(std::chrono::seconds(300));
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo"), fast_nodes = with_fast_nodes("demo");
  ASSERT_GE(cluster.num_devices(), 2);
  int compared = 0;
  for (const NamedPlan& named : plans(model, cluster)) {
    const std::unique_ptr<CostModel> cost = make_cost(model, cluster, named.plan, {});
    run_plan(model, cluster, named, nullptr);
    run_plan(model, fast_nodes, named, cost.get());  // sums go in two levels
    ++compared;
  }
  EXPECT_GE(compared, 8);
}

/// Two steps, and two more after each layer's experts have gone to the next owner.
Outcome run_with_other_owners(Session& session) {
  run(session);
  Plan next = session.plan();
  for (LayerPlacement& layer : next.groups[0].layers)
    std::rotate(layer.experts.begin(), layer.experts.begin() + 1, layer.experts.end());
  session.change_plan(next, {});
  StepInput input = random_input(session.plan(), session.model());
  input.learning_rate = 1e-3;
  input.step = 2;
  Outcome out;
  const StepResult result = session.train_step(input);
  out.loss = result.loss, out.grad_norm = result.grad_norm;
  out.gradients = session.gradients();
  return out;
}

/// A plan without moves between devices has no queue for them, which a change of owners needs.
TEST(Nccl, OwnersThatABalancerChangesMoveOnQueuesOfTheRun) {
  const Deadline deadline(std::chrono::seconds(120));
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  const Plan plan = find_strategy("ep").make(model, cluster, small_step());
  Job job;
  job.balancer.name = "lpt";
  Session alone(model, cluster, plan, {{true, 1, true}, {}, {}});
  const Outcome expected = run_with_other_owners(alone);
  NcclWorld world(cluster.num_devices());
  std::vector<Outcome> got(world.launches.size());
  std::vector<i32> rank_of(world.launches.size());
  std::iota(rank_of.begin(), rank_of.end(), 0);
  std::vector<std::thread> threads;
  for (i32 rank = 0; rank < cluster.num_devices(); ++rank) {
    threads.emplace_back([&, rank] {
      const RankThread processes(world, rank);
      Session session(model, cluster, plan, {{true, 1, true}, {}, {rank}}, [&](const Schedule& schedule) {
        EXPECT_LT(transfer_queues(schedule).size(), queues_of_run(schedule, job).size());
        return make_nccl_transport(
            processes, std::make_unique<FakeNccl>(world, rank),
            {.rank_of = rank_of, .queues = queues_of_run(schedule, job), .device = c10::DeviceType::CPU});
      });
      got[idx(rank)] = run_with_other_owners(session);
      processes.gather("done");
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_one_order(world, "lpt");
  for (const Outcome& outcome : got) {
    EXPECT_EQ(outcome.loss, expected.loss);
    EXPECT_EQ(outcome.grad_norm, expected.grad_norm);
  }
}

/// As the planner makes them, a strategy with one device, and a plan for the devices that are left.
TEST(Nccl, PlansWithIdleDevicesRunWithAProcessForEachOfTheOthers) {
  const Deadline deadline(std::chrono::seconds(300));
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  ASSERT_EQ(cluster.num_devices(), 4);
  StrategyRequest one = small_step(), planned = small_step(), left = small_step();
  one.attention = {2};
  planned.attention = {0, 1}, planned.experts = {3};
  left.attention = {1, 2, 3};
  std::vector<NamedPlan> all = {
      {"single on device 2", find_strategy("single").make(model, cluster, one)},
      {"zebra without device 2", find_strategy("zebra").make(model, cluster, planned)},
      {"ep without device 0", find_strategy("ep").make(model, cluster, left)}};
  const std::vector<std::size_t> num_working = {1, 3, 3};
  for (std::size_t p = 0; p < all.size(); ++p) {
    use_fp64(all[p].plan);
    ASSERT_EQ(devices_of(all[p].plan).size(), num_working[p]) << all[p].name;
    run_plan(model, cluster, all[p], make_cost(model, cluster, all[p].plan, {}).get());
  }
}

}  // namespace
}  // namespace hetermoe::testing
