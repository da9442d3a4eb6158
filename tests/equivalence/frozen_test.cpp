#include <gtest/gtest.h>

#include "hetermoe/sim/memory.h"
#include "hetermoe/train/session/session.h"
#include "tests/support/case_count.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

// What is frozen costs nothing but its values, and the rest is trained as if nothing were frozen.
namespace hetermoe::testing {
namespace {

struct Choice {
  std::string name;
  std::vector<Unit> units;
};

/// Of a model with `tied` embeddings there is no head to freeze.
std::vector<Choice> choices(const ModelConfig& model) {
  const auto attention = [](i32 l) { return Unit{.layer = l, .part = UnitPart::kAttention}; };
  const auto expert = [](i32 l, ExpertId e) {
    return Unit{.layer = l, .part = UnitPart::kExperts, .expert = e};
  };
  const auto last = static_cast<i32>(model.num_layers) - 1;
  Choice every_second{"every second expert", {}}, all_but_one{"all but one expert", {}};
  for (const Unit& unit : units(model)) {
    if (unit.expert % 2 == 1) every_second.units.push_back(unit);
    if (!(unit == expert(last, 1))) all_but_one.units.push_back(unit);
  }
  std::vector<Choice> all = {{"embedding", {{}}},
                             {"first attention part", {attention(0)}},
                             {"embedding and first attention part", {{}, attention(0)}},
                             {"one expert", {expert(last, 0)}},
                             every_second,
                             all_but_one};
  if (!model.tie_embeddings) all.push_back({"head", {units(model).back()}});
  return all;
}

TensorsByName without(const ModelConfig& model, TensorsByName tensors, const std::vector<Unit>& frozen) {
  for (const ParamInfo& parameter : parameters(model)) {
    if (std::binary_search(frozen.begin(), frozen.end(), unit_of(model, parameter)))
      tensors.erase(parameter.name);
  }
  return tensors;
}

class FrozenUnits : public ::testing::TestWithParam<const char*> {
 protected:
  FrozenUnits() : model(load_model(GetParam())) {}
  StepOptions freezing(const std::vector<Unit>& units) const {
    return {.balance = model.aux_loss_coef > 0, .aux_group = 1, .backward = true, .frozen = units};
  }
  ModelConfig model;
  Cluster cluster = make_cluster(4, 3);
};

TEST_P(FrozenUnits, GradientsOfTheOthersAreTheReferences) {
  Turns turns(5);
  for (const Choice& choice : choices(model)) {
    for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
      for (const Recompute recompute :
           {Recompute::kLocal, Recompute::kOff, Recompute::kAhead, Recompute::kSelect}) {
        if (!turns.takes()) continue;
        Plan plan = named.plan;
        plan.recompute = recompute;
        if (recompute == Recompute::kAhead) plan.weight_gradients = WeightGradients::kAfter;
        RigOptions options;
        options.step = freezing(choice.units);
        Rig rig(model, cluster, plan, options);
        ASSERT_EQ(validate(rig.schedule(), plan, model, options.step), std::vector<std::string>{});
        const TensorsByName values = lively_values(model);
        rig.load(values);
        const StepInput input = random_input(plan, model);
        const StepResult result = rig.executor().run(input);
        ReferenceResult expected = reference_step(model, values, input.tokens, input.targets, {1});
        expected.grads = without(model, expected.grads, choice.units);
        const Comparison c = compare(result, rig.gradients(), expected);
        EXPECT_LE(c.max(), 1e-10) << named.name << ", frozen " << choice.name << ": " << c.worst;
      }
    }
  }
}

TEST_P(FrozenUnits, KeepTheirBitsWhileTheOthersMove) {
  for (const Choice& choice : choices(model)) {
    for (NamedPlan& named : strategy_plans(model, cluster, small_step())) {
      use_dtype(named.plan, Dtype::kFp32);
      Session::Options options;
      options.step = freezing(choice.units);
      Session session(model, cluster, named.plan, std::move(options));
      session.initialize(1);
      const TensorsByName before = session.values();
      StepInput input = random_input(named.plan, model);
      input.learning_rate = 0.1;
      for (int step = 0; step < 2; ++step) EXPECT_TRUE(session.train_step(input).updated);
      const TensorsByName trained = without(model, before, choice.units);
      for (const auto& [name, value] : session.values()) {
        const bool buffer = name.ends_with("e_score_correction_bias");
        EXPECT_EQ(at::equal(value, before.at(name)), trained.count(name) == 0 || buffer)
            << name << " " << named.name << ", frozen " << choice.name;
      }
    }
  }
}

TEST_P(FrozenUnits, HaveOpsAndMemoryForNothingButTheirValues) {
  for (const Choice& choice : choices(model)) {
    for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
      RigOptions options;
      options.step = freezing(choice.units);
      const Rig rig(model, cluster, named.plan, options);
      for (const Op& op : rig.schedule().ops) {
        if (op.state >= 0) {
          EXPECT_TRUE(rig.schedule().states[idx(op.state)].trainable) << to_string(op);
        }
        const bool of_embedding = op.kind == OpKind::kEmbed && op.phase == Phase::kBackward;
        EXPECT_FALSE(of_embedding && choice.units.front() == Unit{});
      }
      for (const std::unique_ptr<DeviceState>& state : rig.states()) {
        for (const Unit& unit : state->store().units()) {
          const UnitTensors tensors = state->store().tensors(unit);
          EXPECT_EQ(tensors.trainable, !std::binary_search(choice.units.begin(), choice.units.end(), unit));
          for (const LogicalTensor& tensor : tensors.tensors) {
            const bool trained = tensors.trainable && !tensor.buffer;
            EXPECT_EQ(tensor.grad.defined(), trained);
            EXPECT_EQ(tensor.exp_avg.defined(), trained);
            EXPECT_EQ(tensor.exp_avg_sq.defined(), trained);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Equivalence, FrozenUnits,
                         ::testing::Values("tiny", "tiny-qwen3", "tiny-deepseek-v3"), [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// The memory model and the store count the same.
TEST(StateBytes, AreThoseOfTheStoreToTheByte) {
  i64 devices = 0;
  for (const char* name : {"tiny", "tiny-qwen3", "tiny-deepseek-v2", "tiny-deepseek-v3"}) {
    const ModelConfig model = load_model(name);
    const Cluster cluster = make_cluster(4, 3);
    const std::vector<Unit> frozen = choices(model)[4].units;
    for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
      for (NamedPlan& named : strategy_plans(model, cluster, small_step())) {
        use_dtype(named.plan, dtype);
        for (const bool narrow : {false, true}) {
          if (narrow) named.plan.grad_dtype = dtype;
          for (const StepOptions& step : {StepOptions{}, StepOptions{.frozen = frozen}}) {
            RigOptions options;
            options.step = step;
            const Rig rig(model, cluster, named.plan, options);
            const ExpectedRouting routing(model);
            const BufferSizes sizes(rig.placement(), model, cluster, routing);
            for (const std::unique_ptr<DeviceState>& state : rig.states()) {
              EXPECT_EQ(sizes.state(state->device()).state(), static_cast<double>(state->store().bytes()))
                  << name << " " << named.name << " " << name_of(dtype) << (narrow ? " narrow" : "");
              ++devices;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(devices, 2000);
}

}  // namespace
}  // namespace hetermoe::testing
