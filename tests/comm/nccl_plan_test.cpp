#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>
#include <thread>

#include "hetermoe/base/index.h"
#include "hetermoe/comm/nccl.h"
#include "hetermoe/comm/transports.h"
#include "hetermoe/comm/wire.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/train/session/session.h"
#include "hetermoe/train/session/start.h"
#include "tests/support/error_of.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/fast_nodes.h"
#include "tests/support/faults.h"
#include "tests/support/sent_bytes.h"
#include "tests/support/strategy_plans.h"

// Whole plans over an NCCL of threads: the numbers of one process, and one order of launches.
namespace hetermoe::testing {
namespace {

struct Outcome {
  double loss = 0, grad_norm = 0;
  Seconds step = 0;
  TensorsByName gradients;             ///< none where each device has a part of them
  std::vector<LogicalTensor> tensors;  ///< of the session's devices
};

Outcome run(Session& session) {
  session.initialize(1);
  StepInput input = random_input(session.plan(), session.model());
  input.learning_rate = 1e-3;
  Outcome out;
  for (i64 step = 0; step < 2; ++step) {
    input.step = step;
    const StepResult result = session.train_step(input);
    out.loss = result.loss, out.grad_norm = result.grad_norm, out.step = result.step;
  }
  if (!shards_weights(session.plan())) out.gradients = session.gradients();
  for (DeviceState* state : session.states()) {
    for (const LogicalTensor& tensor : state->store().tensors()) out.tensors.push_back(tensor);
  }
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

/// What a rank has to launch, send and copy, by the messages of its exchanges.
struct Traffic {
  i64 launches = 0, sends = 0, bytes = 0;
  NcclCopies copies;
  i64 empty = 0;  ///< messages that do not travel
};

bool has_content(const MessageShape& shape) {
  return shape.numbers > 0 || shape.values > 0 ||
         std::any_of(shape.tensors.begin(), shape.tensors.end(),
                     [](const MessageShape::Part& part) { return c10::multiply_integers(part.sizes) > 0; });
}

/// A message without content does not travel. The others send their tensors and one rest, and the rests of an
/// exchange are one copy. No sizes travel but those of dispatch, which are an exchange of their own.
void add_exchange(Traffic& traffic, const ExchangeCall& call, const std::vector<Message>& out) {
  bool sends = false, receives = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (call.participants[i] == call.self) continue;
    receives = receives || has_content(call.expected[i]);
    const MessageShape shape = shape_of(out[i]);
    if (!has_content(shape)) {
      ++traffic.empty;
      continue;
    }
    sends = true;
    ++traffic.sends;
    traffic.bytes += wire_bytes({.numbers = shape.numbers, .values = shape.values, .tensors = {}});
    for (const at::Tensor& tensor : out[i].tensors) {
      traffic.sends += tensor.numel() > 0 ? 1 : 0;
      traffic.bytes += static_cast<i64>(tensor.nbytes());
    }
  }
  traffic.launches += sends || receives ? 1 : 0;
  traffic.copies.to_device += sends ? 1 : 0;
  traffic.copies.to_host += receives ? 1 : 0;
}

void print_traffic(const std::vector<Traffic>& of_ranks, const std::string& what) {
  Traffic sum;
  for (const Traffic& one : of_ranks) {
    sum.sends += one.sends, sum.empty += one.empty;
    sum.copies.to_device += one.copies.to_device, sum.copies.to_host += one.copies.to_host;
  }
  fmt::print("{}: {} sends without {} empty messages, rests in {} copies\n", what, sum.sends, sum.empty,
             sum.copies.to_device + sum.copies.to_host);
}

void expect_traffic(const NcclWorld& world, const std::vector<Traffic>& expected, const std::string& what) {
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    Traffic got;
    got.copies = world.copies[rank];
    for (const NcclLaunch& launch : world.launches[rank]) {
      ++got.launches;
      for (const NcclCall& call : launch.calls) {
        got.sends += call.sends ? 1 : 0;
        got.bytes += call.sends ? call.bytes : 0;
      }
    }
    EXPECT_EQ(got.launches, expected[rank].launches) << what << ", rank " << rank;
    EXPECT_EQ(got.sends, expected[rank].sends) << what << ", rank " << rank;
    EXPECT_EQ(got.bytes, expected[rank].bytes) << what << ", rank " << rank;
    EXPECT_EQ(got.copies.to_device, expected[rank].copies.to_device) << what << ", rank " << rank;
    EXPECT_EQ(got.copies.to_host, expected[rank].copies.to_host) << what << ", rank " << rank;
  }
}

std::vector<NamedPlan> plans(const ModelConfig& model, const Cluster& cluster) {
  const StrategyRequest request = small_step();
  std::vector<NamedPlan> all = strategy_plans(model, cluster, request);
  std::erase_if(all, [&](const NamedPlan& named) {
    return static_cast<i32>(devices_of(named.plan).size()) < cluster.num_devices();
  });
  return all;
}

/// All ranks of a plan. What they compute must equal one process, and all launch in one order. `on_send` sees
/// the messages of all ranks.
void run_plan(const ModelConfig& model, const Cluster& cluster, const NamedPlan& named,
              const CostModel* launch_by, const HookedTransport::Hook& on_send = {}) {
  Session alone(model, cluster, named.plan, {{true, 1, true}, {}, {}});
  const Outcome expected = run(alone);
  const TensorsByName values = alone.values();
  const std::vector<DeviceId> working = devices_of(named.plan);
  const auto num_ranks = static_cast<i32>(working.size());
  const std::vector<i32> rank_of = spread_working_devices(working, cluster.num_devices(), num_ranks);
  NcclWorld world(num_ranks);
  std::vector<Outcome> got(world.launches.size());
  std::vector<Traffic> traffic(world.launches.size());
  std::vector<std::thread> threads;
  for (i32 rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const RankThread processes(world, rank);
      std::mutex mutex;
      const auto count = [&](const ExchangeCall& call, std::vector<Message>& out) {
        const std::lock_guard lock(mutex);
        add_exchange(traffic[idx(rank)], call, out);
        if (on_send) on_send(call, out);
      };
      Session::Options options{{true, 1, true}, {}, {working[idx(rank)]}};
      options.launch_by = launch_by;
      Session session(model, cluster, named.plan, options, [&](const Schedule& schedule) {
        return std::make_unique<HookedTransport>(
            make_nccl_transport(
                processes, std::make_unique<FakeNccl>(world, rank),
                {.rank_of = rank_of, .queues = transfer_queues(schedule), .device = c10::DeviceType::CPU}),
            count, HookedTransport::Hook(), std::function<void()>());
      });
      got[idx(rank)] = run(session);
      processes.gather("done");
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_one_order(world, named.name);
  print_traffic(traffic, named.name);
  expect_traffic(world, traffic, named.name);
  for (const Outcome& outcome : got) {
    EXPECT_EQ(outcome.loss, expected.loss) << named.name;
    EXPECT_EQ(outcome.grad_norm, expected.grad_norm) << named.name;
    for (const auto& [name, grad] : outcome.gradients)
      EXPECT_TRUE(at::equal(grad, expected.gradients.at(name))) << named.name << " " << name;
    for (const LogicalTensor& tensor : outcome.tensors) {
      const at::Tensor kept = kept_value_of(tensor, values.at(tensor.name));
      EXPECT_TRUE(at::equal(tensor.value.flatten(), kept.flatten())) << named.name << " " << tensor.name;
    }
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

Cluster cluster_of(const std::string& nodes) {
  return parse_cluster(parse_yaml("{name: test, local_gb_s: 1000, nodes: [" + nodes + "]}", "test"), "test ");
}

bool is_sum(const std::string& op) { return op.starts_with("reduce") || op.starts_with("all_gather"); }

/// What sums send over the ports of each device and between those of a node, as sent and as priced.
Sent run_sums(const Cluster& cluster, const NamedPlan& named) {
  Sent sent;
  std::mutex mutex;
  const ModelConfig model = load_model("tiny");
  const auto on_send = sent_counter(
      sent, mutex, cluster, [](const ExchangeCall& call) { return call.step == 1 && is_sum(call.name); });
  run_plan(model, cluster, named, make_cost(model, cluster, named.plan, {}).get(), on_send);
  const Placement placement(named.plan, model, {true, 1, true});
  const Schedule schedule = build_schedule(named.plan, model, {true, 1, true});
  const WorkModel work(placement, model, cluster);
  for (std::size_t i = 0; i < schedule.ops.size(); ++i) {
    const Op& op = schedule.ops[i];
    if (row_of(op.kind).participants != Participants::kStateDevices) continue;
    std::vector<DeviceId> participants;
    for (const LaneId lane : schedule.lanes_of(static_cast<OpId>(i))) participants.push_back(device_of(lane));
    sent.add_priced(work, op, participants, nullptr);
  }
  return sent;
}

/// Inside the nodes first where a node has several ranks, at once where each rank is a node of its own.
TEST(Nccl, SumsCarryTheirPricedBytesOverEachPortWhateverRanksANodeHas) {
  const Deadline deadline(std::chrono::seconds(300));
  const std::vector<std::pair<std::string, std::size_t>> nodes = {
      {"{devices: [A40]}, {devices: [V100]}, {devices: [A40]}, {devices: [V100]}", 1},
      {"{devices: [A40 x2]}, {devices: [V100 x2]}", 4},
      {"{devices: [A40]}, {devices: [V100 x3]}, {devices: [A40 x2]}", 4}};
  for (const auto& [text, num_exchanges] : nodes) {
    const Cluster cluster = cluster_of(text);
    for (const bool divided : {false, true}) {
      NamedPlan named = {text, find_strategy("ep").make(load_model("tiny"), cluster, small_step())};
      use_fp64(named.plan);
      if (divided) shard_weights(named.plan);
      const Sent sent = run_sums(cluster, named);
      EXPECT_EQ(sent.most_exchanges, divided ? std::max<std::size_t>(1, num_exchanges / 2) : num_exchanges);
      ASSERT_EQ(sent.counted.size(), static_cast<std::size_t>(cluster.num_devices()));
      for (const auto& [device, bytes] : sent.counted) {
        const SentBytes& priced = sent.priced.at(device);
        EXPECT_NEAR(bytes.network / priced.network, 1, 0.02) << text << ", device " << device;
        EXPECT_NEAR(bytes.local, priced.local, 0.02 * priced.local) << text << ", device " << device;
      }
    }
  }
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
// Claim: over NCCL experts move on queues of the run, and the step after it has the bits of one process
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

/// The longest step of all ranks on an emulated clock.
Seconds emulated_step(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                      Session::Options options, bool tells_ready) {
  NcclWorld world(cluster.num_devices());
  const std::vector<i32> rank_of = spread_working_devices(devices_of(plan), 4, 4);
  std::vector<Seconds> steps(world.launches.size());
  std::vector<std::thread> threads;
  for (i32 rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank, own = options]() mutable {
      const RankThread processes(world, rank);
      own.local = {rank};
      Session session(model, cluster, plan, own, [&](const Schedule& schedule) {
        return make_nccl_transport(processes, std::make_unique<FakeNccl>(world, rank),
                                   {.rank_of = rank_of,
                                    .queues = transfer_queues(schedule),
                                    .device = c10::DeviceType::CPU,
                                    .tells_ready = tells_ready});
      });
      steps[idx(rank)] = run(session).step;
      processes.gather("done");
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(steps.begin(), steps.end());
}

/// A transfer starts when its last participant is ready, which one without content has to tell as well.
TEST(Nccl, OnAnEmulatedClockAStepTakesAsLongAsInOneProcess) {
  const Deadline deadline(std::chrono::seconds(120));
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  const std::vector<NamedPlan> all = plans(model, cluster);
  const auto team =
      std::find_if(all.begin(), all.end(), [](const NamedPlan& named) { return named.name == "sp-ep"; });
  ASSERT_NE(team, all.end());
  const std::unique_ptr<CostModel> cost = make_cost(model, cluster, team->plan, {});
  Session::Options options{{true, 1, true}, {}, {}};
  options.executor.clock = ClockKind::kVirtual;
  options.executor.truth = cost.get();
  Session alone(model, cluster, team->plan, options);
  const Seconds expected = run(alone).step;
  EXPECT_DOUBLE_EQ(emulated_step(model, cluster, team->plan, options, true), expected);
  EXPECT_LT(emulated_step(model, cluster, team->plan, options, false), expected);
}

/// NCCL may not come back from an abort, so who looks at the output has to find the error itself.
TEST(Nccl, TheErrorOfAStepIsSaidAsItsTransfersAreAborted) {
  const Deadline deadline(std::chrono::seconds(60));
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  const Plan plan = find_strategy("ep").make(model, cluster, small_step());
  const auto fail_on_device_1 = [](const ExchangeCall& call, std::vector<Message>&) {
    if (call.self == 1 && call.name.starts_with("combine.F")) fail<DeviceError>("planted", "no memory left");
  };
  NcclWorld world(cluster.num_devices());
  const std::vector<i32> rank_of = spread_working_devices(devices_of(plan), 4, 4);
  std::vector<std::string> errors(4);
  std::vector<std::thread> threads;
  ::testing::internal::CaptureStderr();
  for (i32 rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const RankThread processes(world, rank);
      errors[idx(rank)] = error_of([&] {
        Session session(model, cluster, plan, {{true, 1, true}, {}, {rank}}, [&](const Schedule& schedule) {
          return std::make_unique<HookedTransport>(
              make_nccl_transport(
                  processes, std::make_unique<FakeNccl>(world, rank),
                  {.rank_of = rank_of, .queues = transfer_queues(schedule), .device = c10::DeviceType::CPU}),
              fail_on_device_1, HookedTransport::Hook(), std::function<void()>());
        });
        run(session);
      });
      processes.gather("done");
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(has(errors[1], "[planted] no memory left"));
  EXPECT_TRUE(has(said, "rank 1: transfers are aborted: " + errors[1] + "\n"));
  for (const std::string& error : errors) EXPECT_NE(error, "no error");
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
