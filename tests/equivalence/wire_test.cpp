#include <gtest/gtest.h>

#include "hetermoe/comm/codec.h"
#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/train/session/session.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

// Steps whose rows travel with scales, beside the same steps in which a test rounds what arrives.
namespace hetermoe::testing {
namespace {

using Hook = HookedTransport::Hook;

/// rows in the first, their gradients in the second.
using Wires = std::pair<Wire, Wire>;
constexpr Wires kRowWires = {Wire::kFp8Row, Wire::kFp8Row}, kGroupWires = {Wire::kFp8Group, Wire::kFp8Group},
                kBothWires = {Wire::kFp8Row, Wire::kFp8Group};

Plan with_scales(Plan plan, const Wires& wires = kRowWires) {
  plan.wire_forward = wires.first, plan.wire_backward = wires.second;
  return plan;
}

struct Ended {
  StepResult result;
  TensorsByName gradients;
};

struct WireScene {
  ModelConfig model = tiny_mixtral();
  Cluster cluster = make_cluster(4);
  StepOptions step = {true, 1, true};

  Ended run(const Plan& plan, const Hook& on_receive = {}) const {
    RigOptions options;
    options.step = step;
    options.on_receive = on_receive;
    Rig rig(model, cluster, plan, options);
    rig.load(lively_values(model));
    const StepResult result = rig.executor().run(random_input(plan, model));
    EXPECT_TRUE(on_receive || rig.differing_replicas().empty());
    return {result, rig.gradients()};
  }
};

bool carries_expert_rows(const ExchangeCall& call) {
  return call.name.starts_with("dispatch") || call.name.starts_with("combine");
}
bool carries_other_rows(const ExchangeCall& call) {
  return call.name.starts_with("move") || call.name.starts_with("to_heads") ||
         call.name.starts_with("to_tokens");
}

/// Rows of experts as E4M3 with scales has them, others as bf16; computed in fp64. A message is encoded
/// alone.
Hook rounding_rows(const Wires& wires = kRowWires) {
  return [wires](const ExchangeCall& call, std::vector<Message>& in) {
    const Wire wire = call.name.find(".B") == std::string::npos ? wires.first : wires.second;
    for (Message& message : in) {
      for (at::Tensor& tensor : message.tensors) {
        if (tensor.scalar_type() != at::kDouble) continue;
        if (carries_other_rows(call)) tensor = tensor.to(at::kBFloat16).to(at::kDouble);
        if (!carries_expert_rows(call) || tensor.dim() < 2) continue;  // weights of copies travel as they are
        tensor = decode(encode(tensor, wire), wire, at::kDouble);
      }
    }
  };
}

bool same_bits(const Ended& a, const Ended& b) {
  return a.result.loss == b.result.loss && a.result.grad_norm == b.result.grad_norm &&
         std::equal(a.gradients.begin(), a.gradients.end(), b.gradients.begin(), b.gradients.end(),
                    [](const auto& x, const auto& y) {
                      return x.first == y.first && at::equal(x.second, y.second);
                    });
}

/// So sums are those of decoded numbers, in the order and the dtype of a step without scales.
TEST(WireWithScales, EqualsAStepWhoseRowsAreRoundedOnArrivalToTheBit) {
  const WireScene s;
  int count = 0;
  for (NamedPlan& named : strategy_plans(s.model, s.cluster, small_step())) {
    use_fp64(named.plan);
    // What backward starts from is moved as it is, and has the name of a move, too.
    if (!named.plan.groups[0].layers[0].attention_backward.empty()) continue;
    const Ended plain = s.run(named.plan);
    for (const Wires& wires : {kRowWires, kGroupWires, kBothWires}) {
      const Ended rounded = s.run(named.plan, rounding_rows(wires)),
                  scaled = s.run(with_scales(named.plan, wires));
      EXPECT_TRUE(same_bits(scaled, rounded)) << named.name;
      EXPECT_FALSE(same_bits(scaled, plain)) << named.name;
      EXPECT_NEAR(scaled.result.loss, plain.result.loss, 0.02 * plain.result.loss) << named.name;
    }
    ++count;
  }
  EXPECT_GT(count, 5);
}

TEST(WireWithScales, HoldsWithoutDedupInChunksAndWithRecomputation) {
  const WireScene s;
  for (const Recompute recompute :
       {Recompute::kOff, Recompute::kLocal, Recompute::kResend, Recompute::kAhead, Recompute::kSelect}) {
    Plan plan = find_strategy("zebra").make(s.model, s.cluster, small_step());
    use_fp64(plan);
    plan.recompute = recompute;
    plan.row_dedup = recompute != Recompute::kLocal;
    plan.chunks = recompute == Recompute::kOff ? 1 : 3;
    for (const Wires& wires : {kRowWires, kBothWires})
      EXPECT_TRUE(same_bits(s.run(with_scales(plan, wires)), s.run(plan, rounding_rows(wires))))
          << name_of(recompute);
  }
}

/// What a fault in the first message with rows does to a step; "refused" when it throws.
struct Found {
  bool refused = false, nan = false, same = false;
};
Found with_fault(at::Tensor (*change)(const at::Tensor&), const Wires& wires = kRowWires) {
  const WireScene s;
  Plan plan = find_strategy("zebra").make(s.model, s.cluster, small_step());
  use_fp64(plan);
  plan = with_scales(plan, wires);
  const Ended sound = s.run(plan);
  const auto plant = [&](const ExchangeCall& call, std::vector<Message>& in) {
    if (!call.name.starts_with("combine.F")) return;
    for (Message& message : in) {
      if (!message.tensors.empty() && message.tensors[0].size(0) > 1)
        message.tensors[0] = change(message.tensors[0]);
    }
  };
  try {
    const Ended faulty = s.run(plan, plant);
    return {.nan = std::isnan(faulty.result.loss), .same = same_bits(sound, faulty)};
  } catch (const TransportError&) {
    return {.refused = true};
  }
}

TEST(WireWithScales, PlantedFaultsAreFound) {
  const Found none = with_fault([](const at::Tensor& rows) { return rows; });
  EXPECT_TRUE(none.same);
  const Found neighbour = with_fault([](const at::Tensor& rows) {
    at::Tensor out = rows.clone();
    const i64 width = rows.size(1) - 4;
    out.narrow(1, width, 4).copy_(rows.narrow(1, width, 4).roll(1, 0));
    return out;
  });
  EXPECT_FALSE(neighbour.same || neighbour.refused);
  // A row that was not finite makes the loss so: the run's guard finds it.
  const Found not_finite = with_fault([](const at::Tensor& rows) {
    at::Tensor out = rows.clone();
    const at::Tensor row = at::full({1, rows.size(1) - 4}, std::numeric_limits<double>::infinity());
    out.narrow(0, 0, 1).copy_(encode(row, Wire::kFp8Row));
    return out;
  });
  EXPECT_TRUE(not_finite.nan);
}

TEST(WireWithScales, AMessageWithOtherScalesIsRefused) {
  EXPECT_TRUE(with_fault([](const at::Tensor& rows) { return rows.narrow(1, 0, rows.size(1) - 4); }).refused);
  EXPECT_TRUE(with_fault([](const at::Tensor& rows) { return at::cat({rows, rows}, 1); }).refused);
  EXPECT_TRUE(with_fault([](const at::Tensor& rows) { return rows.narrow(0, 1, rows.size(0) - 1); }).refused);
  EXPECT_TRUE(with_fault([](const at::Tensor& rows) { return rows.to(at::kFloat); }).refused);
}

/// Scales are the last four rows of a message of one group.
TEST(WireWithScales, PlantedFaultsInGroupsAreFound) {
  EXPECT_TRUE(with_fault([](const at::Tensor& rows) { return rows; }, kGroupWires).same);
  const Found neighbour = with_fault(
      [](const at::Tensor& rows) {
        at::Tensor out = rows.clone();
        const i64 codes = rows.size(0) - 4, bytes = 4 * rows.size(1);
        out.narrow(0, codes, 4).view({bytes}).copy_(rows.narrow(0, codes, 4).reshape({bytes}).roll(4, 0));
        return out;
      },
      kGroupWires);
  EXPECT_FALSE(neighbour.same || neighbour.refused);
  const Found not_finite = with_fault(
      [](const at::Tensor& rows) {
        const at::Tensor x =
            at::full({rows.size(0) - 4, rows.size(1)}, std::numeric_limits<double>::infinity());
        return encode(x, Wire::kFp8Group);
      },
      kGroupWires);
  EXPECT_TRUE(not_finite.nan);
}

/// Any other number of rows, so of scales, than those of the rows that must come.
TEST(WireWithScales, AMessageWithOtherScalesOfGroupsIsRefused) {
  EXPECT_TRUE(
      with_fault([](const at::Tensor& x) { return x.narrow(0, 0, x.size(0) - 4); }, kGroupWires).refused);
  EXPECT_TRUE(
      with_fault([](const at::Tensor& x) { return x.narrow(0, 0, x.size(0) - 1); }, kGroupWires).refused);
  EXPECT_TRUE(with_fault(
                  [](const at::Tensor& x) {
                    return at::cat({x, x.narrow(0, 0, 4)});
                  },
                  kGroupWires)
                  .refused);
  EXPECT_TRUE(
      with_fault([](const at::Tensor& x) { return x.narrow(1, 1, x.size(1) - 1); }, kGroupWires).refused);
  EXPECT_TRUE(with_fault([](const at::Tensor& x) { return x.to(at::kFloat); }, kGroupWires).refused);
}

// --- sums of gradients ---

Plan summed_narrow(Plan plan) {
  plan.wire_reduce = WireReduce::kBf16;
  return plan;
}

/// Rounds what comes from others to be summed, when it arrives; in two levels sums of nodes, too.
Hook rounding_gradients(const WireScene& s, const Plan& plan) {
  const auto placement = std::make_shared<Placement>(plan, s.model, s.step);
  const auto schedule = std::make_shared<Schedule>(build_schedule(plan, s.model, s.step));
  return [=, cluster = s.cluster](const ExchangeCall& call, std::vector<Message>& in) {
    const Op& op = schedule->ops[idx(call.op)];
    if (op.kind != OpKind::kReduce && op.kind != OpKind::kReduceScatter) return;
    const i64 rounds = num_exchanges(op, *placement, cluster);
    if (call.round >= (op.kind == OpKind::kReduce ? rounds / 2 : rounds)) return;  // sums are told
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (call.participants[i] == call.self) continue;
      for (at::Tensor& tensor : in[i].tensors) tensor = tensor.to(at::kBFloat16).to(tensor.scalar_type());
    }
  };
}

/// In device order, in the dtype of gradients, and what a device sums itself as it is.
TEST(WireReduce, EqualsAStepWhoseGradientsAreRoundedOnArrivalToTheBit) {
  WireScene s;
  for (const bool in_two_levels : {false, true}) {
    if (in_two_levels) {
      for (Node& node : s.cluster.nodes) node.local *= 1000;
    }
    int count = 0;
    for (NamedPlan& named : strategy_plans(s.model, s.cluster, small_step())) {
      for (const bool divided : {false, true}) {
        named.plan.shard_optimizer = divided;
        const Ended plain = s.run(named.plan), rounded = s.run(named.plan, rounding_gradients(s, named.plan)),
                    narrow = s.run(summed_narrow(named.plan));
        EXPECT_TRUE(same_bits(narrow, rounded)) << named.name << divided;
        const bool sums = !same_bits(rounded, plain);
        EXPECT_EQ(narrow.result.loss, plain.result.loss) << named.name;
        EXPECT_NEAR(narrow.result.grad_norm, plain.result.grad_norm, 4e-3 * plain.result.grad_norm);
        EXPECT_EQ(narrow.result.gradients_error > 0, sums) << named.name;
        EXPECT_LT(narrow.result.gradients_error, 0.004) << named.name;
        EXPECT_EQ(plain.result.gradients_error, 0);
        count += sums ? 1 : 0;
      }
    }
    EXPECT_GT(count, 10);
  }
}

/// Each visit of gathered weights leaves gradients that are rounded once.
TEST(WireReduce, SumsOfGatheredWeightsAreRoundedToo) {
  const WireScene s;
  for (const char* strategy : {"ep", "zebra"}) {
    Plan plan = find_strategy(strategy).make(s.model, s.cluster, small_step());
    use_fp64(plan);
    shard_weights(plan);
    const Ended plain = s.run(plan), rounded = s.run(plan, rounding_gradients(s, plan)),
                narrow = s.run(summed_narrow(plan));
    EXPECT_TRUE(same_bits(narrow, rounded)) << strategy;
    EXPECT_FALSE(same_bits(narrow, plain)) << strategy;
  }
}

/// Sums of the gradients of `steps` equal steps, which change nothing.
TensorsByName summed_over(const WireScene& s, const Plan& plan, i64 steps) {
  Session session(s.model, s.cluster, plan, {s.step, {}, {}});
  session.initialize(1);
  TensorsByName all;
  for (i64 step = 0; step < steps; ++step) {
    StepInput input = random_input(plan, s.model);
    input.step = step;
    session.train_step(input);
    for (const auto& [name, gradient] : session.gradients()) {
      const auto [found, is_new] = all.try_emplace(name, gradient.to(at::kDouble));
      if (!is_new) found->second += gradient;
    }
  }
  return all;
}

/// Of all gradients together: the relative rms error.
double error_of(const TensorsByName& got, const TensorsByName& exact) {
  at::Tensor squares = at::zeros({2}, at::kDouble);
  for (const auto& [name, gradient] : exact) squares += wire_loss(gradient, got.at(name));
  return std::sqrt(squares[0].item<double>() / squares[1].item<double>());
}

/// Equal gradients are rounded to the same side each time, unless what was lost is added.
TEST(WireReduce, WithFeedbackTheErrorOfManyStepsIsThatOfOne) {
  constexpr i64 kSteps = 16;
  WireScene s;
  for (const bool in_two_levels : {false, true}) {
    if (in_two_levels) {
      for (Node& node : s.cluster.nodes) node.local *= 1000;
    }
    Plan plan = find_strategy("ep").make(s.model, s.cluster, small_step());
    use_dtype(plan, Dtype::kFp32);
    Plan narrow = summed_narrow(plan), fed = narrow;
    fed.error_feedback = true;
    const TensorsByName exact = summed_over(s, plan, kSteps);
    const double without = error_of(summed_over(s, narrow, kSteps), exact),
                 with = error_of(summed_over(s, fed, kSteps), exact);
    EXPECT_GT(without, 5e-4);
    EXPECT_LT(with, 2.5 * without / kSteps);
  }
}

}  // namespace
}  // namespace hetermoe::testing
