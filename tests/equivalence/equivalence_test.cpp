#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <set>

#include "hetermoe/plan/row_nodes.h"
#include "hetermoe/planner/strategies/baselines.h"
#include "tests/support/case_count.h"
#include "tests/support/one_thread.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

// Any plan gives the loss and every gradient of the single-device reference.
namespace hetermoe::testing {
namespace {

/// How often the special cases occurred; a test asserts that they did.
struct Coverage {
  std::atomic<i64> runs = 0, empty_messages = 0, full_messages = 0;
  i64 zero_token_experts = 0, zero_share_devices = 0, idle_devices = 0, moves = 0, reduced_experts = 0;
  i64 indivisible_experts = 0, three_types = 0, zero_share_replicas = 0, by_node = 0;

  void count_plan(const Placement& p, const Schedule& schedule, const ModelConfig& model,
                  const Cluster& cluster) {
    std::set<i32> types;
    std::set<DeviceId> used;
    for (const Group& group : p.plan().groups) {
      used.insert(group.devices.begin(), group.devices.end());
      for (const DeviceId d : group.devices) types.insert(cluster.devices[static_cast<std::size_t>(d)].type);
      for (const LayerPlacement& layer : group.layers) {
        for (const ShareRow& row : layer.attention) {
          for (const Share& share : row) zero_share_devices += share.sequences == 0 ? 1 : 0;
        }
        for (const auto& owners : layer.experts) {
          for (const ExpertOwner& owner : owners) zero_share_replicas += owner.share == 0 ? 1 : 0;
        }
      }
    }
    for (i32 l = 0; l < p.num_layers(); ++l) {
      const auto owners = static_cast<i64>(p.owners(0, l).size());
      indivisible_experts += owners > 1 && model.num_experts % owners != 0 ? 1 : 0;
    }
    idle_devices += cluster.num_devices() - static_cast<i64>(used.size());
    three_types += types.size() == 3 ? 1 : 0;
    for (const Op& op : schedule.ops) moves += op.kind == OpKind::kMove ? 1 : 0;
    by_node += !p.plan().row_nodes.empty() && may_pass_rows_on(p.plan(), cluster) ? 1 : 0;
    for (const State& state : schedule.states)
      reduced_experts += state.part == State::Part::kExperts && state.devices.size() > 1 ? 1 : 0;
  }
  void count_result(const StepResult& result, const ModelConfig& model) {
    for (i64 l = 0; l < model.num_layers; ++l) {
      if (model.is_moe(l)) zero_token_experts += result.counts_LE[l].eq(0).sum().item<i64>();
    }
    ++runs;
  }
};

/// Counts what sources dispatch to owners on other devices.
HookedTransport::Hook message_counter(Coverage& coverage) {
  return [&coverage](const ExchangeCall& call, std::vector<Message>& out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool to_owner = call.name.starts_with("dispatch.F") && !out[i].tensors.empty();
      if (call.participants[i] == call.self || !to_owner) continue;
      ++(out[i].tensors[0].size(0) == 0 ? coverage.empty_messages : coverage.full_messages);
    }
  };
}

Comparison run_and_compare(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                           const StepOptions& step, Coverage& coverage) try {
  const std::vector<std::string> faults = validate(plan, model, cluster);
  if (!faults.empty()) return {1, 1, 1, "invalid plan: " + faults[0]};
  RigOptions options;
  options.step = step;
  options.on_send = message_counter(coverage);
  Rig rig(model, cluster, plan, options);
  const bool fp64 = plan.dtype[0] == Dtype::kFp64;
  TensorsByName values = lively_values(model);
  for (auto& [name, value] : values) {
    if (!fp64) value = value.to(at::kFloat).to(at::kDouble);
  }
  rig.load(values);
  const StepInput input = random_input(plan, model);
  const StepResult result = rig.executor().run(input);
  coverage.count_plan(rig.placement(), rig.schedule(), model, cluster);
  coverage.count_result(result, model);
  EXPECT_TRUE(rig.differing_replicas().empty()) << *rig.differing_replicas().begin();
  return compare(result, rig.gradients(),
                 reference_step(model, values, input.tokens, input.targets, aux_of(step)));
} catch (const c10::Error& error) {
  return {1, 1, 1, error.what_without_backtrace()};
} catch (const std::exception& error) {
  return {1, 1, 1, error.what()};
}

StepOptions step_options(const ModelConfig& model, i64 aux_group = 1) {
  return {model.aux_loss_coef > 0 && model.num_moe_layers() > 0, aux_group, true};
}

StrategyRequest small_request() {
  StrategyRequest request;
  request.seq_len = 4;
  request.sequences = 5;
  request.microbatches = 2;
  return request;
}

/// The first stage has all that the others can spare.
std::vector<i64> uneven(i64 total, i64 stages) {
  std::vector<i64> parts(static_cast<std::size_t>(stages), 1);
  parts.front() = total - stages + 1;
  return parts;
}

class EveryModel : public ::testing::TestWithParam<const char*> {};

// Claim: every strategy on 1, 2, 3, 4 and 8 devices equals the reference in fp64 within 1e-10, for five model
// families
TEST_P(EveryModel, EveryStrategyOnTwoToEightDevices) {
  ModelConfig model = load_model(GetParam());
  if (model.aux_loss_coef == 0) model.aux_loss_coef = 0.01;  // DeepSeek's files have none
  Coverage coverage;
  for (const i32 num_devices : {1, 2, 3, 4, 8}) {
    const Cluster cluster = make_cluster(num_devices, std::min(num_devices, 3));
    for (const NamedPlan& named : strategy_plans(model, cluster, small_request())) {
      const Comparison c = run_and_compare(model, cluster, named.plan, step_options(model), coverage);
      EXPECT_LE(c.max(), kTolerance) << named.name << " on " << num_devices << ": loss " << c.loss << ", aux "
                                     << c.aux_loss << ", gradient " << c.gradient << " of " << c.worst;
    }
  }
  EXPECT_EQ(coverage.runs, 1 + 4 * 14);
  EXPECT_GT(coverage.empty_messages, 0);
  EXPECT_GT(coverage.full_messages, 0);
  EXPECT_GT(coverage.zero_share_devices, 0);
  EXPECT_GT(coverage.indivisible_experts, 0);
  EXPECT_GT(coverage.three_types, 0);
  EXPECT_GT(coverage.moves, 0);
  EXPECT_GT(coverage.reduced_experts, 0);
}

INSTANTIATE_TEST_SUITE_P(Equivalence, EveryModel,
                         ::testing::Values("tiny", "tiny-qwen3", "tiny-olmoe", "tiny-deepseek-v2",
                                           "tiny-deepseek-v3", "tiny-qwen2-moe", "tiny-glm4-moe",
                                           "tiny-minimax-m2", "tiny-ernie", "tiny-gpt-oss"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// Seeds of one shard.
class RandomPlans : public ::testing::TestWithParam<int> {};

// Claim: random plans equal the reference: uneven shares, devices and experts without tokens, three device
// types, replicas, expert counts that divide nothing, moves; their `Coverage` counts assert that the special
// cases occurred
TEST_P(RandomPlans, EqualTheReference) {
  constexpr u64 kSeeds = 60;
  Coverage coverage;
  for (u64 i = 0; i < kSeeds; ++i) {
    const RandomCase c = random_case(static_cast<u64>(GetParam()) * kSeeds + i);
    const Comparison compared = run_and_compare(c.model, c.cluster, c.plan, c.step, coverage);
    EXPECT_LE(compared.max(), kTolerance)
        << describe(c) << ": loss " << compared.loss << ", aux " << compared.aux_loss << ", gradient "
        << compared.gradient << " of " << compared.worst;
  }
  EXPECT_EQ(coverage.runs, static_cast<i64>(kSeeds));
  EXPECT_GT(coverage.zero_token_experts, 0);
  EXPECT_GT(coverage.empty_messages, 0);
  EXPECT_GT(coverage.full_messages, 0);
  EXPECT_GT(coverage.zero_share_devices, 0);
  EXPECT_GT(coverage.zero_share_replicas, 0);
  EXPECT_GT(coverage.idle_devices, 0);
  EXPECT_GT(coverage.indivisible_experts, 0);
  EXPECT_GT(coverage.three_types, 0);
  EXPECT_GT(coverage.moves, 0);
  EXPECT_GT(coverage.reduced_experts, 0);
  EXPECT_GT(coverage.by_node, 0);
}

INSTANTIATE_TEST_SUITE_P(Equivalence, RandomPlans, ::testing::Range(0, 4));

/// The choices of a plan that change what is sent, kept or ordered, all with all; per merge every pair of
/// two.
// Claim: every pair of choices (in `check-all` every combination) of recompute, gradients of weights, chunks,
// row dedup, queue binding and load-balancing group equals the reference
TEST(Equivalence, EveryCombinationOfPlanOptions) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = make_cluster(3, 3);
  StrategyRequest request = small_request();
  request.sequences = 4, request.experts_moved = {1, 0};
  constexpr std::array<int, 6> kChoices = {
      kEnumCount<Recompute>, kEnumCount<WeightGradients>, 3, 2, kEnumCount<QueueBinding>, 3};
  constexpr int kCombinations = std::accumulate(kChoices.begin(), kChoices.end(), 1, std::multiplies<>());
  const int stride = case_count(13, 1);  // prime to the number of combinations
  std::set<std::array<int, 4>> pairs;    // choice and its value, another and its value
  Coverage coverage;
  for (const char* shape : {"zebra", "pipeline"}) {
    Plan plan = shape == std::string("zebra") ? find_strategy("zebra").make(model, cluster, request)
                                              : make_pipeline(model, cluster, request);
    use_fp64(plan);
    for (int i = 0; i < kCombinations; i += stride) {
      std::array<int, 6> values = {};
      int rest = i;
      for (std::size_t choice = 0; choice < kChoices.size(); ++choice) {
        values[choice] = rest % kChoices[choice];
        rest /= kChoices[choice];
      }
      plan.recompute = static_cast<Recompute>(values[0]);
      plan.weight_gradients = static_cast<WeightGradients>(values[1]);
      plan.chunks = 1 + values[2];
      plan.row_dedup = values[3] == 0;
      plan.queue_binding = static_cast<QueueBinding>(values[4]);
      const i64 aux_group = values[5];
      // 1F1B does not give every forward before the first backward, which a loss over the step needs.
      if (aux_group == 0 && plan.order == OrderPolicy::kOneFOneB) continue;
      const Comparison c = run_and_compare(model, cluster, plan, step_options(model, aux_group), coverage);
      EXPECT_LE(c.max(), kTolerance) << shape << " " << i << ": loss " << c.loss << ", aux " << c.aux_loss
                                     << ", gradient " << c.gradient << " of " << c.worst;
      for (int a = 0; a < 6; ++a)
        for (int b = 0; b < a; ++b) pairs.insert({a, values[idx(a)], b, values[idx(b)]});
    }
  }
  EXPECT_EQ(pairs.size(), 132U);
  EXPECT_GE(coverage.runs, case_count<i64>(kCombinations / 13, kCombinations * 5 / 3));
}

/// What `hetermoe compare` tunes is no picture: every system's plan runs, the pipelines of mixed types with
/// uneven stages and the moved experts of Asym-EA, too.
TEST(Equivalence, TunedPlansOfTheComparedSystems) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  Predictor predictor(model, cluster);
  Setting setting;
  setting.seq_len = 4;
  setting.sequences = 8;
  Coverage coverage;
  const std::vector<std::pair<const char*, Tuned>> systems = {
      {"ep", tune_ep(predictor, setting)},
      {"ep on the newer ones", tune_ep(predictor, setting, default_roles(cluster).attention)},
      {"dist-ep", tune_dist_ep(predictor, setting)},
      {"zebra", tune_zebra(predictor, setting, true)},
      {"pp-ep", tune_pp(predictor, setting)}};
  for (const auto& [name, tuned] : systems) {
    ASSERT_EQ(tuned.infeasible, "") << name;
    Plan plan = tuned.plan;
    use_fp64(plan);
    const Comparison c = run_and_compare(model, cluster, plan, step_options(model), coverage);
    EXPECT_LE(c.max(), kTolerance) << name << ": loss " << c.loss << ", gradient " << c.gradient << " of "
                                   << c.worst;
  }
  EXPECT_EQ(coverage.runs, 5);
  EXPECT_EQ(systems.back().second.plan.order, OrderPolicy::kOneFOneB);
  EXPECT_GT(systems.back().second.plan.groups.size(), 1U);  // data parallel over pipelines
}

/// Pipelines whose stages have expert parallelism or zebra inside: 2 and 3 stages, equal and not, one after
/// another and in windows, on one, two and three types.
TEST(Equivalence, StagesOfSeveralDevices) {
  ModelConfig model = tiny_mixtral();
  model.num_layers = 4;
  model.dense_layer.assign(4, false);
  Coverage coverage;
  for (const i32 types : {1, 2, 3}) {
    const Cluster cluster = make_cluster(8, types);
    for (const char* strategy : {"pp-ep", "pp-zebra"}) {
      for (int i = 0; i < 2 * 2 * 3; ++i) {
        StrategyRequest request = small_request();
        request.sequences = 6, request.microbatches = 4;
        request.stages = 2 + i % 2;
        request.window = 1 + i / 4;
        if (i / 2 % 2 == 1)
          request.stage_layers = request.stages == 2 ? std::vector<i64>{3, 1} : std::vector<i64>{1, 2, 1};
        const Roles roles = roles_of(find_strategy(strategy).use, cluster, {});
        if (i / 2 % 2 == 1)
          request.stage_attention = uneven(static_cast<i64>(roles.attention.size()), request.stages);
        if (static_cast<i64>(std::min(roles.attention.size(), roles.experts.size())) < request.stages)
          continue;
        Plan plan = find_strategy(strategy).make(model, cluster, request);
        plan.recompute = static_cast<Recompute>(i % 3);
        plan.shard_optimizer = i % 2 == 0;
        use_fp64(plan);
        const Comparison c = run_and_compare(model, cluster, plan, step_options(model), coverage);
        EXPECT_LE(c.max(), kTolerance) << strategy << " " << i << " on " << types << " types: loss " << c.loss
                                       << ", gradient " << c.gradient << " of " << c.worst;
      }
    }
  }
  EXPECT_GE(coverage.runs, 60);
  EXPECT_GT(coverage.three_types, 0);
}

// Claim: an expert that nobody chooses has gradient exactly 0 on every replica
TEST(Equivalence, ExpertThatIsNeverChosenHasZeroGradientOnEveryReplica) {
  const ModelConfig model = tiny_deepseek_v3();
  const Cluster cluster = make_cluster(4);
  TensorsByName values = lively_values(model);
  for (auto& [name, value] : values) {
    if (name.ends_with("e_score_correction_bias")) value[3] = -100;
  }
  for (const NamedPlan& named : strategy_plans(model, cluster, small_request())) {
    Rig rig(model, cluster, named.plan, {step_options(model), {}, {}, {}, {}, {}});
    rig.load(values);
    const StepInput input = random_input(named.plan, model);
    const StepResult result = rig.executor().run(input);
    const TensorsByName gradients = rig.gradients();
    const Comparison c =
        compare(result, gradients, reference_step(model, values, input.tokens, input.targets, {1}));
    EXPECT_LE(c.max(), kTolerance) << named.name << " " << c.worst;
    i64 seen = 0;
    for (const auto& [name, gradient] : gradients) {
      if (name.find("experts.3.") == std::string::npos) continue;
      EXPECT_TRUE(gradient.eq(0).all().item<bool>()) << named.name << " " << name;
      ++seen;
    }
    EXPECT_EQ(seen, 3 * model.num_moe_layers());
    for (i64 l = 0; l < model.num_layers; ++l) EXPECT_EQ(result.counts_LE[l][3].item<i64>(), 0);
  }
}

// Claim: fp32 on the production kernels within 1e-4
TEST(Equivalence, Fp32WithinOneInTenThousand) {
  Coverage coverage;
  for (const char* name : {"tiny", "tiny-qwen3", "tiny-deepseek-v3"}) {
    ModelConfig model = load_model(name);
    model.aux_loss_coef = 0.01;
    const Cluster cluster = make_cluster(4);
    for (NamedPlan& named : strategy_plans(model, cluster, small_request())) {
      use_dtype(named.plan, Dtype::kFp32);
      const Comparison c = run_and_compare(model, cluster, named.plan, step_options(model), coverage);
      EXPECT_LE(c.max(), 1e-4) << name << " " << named.name << ": loss " << c.loss << ", gradient "
                               << c.gradient << " of " << c.worst;
    }
  }
  EXPECT_EQ(coverage.runs, 3 * 14);
}

/// Delays ops of every lane for up to 300 us, differently in every run.
std::function<void(const Op&, DeviceId)> random_delays(u64 seed) {
  const auto count = std::make_shared<std::atomic<u64>>(seed << 32);
  return [count](const Op&, DeviceId) {
    Chooser choose(++*count);
    if (choose.chance(0.4)) std::this_thread::sleep_for(std::chrono::microseconds(choose.between(1, 300)));
  };
}

bool bit_equal(const TensorsByName& a, const TensorsByName& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && at::equal(x.second, y.second);
  });
}

