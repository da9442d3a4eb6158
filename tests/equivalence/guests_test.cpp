#include <gtest/gtest.h>

#include "tests/support/guest_plan.h"
#include "tests/support/rig.h"

// Experts that are lent for single exchanges: loss and all gradients are the reference's.
namespace hetermoe::testing {
namespace {

constexpr double kTolerance = 1e-10;

struct Ran {
  Comparison difference;
  StepResult result;
  TensorsByName gradients;
  i64 guests = 0;  ///< of all layers and microbatches
};

i64 count_guests(Rig& rig) {
  const RecordedRouting routing = rig.executor().recorded_routing();
  i64 guests = 0;
  for (const Op& op : rig.schedule().ops) {
    if (op.kind != OpKind::kLend || op.phase != Phase::kForward) continue;
    const ExchangeLoad load = routing.exchange(rig.placement(), op.group, op.layer, op.microbatch, 0);
    guests += static_cast<i64>(load.guests.size());
  }
  return guests;
}

/// The experts that these tokens choose, as a replayed trace gives them.
std::vector<at::Tensor> random_choices(const Plan& plan, const ModelConfig& model, u64 seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  std::vector<at::Tensor> choices;
  for (i64 l = 0; l < model.num_layers; ++l) {
    const i64 sequences = total_sequences(plan);
    // Squares of uniform numbers: the first experts are chosen most.
    const at::Tensor scores =
        at::rand({sequences, plan.seq_len, model.num_experts}, generator, at::TensorOptions()) *
        at::arange(2 * model.num_experts, model.num_experts, -1);
    choices.push_back(model.is_moe(l) ? std::get<1>(scores.topk(model.top_k)).to(at::kInt).contiguous()
                                      : at::Tensor());
  }
  return choices;
}

Ran run_step(const ModelConfig& model, const Cluster& cluster, const Plan& plan, const StepOptions& step,
             const std::vector<at::Tensor>& choices = {}, RigOptions options = {}) {
  options.step = step;
  Rig rig(model, cluster, plan, options);
  const TensorsByName values = lively_values(model);
  rig.load(values);
  StepInput input = random_input(plan, model);
  input.choices = choices;
  Ran out;
  out.result = rig.executor().run(input);
  out.gradients = rig.gradients();
  EXPECT_TRUE(rig.differing_replicas().empty());
  out.difference =
      compare(out.result, out.gradients,
              reference_step(model, values, input.tokens, input.targets, step.aux_group, choices));
  out.guests = count_guests(rig);
  return out;
}

TEST(Guests, EqualTheReferenceOnTwoAndThreeDeviceTypes) {
  ModelConfig model = tiny_mixtral();
  model.num_experts = 7;
  i64 guests = 0;
  for (const i32 num_types : {2, 3}) {
    const Cluster cluster = make_cluster(5, num_types);
    for (const char* strategy : {"ep", "zebra", "dist_ep"}) {
      for (const i32 chunks : {1, 3}) {
        StrategyRequest request = small_step();
        request.sequences = 6;
        Plan plan = find_strategy(strategy).make(model, cluster, request);
        plan.chunks = chunks;
        use_guests(plan, model);
        use_fp64(plan);
        const Ran with = run_step(model, cluster, plan, {true, 1, true});
        EXPECT_LE(with.difference.max(), kTolerance)
            << strategy << " " << num_types << " " << chunks << " " << with.difference.worst;
        const Ran again = run_step(model, cluster, plan, {true, 1, true});
        EXPECT_EQ(with.result.loss, again.result.loss);
        for (const auto& [name, gradient] : with.gradients)
          EXPECT_TRUE(at::equal(gradient, again.gradients.at(name))) << name;
        guests += with.guests;
      }
    }
  }
  EXPECT_GT(guests, 20);
}

TEST(Guests, RandomPlansEqualTheReference) {
  i64 runs = 0, guests = 0, with_guests = 0, groups = 0, replicas = 0, weights_after = 0;
  for (u64 seed = 1; runs < 80; ++seed) {
    RandomCase c = random_case(seed);
    if (!use_guests(c.plan, c.model, 1 + static_cast<i64>(seed % 3), 1 + static_cast<i64>(seed % 2)) ||
        !validate(c.plan, c.model, c.cluster).empty())
      continue;
    use_fp64(c.plan);
    const Ran got = run_step(c.model, c.cluster, c.plan, c.step);
    EXPECT_LE(got.difference.max(), kTolerance) << describe(c) << " " << got.difference.worst;
    ++runs;
    guests += got.guests;
    if (got.guests == 0) continue;
    ++with_guests;
    groups += c.plan.groups.size() > 1 ? 1 : 0;
    weights_after += c.plan.weight_gradients == WeightGradients::kAfter ? 1 : 0;
    for (const State& state : build_schedule(c.plan, c.model, c.step).states)
      replicas += state.part == State::Part::kExperts && state.devices.size() > 1 ? 1 : 0;
  }
  std::printf("%ld of %ld plans have guests, %ld in all\n", static_cast<long>(with_guests),
              static_cast<long>(runs), static_cast<long>(guests));
  EXPECT_GT(with_guests, 15);
  EXPECT_GT(groups, 2);
  EXPECT_GT(replicas, 5);
  EXPECT_GT(weights_after, 2);
}

/// Without tally: who lends what follows from the replayed choices, and no device tells another.
TEST(Guests, ForeseenByReplayedChoicesEqualTheReference) {
  i64 runs = 0, guests = 0, with_guests = 0;
  for (u64 seed = 1; runs < 60; ++seed) {
    RandomCase c = random_case(seed);
    if (!use_guests(c.plan, c.model)) continue;
    const std::vector<at::Tensor> choices = random_choices(c.plan, c.model, seed);
    if (!validate(c.plan, c.model, c.cluster).empty()) continue;
    use_fp64(c.plan);
    const Ran told = run_step(c.model, c.cluster, c.plan, c.step, choices);
    c.plan.tally = false;
    for (const Op& op : build_schedule(c.plan, c.model, c.step).ops) EXPECT_NE(op.kind, OpKind::kTally);
    const Ran got = run_step(c.model, c.cluster, c.plan, c.step, choices);
    EXPECT_LE(got.difference.max(), kTolerance) << describe(c) << " " << got.difference.worst;
    EXPECT_EQ(got.guests, told.guests);
    EXPECT_EQ(got.result.loss, told.result.loss);
    ++runs;
    guests += got.guests;
    with_guests += got.guests > 0 ? 1 : 0;
  }
  std::printf("%ld of %ld plans have guests, %ld in all\n", static_cast<long>(with_guests),
              static_cast<long>(runs), static_cast<long>(guests));
  EXPECT_GT(with_guests, 15);
}

}  // namespace
}  // namespace hetermoe::testing
