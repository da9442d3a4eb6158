#include "hetermoe/comm/nccl.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "hetermoe/cost/measured.h"
#include "hetermoe/train/session.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/faults.h"
#include "tests/support/strategy_plans.h"

// The NCCL transport over an NCCL of threads: what arrives, and in which order everybody launches.
namespace hetermoe::testing {
namespace {

constexpr std::size_t kMove = static_cast<std::size_t>(Queue::kMove);

std::vector<i32> one_each(i32 num_devices) {
  std::vector<i32> rank_of;
  for (i32 d = 0; d < num_devices; ++d) rank_of.push_back(d);
  return rank_of;
}

NcclOptions on_cpu(i32 num_devices) { return {one_each(num_devices), {1, 2, 3, 4}, c10::DeviceType::CPU}; }

/// Runs `work` of every rank in a thread of its own.
void run_ranks(NcclWorld& world, const std::function<void(i32, Transport&)>& work) {
  const auto num_ranks = static_cast<i32>(world.launches.size());
  std::vector<std::thread> threads;
  for (i32 rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const RankThread processes(world, rank);
      const std::unique_ptr<Transport> transport =
          make_nccl_transport(processes, std::make_unique<FakeNccl>(world, rank), on_cpu(num_ranks));
      work(rank, *transport);
      processes.gather("done");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

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
      EXPECT_EQ(shared(world.launches[static_cast<std::size_t>(a)], b, false),
                shared(world.launches[static_cast<std::size_t>(b)], a, true))
          << what << ", ranks " << a << " and " << b;
    }
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

/// All ranks of a plan; what rank 0 computes must equal one process, and all launch in one order.
void run_plan(const ModelConfig& model, const Cluster& cluster, const NamedPlan& named,
              const CostModel* launch_by) {
  Session alone(model, cluster, named.plan, {{true, 1, true}, {}, {}});
  const Outcome expected = run(alone);
  NcclWorld world(cluster.num_devices());
  std::vector<Outcome> got(world.launches.size());
  std::vector<std::thread> threads;
  for (i32 rank = 0; rank < cluster.num_devices(); ++rank) {
    threads.emplace_back([&, rank] {
      const RankThread processes(world, rank);
      Session::Options options{{true, 1, true}, {}, {rank}};
      options.launch_by = launch_by;
      Session session(model, cluster, named.plan, options, [&](const Schedule& schedule) {
        return make_nccl_transport(
            processes, std::make_unique<FakeNccl>(world, rank),
            {one_each(cluster.num_devices()), transfer_queues(schedule), c10::DeviceType::CPU});
      });
      got[static_cast<std::size_t>(rank)] = run(session);
      processes.gather("done");
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_one_order(world, named.name);
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
  const Cluster cluster = load_cluster("demo");
  ASSERT_GE(cluster.num_devices(), 2);
  int compared = 0;
  for (const NamedPlan& named : plans(model, cluster)) {
    const std::unique_ptr<CostModel> cost = make_cost(model, cluster, named.plan, {});
    run_plan(model, cluster, named, nullptr);
    run_plan(model, cluster, named, cost.get());
    ++compared;
  }
  EXPECT_GE(compared, 8);
}

Message full_message(i32 from, i32 to) {
  Message message;
  message.numbers = {from, to};
  message.values = {0.25 * from};
  message.ready = 1.5;
  message.tensors.push_back(at::full({from, 3}, 10 * from + to, at::kLong));  // rank 0's is empty
  message.tensors.push_back(at::full({2, to}, 0.5 * from, at::kDouble));      // to rank 0 empty
  message.tensors.push_back(at::full({}, 7.0f));
  message.tensors.push_back(at::full({2, 2}, from, at::kBFloat16).t());  // not contiguous
  return message;
}

TEST(Nccl, AMessageArrivesAsItWasSent) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(3);
  run_ranks(world, [](i32 rank, Transport& transport) {
    const std::vector<DeviceId> participants = {0, 1, 2};
    for (i64 step = 0; step < 3; ++step) {
      transport.begin_step();
      for (i64 turn = 0; turn < 4; ++turn) {
        std::vector<Message> out;
        for (const DeviceId to : participants) out.push_back(full_message(rank, to));
        const std::vector<Message> in = transport.exchange(
            {step, static_cast<OpId>(turn), "test", rank, participants, kMove, turn}, std::move(out));
        for (const DeviceId from : participants) {
          const Message expected = full_message(from, rank), &got = in[static_cast<std::size_t>(from)];
          EXPECT_EQ(got.numbers, expected.numbers);
          EXPECT_EQ(got.values, expected.values);
          EXPECT_EQ(got.ready, expected.ready);
          ASSERT_EQ(got.tensors.size(), expected.tensors.size());
          for (std::size_t t = 0; t < expected.tensors.size(); ++t) {
            EXPECT_EQ(got.tensors[t].scalar_type(), expected.tensors[t].scalar_type());
            EXPECT_TRUE(at::equal(got.tensors[t], expected.tensors[t])) << t;
          }
        }
      }
    }
  });
}

/// The text of the error of each rank.
std::vector<std::string> errors_of(NcclWorld& world, const std::function<void(i32, Transport&)>& work) {
  std::vector<std::string> errors(world.launches.size());
  run_ranks(world, [&](i32 rank, Transport& transport) {
    try {
      transport.begin_step();
      work(rank, transport);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
      transport.abort(error.what());
    }
  });
  return errors;
}

TEST(Nccl, AnotherOrderIsNamedAndNobodyHangs) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(2);
  const std::vector<DeviceId> participants = {0, 1};
  const std::vector<std::string> errors = errors_of(world, [&](i32 rank, Transport& transport) {
    const OpId op = rank == 0 ? 17 : 18;
    transport.exchange({0, op, "dispatch.F", rank, participants, 1, 0}, std::vector<Message>(2));
  });
  EXPECT_TRUE(has(errors[0] + errors[1], "do not launch in the same order"));
  EXPECT_TRUE(has(errors[0] + errors[1], "sent op 18 of step 0, expected op 17 of step 0") ||
              has(errors[0] + errors[1], "sent op 17 of step 0, expected op 18 of step 0"));
}

TEST(Nccl, ATurnThatNeverComesEndsWithTheAbort) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(2);
  const std::vector<DeviceId> participants = {0, 1};
  const std::vector<std::string> errors = errors_of(world, [&](i32 rank, Transport& transport) {
    if (rank == 1) fail<DeviceError>("rank 1", "planted fault");
    transport.exchange({0, 3, "combine.F", rank, participants, 2, 0}, std::vector<Message>(2));
  });
  EXPECT_TRUE(has(errors[1], "planted fault"));
  EXPECT_FALSE(errors[0].empty());
}

TEST(Nccl, SeveralDevicesOfOneProcessAreRefused) {
  NcclWorld world(1);
  const RankThread processes(world, 0);
  try {
    make_nccl_transport(processes, std::make_unique<FakeNccl>(world, 0), {{0, 0}, {1}, c10::DeviceType::CPU});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_TRUE(has(error.what(), "as many processes as the plan has devices (2)"));
  }
}

}  // namespace
}  // namespace hetermoe::testing
