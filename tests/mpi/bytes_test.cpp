#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "hetermoe/balance/trace_balance.h"
#include "hetermoe/routing/analysis.h"
#include "hetermoe/train/run/route_probe.h"
#include "tests/mpi/job.h"
#include "tests/support/fast_nodes.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

// What rows take on the wire between processes: counted message by message, it is what follows from the
// routes.
namespace hetermoe::testing {
namespace {

/// [from, to] bytes of tensors in the exchanges of rows of a step.
using BytesOfPairs = std::map<std::pair<DeviceId, DeviceId>, i64>;

/// Experts of a group that differs from sequence to sequence, so that it matters who has them.
std::vector<at::Tensor> choices_by_sequence(const ModelConfig& model, const Plan& plan) {
  const i64 sequences = total_sequences(plan.groups[0]), half = model.num_experts / 2;
  std::vector<at::Tensor> out(static_cast<std::size_t>(model.num_layers));
  for (const i64 layer : layers_with_experts(model)) {
    at::Tensor& of_layer = out[static_cast<std::size_t>(layer)];
    of_layer = at::empty({sequences, plan.seq_len, model.top_k}, at::kInt);
    for (i64 s = 0; s < sequences; ++s) {
      for (i64 t = 0; t < plan.seq_len; ++t) {
        for (i64 k = 0; k < model.top_k; ++k)
          of_layer[s][t][k] = ((t * 3 + s * layer + k) % half) * 2 + (s % 2);  // even experts or odd ones
      }
    }
  }
  return out;
}

/// Counted in this process, then over all.
BytesOfPairs counted(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                     const StepInput& input) {
  const std::vector<i32> rank_of = spread_devices(cluster.num_devices(), job->num_ranks());
  Session::Options options{{true, 1, true}, {}, {}};
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    if (rank_of[static_cast<std::size_t>(d)] == job->rank()) options.local.push_back(d);
  }
  std::mutex mutex;
  BytesOfPairs bytes;
  std::vector<Op> ops;
  const auto count = [&](const ExchangeCall& call, std::vector<Message>& out) {
    const Op& op = ops[static_cast<std::size_t>(call.op)];
    const bool sizes = op.kind == OpKind::kDispatch && op.phase != Phase::kBackward && call.round == 0;
    if ((op.kind != OpKind::kDispatch && op.kind != OpKind::kCombine) || sizes) return;
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < out.size(); ++i) {
      for (const at::Tensor& tensor : out[i].tensors)
        bytes[{call.self, call.participants[i]}] += static_cast<i64>(tensor.nbytes());
    }
  };
  Session session(model, cluster, plan, options, [&](const Schedule& schedule) {
    ops = schedule.ops;
    return std::make_unique<HookedTransport>(make_mpi_transport(*job, rank_of), count,
                                             HookedTransport::Hook(), std::function<void()>());
  });
  session.initialize(1);
  session.train_step(input);
  Json mine = Json::array();
  for (const auto& [pair, amount] : bytes) mine.push_back({pair.first, pair.second, amount});
  BytesOfPairs all;
  for (const std::string& text : job->gather(mine.dump())) {
    for (const Json& entry : Json::parse(text))
      all[{entry[0].get<DeviceId>(), entry[1].get<DeviceId>()}] += entry[2].get<i64>();
  }
  return all;
}

/// From the routes alone: there and back, forward and backward.
BytesOfPairs formula(const ModelConfig& model, const Plan& plan, const TraceRouting& routes) {
  const Placement placement(plan, model, {});
  BytesOfPairs out;
  for (i32 l = 0; l < model.num_layers; ++l) {
    for (i32 m = 0; model.is_moe(l) && m < placement.num_microbatches(0); ++m) {
      for (i32 c = 0; c < plan.chunks; ++c) {
        const ExchangeLoad load = routes.exchange(placement, 0, l, m, c);
        const TokenRanges sources = placement.ranges(0, l, m);
        const std::vector<DeviceId>& owners = placement.owners(0, l);
        for (std::size_t s = 0; s < sources.size(); ++s) {
          for (std::size_t o = 0; o < owners.size(); ++o) {
            const auto rows = static_cast<i64>(load.rows_between(s, o)),
                       copies = static_cast<i64>(load.copies_between(s, o));
            const auto row_bytes = [&](Wire wire) {
              if (wire == Wire::kFp8Row) return rows * (model.hidden + 4);
              if (wire == Wire::kFp8Group) return (rows + (rows + 127) / 128 * 4) * model.hidden;
              return rows * model.hidden * static_cast<i64>(bytes_of(*dtype_of(wire)));
            };
            const DeviceId source = sources.device(s), owner = owners[o];
            // The price is of what is sent.
            Op there, back;
            there.kind = back.kind = OpKind::kDispatch;
            back.phase = Phase::kBackward;
            EXPECT_EQ(message_bytes(there, plan, model.hidden, real(rows), real(copies)),
                      row_bytes(plan.wire_forward) + copies * 12);
            EXPECT_EQ(message_bytes(back, plan, model.hidden, real(rows), real(copies)),
                      row_bytes(plan.wire_backward) + copies * 4);
            // dispatch.F: a row; of each copy its weight, row and expert. combine.B: the gradient of a row.
            out[{source, owner}] +=
                row_bytes(plan.wire_forward) + copies * 12 + row_bytes(plan.wire_backward);
            // combine.F: a row. dispatch.B: its gradient, and of each copy that of its weight.
            out[{owner, source}] += row_bytes(plan.wire_forward) + row_bytes(plan.wire_backward) + copies * 4;
          }
        }
      }
    }
  }
  return out;
}

