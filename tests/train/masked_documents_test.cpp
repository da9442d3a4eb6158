#include <gtest/gtest.h>

#include "hetermoe/train/run/verify.h"
#include "tests/train/tiny_run.h"

// Documents that are masked, through every kind of plan.
namespace hetermoe {
namespace {

/// Documents of 1 to 11 tokens: shorter and longer than a sequence of 8, beginning anywhere in one.
Dataset divided_data(bool masked) {
  Dataset out = counting_data();
  out.masked = masked;
  Source& source = out.sources[0];
  const std::vector<i64> tokens = source.all.tokens(0, source.all.size());
  TokenBuilder again(TokenType::kU8);
  for (const i64 token : tokens) again.add(token);
  std::vector<i64> starts;
  for (i64 at = 0, d = 0; at < source.all.size(); at += 1 + d * 7 % 11, ++d) starts.push_back(at);
  TokenStream stream;
  stream.append(again.finish(), starts);
  source.all = stream;
  source.train = stream.part(0, 4000);
  return out;
}

VerifyResult verify(const TinyRun& run, bool masked) {
  const Sampler sampler(divided_data(masked), {run.job.train.seq_len, run.job.train.seed});
  return verify_plan(run.job, run.model, run.cluster, run.plan,
                     sampler.batch(0, run.job.train.sequences, run.model.vocab));
}

TEST(MaskedDocuments, LossAndGradientsAreTheReferencesUnderEveryPlan) {
  const WorkFolder folder;
  const std::vector<Settings> plans = {
      {{"strategy", "single"}, {"plan.attention", "0"}},
      {{"strategy", "ep"}, {"plan.attention", "0,6"}},
      {{"strategy", "zebra"}, {"plan.attention", "0,1"}, {"plan.experts", "6,7,8"}, {"plan.chunks", "3"}},
      {{"strategy", "zebra"}, {"plan.attention", "0"}, {"plan.experts", "6"}, {"plan.recompute", "local"}},
      {{"strategy", "zebra"}, {"plan.attention", "0"}, {"plan.experts", "6"}, {"plan.recompute", "off"}},
      {{"strategy", "pp-ep"}, {"plan.attention", "0,1,6,7"}, {"plan.stages", "2"}},
      {{"strategy", "roundpipe"}, {"cluster", "rtx4090x8"}, {"plan.attention", "0,1"}}};
  for (const Settings& plan : plans) {
    const TinyRun run(folder / "run", in_fp64(plan));
    const VerifyResult masked = verify(run, true);
    EXPECT_TRUE(masked.passed()) << plan[0].second << ": loss " << masked.loss_error << ", "
                                 << masked.gradients[0].name << " " << masked.gradients[0].error;
  }
}

TEST(MaskedDocuments, LossAndGradientsAreTheReferencesInEveryFamily) {
  const WorkFolder folder;
  for (const char* model : {"tiny", "tiny-qwen3", "tiny-deepseek-v2", "tiny-mistral"}) {
    const TinyRun run(folder / "run",
                      in_fp64({{"strategy", "single"}, {"plan.attention", "0"}, {"model", model}}));
    const VerifyResult masked = verify(run, true);
    EXPECT_TRUE(masked.passed()) << model << ": loss " << masked.loss_error << ", "
                                 << masked.gradients[0].name << " " << masked.gradients[0].error;
    EXPECT_GT(std::abs(masked.loss - verify(run, false).loss), 1e-6) << model << ": the mask changes nothing";
  }
}

}  // namespace
}  // namespace hetermoe
