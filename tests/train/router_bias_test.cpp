#include "hetermoe/train/job/router_bias.h"

#include "tests/support/error_of.h"
#include "tests/train/resumed_run.h"

namespace hetermoe {
namespace {

const char* const kBias = "model.layers.1.mlp.gate.e_score_correction_bias";

std::vector<std::pair<std::string, std::string>> options(const char* rate, const char* strategy) {
  return {{"model", "tiny-deepseek-v3"}, {"train.router_bias_rate", rate}, {"strategy", strategy}};
}

TEST(RouterBias, FollowsWhatExpertsGotByTheRate) {
  for (const char* strategy : {"single", "ep", "zebra"}) {
    const WorkFolder folder;
    TinyRun rig(folder.path(), options("0.001", strategy));
    const TinyRun::End end = rig.run(Checkpoints::kOff);
    ASSERT_EQ(end.outcome.records.size(), 6u);
    const at::Tensor bias = end.values.at(kBias);
    // Six steps of +-0.001 or 0: whole multiples, up and down.
    const at::Tensor steps = (bias / 0.001).round();
    EXPECT_TRUE(at::allclose(bias, steps * 0.001, 1e-5, 1e-7)) << bias;
    EXPECT_LE(steps.abs().max().item<float>(), 6);
    EXPECT_GT(steps.max().item<float>(), 0);
    EXPECT_LT(steps.min().item<float>(), 0);
  }
}

TEST(RouterBias, OneStepByHand) {
  const WorkFolder folder;
  TinyRun rig(folder.path(), options("0", "ep"));
  Session::Options how;
  how.step = step_options(rig.job, rig.model);
  Session session(rig.model, rig.cluster, rig.plan, how);
  session.initialize(1);
  const TensorsByName before = session.values();
  at::Tensor counts = at::zeros({3, 8}, at::kLong);
  counts[1] = at::tensor({4, 0, 2, 2, 1, 3, 2, 2}, at::kLong);  // mean 2
  adjust_router_bias(session.states(), rig.model, counts, 0.5);
  const TensorsByName after = session.values();
  EXPECT_TRUE(at::equal(after.at(kBias), at::tensor({-0.5f, 0.5f, 0.f, 0.f, 0.5f, -0.5f, 0.f, 0.f})));
  for (const auto& [name, value] : after) {
    if (name != kBias) {
      EXPECT_TRUE(at::equal(value, before.at(name))) << name;
    }
  }
}

/// With weights that stay as they are, so that nothing but the bias changes choices.
double late_imbalance(const char* rate) {
  const WorkFolder folder;
  std::vector<std::pair<std::string, std::string>> more = options(rate, "ep");
  more.insert(more.end(), {{"train.steps", "40"},
                           {"train.seq_len", "32"},
                           {"train.sequences", "16"},
                           {"train.learning_rate", "0"}});
  const TinyRun::End end = TinyRun(folder.path(), more).run(Checkpoints::kOff);
  double sum = 0;
  for (std::size_t i = 30; i < 40; ++i) sum += end.outcome.records[i].expert_max_over_mean / 10;
  return sum;
}

TEST(RouterBias, EvensOutTheLoad) { EXPECT_LT(late_imbalance("0.003"), 0.9 * late_imbalance("0")); }

TEST(RouterBias, IsResumedToTheBit) {
  // The learning rate must not depend on the number of steps.
  std::vector<std::pair<std::string, std::string>> constant = options("0.01", "ep");
  constant.insert(constant.end(), {{"train.warmup_steps", "0"}, {"train.final_share", "1"}});
  expect_resumed_to_the_bit(constant);
}

TEST(RouterBias, ModelsWithoutOneAreRefused) {
  const WorkFolder folder;
  EXPECT_EQ(
      error_of<ConfigError>([&] {
        TinyRun(folder.path(), {{"train.router_bias_rate", "0.001"}});
      }),
      "[train.router_bias_rate] got 0.001, but model tiny has no e_score_correction_bias: expected 0, or "
      "a model of family deepseek_v3, kimi_k2, glm4_moe, minimax_m2, ernie4_5_moe");
}

}  // namespace
}  // namespace hetermoe
