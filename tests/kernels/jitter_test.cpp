#include "hetermoe/base/splitmix64.h"
#include "hetermoe/nn/router_jitter.h"
#include "tests/kernels/cases.h"

namespace hetermoe::testing {
namespace {

const RouterTraining kTraining{.jitter = 0.3, .seed = 5, .step = 7, .first_sequence = 11};

/// Of token `token`, counted from the beginning of sequence `first` of the step, in layer 2.
double expected_factor(i64 first, i64 token, i64 c, i64 seq_len, i64 width) {
  u64 key = kTraining.seed;
  for (const i64 part : {kTraining.step, i64{2}, kTraining.first_sequence + first + token / seq_len})
    key = splitmix64(key ^ static_cast<u64>(part));
  const u64 bits = splitmix64(key + static_cast<u64>(token % seq_len * width + c));
  const double uniform = (static_cast<double>(bits >> 11) + 0.5) / 9007199254740992.0;
  return 1 + kTraining.jitter * (2 * uniform - 1);
}

TEST(JitterKernel, FactorsAreThoseOfTheFormulaInFp64ToTheBit) {
  const i64 seq_len = 5, width = 7, first_token = 3;
  const RouterJitter jitter = router_jitter(kTraining, 2, 4, first_token, seq_len);
  const auto check = [&](const at::Tensor& got) {
    for (i64 r = 0; r < got.size(0); ++r) {
      for (i64 c = 0; c < width; ++c)
        EXPECT_EQ(got[r][c].item<double>(), expected_factor(4, first_token + r, c, seq_len, width));
    }
  };
  const at::Tensor ones = at::ones({13, width}, at::kDouble);
  check(jittered(ones, jitter, at::kDouble, Path::kGeneric));
  with_blocks_of({1, 3}, [&] {
    const LaunchRecorder recorder;
    check(jittered(ones, jitter, at::kDouble));
    EXPECT_EQ(recorder.counts(), (std::map<std::string, i64>{{"jitter", 1}}));
  });
}

TEST(JitterKernel, EqualsTheGenericPathToTheBit) {
  const RouterJitter jitter = router_jitter(kTraining, 2, 0, 2, 3);
  const std::pair<at::ScalarType, at::ScalarType> dtypes[] = {
      {at::kFloat, at::kFloat}, {at::kDouble, at::kDouble},  {at::kBFloat16, at::kFloat},
      {at::kHalf, at::kFloat},  {at::kFloat, at::kBFloat16}, {at::kFloat, at::kHalf}};
  with_blocks_of({1, 3}, [&] {
    for (const auto& [in, out] : dtypes) {
      for (const auto& [rows, width] : kRowsAndWidths) {
        const at::Tensor x = values({rows, width}, in, 1);
        EXPECT_TRUE(jittered(x, jitter, out).equal(jittered(x, jitter, out, Path::kGeneric)))
            << c10::toString(in) << " " << c10::toString(out) << " " << rows << " x " << width;
      }
    }
  });
}

}  // namespace
}  // namespace hetermoe::testing