// Claim: bit-equal over repeats and under random delays, fp64 and fp32
TEST(Equivalence, BitEqualOverRunsAndUnderDelays) {
  std::vector<RandomCase> cases;
  for (u64 seed = 1000; seed < 1012; ++seed) cases.push_back(random_case(seed));
  const Cluster cluster = make_cluster(4);
  for (const NamedPlan& named : strategy_plans(tiny_qwen3(), cluster, small_request()))
    cases.push_back({0, tiny_qwen3(), cluster, named.plan, step_options(tiny_qwen3())});
  for (RandomCase& c : cases) {
    for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32}) {
      c.plan.dtype.assign(c.plan.dtype.size(), dtype);
      c.plan.wire_forward = c.plan.wire_backward = wire_of(dtype);
      const StepInput input = random_input(c.plan, c.model);  // learning rate 0: every step is the same
      RigOptions options;
      options.step = c.step;
      Rig rig(c.model, c.cluster, c.plan, options);
      rig.load(lively_values(c.model));
      const StepResult first = rig.executor().run(input);
      const TensorsByName expected = rig.gradients();
      for (int run = 0; run < 3; ++run) {
        const bool delayed = run > 0;
        options.executor.before_op = random_delays(static_cast<u64>(run));
        Rig other(c.model, c.cluster, c.plan, options);
        Rig& again = delayed ? other : rig;
        if (delayed) again.load(lively_values(c.model));
        const StepResult result = again.executor().run(input);
        EXPECT_EQ(result.loss, first.loss) << c.plan.strategy << " " << describe(c);
        EXPECT_EQ(result.aux_loss, first.aux_loss);
        EXPECT_EQ(result.grad_norm, first.grad_norm);
        EXPECT_TRUE(bit_equal(again.gradients(), expected)) << c.plan.strategy << " " << describe(c);
      }
    }
  }
}

TEST(Equivalence, ScheduleTextRunsAsAnExplicitOrder) {
  Coverage coverage;
  for (u64 seed = 2000; seed < 2010; ++seed) {
    RandomCase c = random_case(seed);
    c.plan.explicit_order = to_text(build_schedule(c.plan, c.model, c.step));
    c.plan.order = OrderPolicy::kExplicit, c.plan.expected.reset();
    const Comparison compared = run_and_compare(c.model, c.cluster, c.plan, c.step, coverage);
    EXPECT_LE(compared.max(), kTolerance)
        << describe(c) << ": " << compared.gradient << " of " << compared.worst;
  }
}

}  // namespace
}  // namespace hetermoe::testing