i64 between_nodes(const BytesOfPairs& bytes, const Cluster& cluster) {
  i64 out = 0;
  for (const auto& [pair, amount] : bytes) {
    if (cluster.node_of(pair.first) != cluster.node_of(pair.second)) out += amount;
  }
  return out;
}

// Claim: bytes of rows between processes, counted message by message over MPI, are those that follow from the
// routes, in every pair
TEST(Mpi, CountedBytesOfRowsAreThoseThatFollowFromTheRoutes) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  for (const char* strategy : {"ep", "zebra"}) {
    for (const bool dedup : {true, false}) {
      Plan plan = find_strategy(strategy).make(model, cluster, small_step());
      use_dtype(plan, Dtype::kFp32);
      plan.wire_forward = dedup ? Wire::kBf16 : Wire::kFp8Row;
      plan.wire_backward = dedup ? Wire::kFp8Group : Wire::kFp8Row;
      plan.row_dedup = dedup;
      plan.chunks = dedup ? 1 : 3;
      StepInput input = random_input(plan, model);
      input.choices = choices_by_sequence(model, plan);
      const TraceRouting routes = routing_of_choices(input.choices, model, "made");
      const TraceBalance balance(model, cluster, plan, {}, {});
      const Plan local = balance.placed({.balancer = "locality", .knows = Knows::kForesight, .load_cap = 0},
                                        even_load(model.num_moe_layers(), model.num_experts), &routes);
      const std::string name = std::string(strategy) + (dedup ? " with" : " without") + " dedup";
      const BytesOfPairs linear_bytes = counted(model, cluster, plan, input),
                         local_bytes = counted(model, cluster, with_owners(plan, local), input);
      EXPECT_EQ(linear_bytes, formula(model, plan, routes)) << name;
      EXPECT_EQ(local_bytes, formula(model, with_owners(plan, local), routes)) << name;
      EXPECT_GT(between_nodes(linear_bytes, cluster), 1000) << name;
      if (job->rank() == 0)
        std::printf("%s: %ld bytes between nodes, %ld with experts placed by use\n", name.c_str(),
                    static_cast<long>(between_nodes(linear_bytes, cluster)),
                    static_cast<long>(between_nodes(local_bytes, cluster)));
    }
  }
}

/// Three steps, so that what a step keeps for the next counts.
void expect_bits_of_one_process(const Cluster& cluster, void (*change)(Plan&)) {
  const ModelConfig model = load_model("tiny");
  for (const char* strategy : {"ep", "zebra"}) {
    Plan plan = find_strategy(strategy).make(model, cluster, small_step());
    use_dtype(plan, Dtype::kBf16);
    change(plan);
    StepInput input = random_input(plan, model);
    input.learning_rate = 1e-2;
    Session::Options options{{true, 1, true}, {}, {}};
    Session whole(model, cluster, plan, options);
    whole.initialize(1);
    const std::vector<i32> rank_of = spread_devices(cluster.num_devices(), job->num_ranks());
    for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
      if (rank_of[static_cast<std::size_t>(d)] == job->rank()) options.local.push_back(d);
    }
    Session part(model, cluster, plan, options,
                 [&](const Schedule&) { return make_mpi_transport(*job, rank_of); });
    part.initialize(1);
    for (input.step = 0; input.step < 3; ++input.step) {
      const StepResult expected = whole.train_step(input), got = part.train_step(input);
      EXPECT_EQ(got.loss, expected.loss) << strategy;
      EXPECT_EQ(got.grad_norm, expected.grad_norm) << strategy;
    }
    const TensorsByName values = whole.values();
    for (const auto& [name, value] : part.values()) EXPECT_TRUE(at::equal(value, values.at(name))) << name;
    job->gather("");
  }
}

TEST(Mpi, RowsWithScalesHaveTheBitsOfOneProcess) {
  expect_bits_of_one_process(load_cluster("demo"),
                             [](Plan& plan) { plan.wire_forward = plan.wire_backward = Wire::kFp8Row; });
}

TEST(Mpi, RowsWithScalesOfGroupsHaveTheBitsOfOneProcess) {
  expect_bits_of_one_process(load_cluster("demo"), [](Plan& plan) {
    plan.wire_forward = Wire::kFp8Row, plan.wire_backward = Wire::kFp8Group;
  });
  expect_bits_of_one_process(load_cluster("demo"), [](Plan& plan) {
    plan.wire_forward = plan.wire_backward = Wire::kFp8Group;
    plan.row_nodes = {0, 0, 1, 1};
  });
}

TEST(Mpi, RowsByNodesHaveTheBitsOfOneProcess) {
  expect_bits_of_one_process(load_cluster("demo"), [](Plan& plan) { plan.row_nodes = {0, 0, 1, 1}; });
}

TEST(Mpi, RoundedGradientsHaveTheBitsOfOneProcess) {
  for (const Cluster& cluster : {load_cluster("demo"), with_fast_nodes("demo")}) {
    expect_bits_of_one_process(cluster, [](Plan& plan) { plan.wire_reduce = WireReduce::kBf16; });
    expect_bits_of_one_process(cluster, [](Plan& plan) {
      plan.wire_reduce = WireReduce::kBf16;
      plan.error_feedback = true;
      plan.shard_optimizer = true;
    });
  }
}

}  // namespace
}  // namespace hetermoe::testing
