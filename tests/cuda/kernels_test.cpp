#include "hetermoe/kernels/launch.h"

#include <gtest/gtest.h>

#include "hetermoe/device/accelerator.h"
#include "hetermoe/nn/device_routing.h"
#include "hetermoe/nn/embed_head.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/router.h"
#include "tests/kernels/cases.h"
#include "tests/nn/tiny_models.h"

// Every kernel of our own on a GPU against the same kernel on the host, which tests/kernels compares to fp64.
namespace hetermoe::testing {
namespace {

const c10::Device kGpu(c10::DeviceType::CUDA, 0);

class GpuKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0)
      GTEST_SKIP() << "no GPU here: " << (open_cuda().empty() ? "the driver shows none" : open_cuda());
    EXPECT_EQ(kernels::kernels_missing(kGpu), "");
  }
};

/// A result, and the size of the numbers that it is a sum of: its rounding is relative to them.
struct Result {
  Result(at::Tensor result, double of_terms = 1e-6) : tensor(std::move(result)), terms(of_terms) {}
  at::Tensor tensor;
  double terms;
};
using Results = std::vector<Result>;

/// f makes results from tensors that it moves to the given device. The first GPU run is compared with the
/// host, the second with the first, to the bit.
template <class F>
void expect_as_on_the_host(const F& f, double tolerance) {
  const Results gpu = f(kGpu), again = f(kGpu);
  const HostKernels host;
  const Results expected = f(c10::Device(at::kCPU));
  ASSERT_EQ(gpu.size(), expected.size());
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    EXPECT_LE(deviation(gpu[i].tensor.cpu(), expected[i].tensor, expected[i].terms), tolerance)
        << "result " << i;
    EXPECT_TRUE(gpu[i].tensor.equal(again[i].tensor)) << "result " << i;
  }
}

TEST_F(GpuKernels, RowsAndActivationsEqualThoseOnTheHost) {
  for (const at::ScalarType dtype : kAllDtypes) {
    for (const auto& [rows, width] : kRowsAndWidths) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width) + " " + c10::toString(dtype));
      const auto run = [&, rows = rows, width = width](c10::Device device) {
        const auto make = [&](at::IntArrayRef shape, u64 seed) {
          return values(shape, dtype, seed).to(device);
        };
        const at::Tensor in = make({rows, 2 * width}, 1), d = make({rows, width}, 2),
                         weight = make({width}, 3);
        const at::Tensor weights = values({rows}, wide_of(dtype), 4).to(device);
        const SwigluGradient swiglu = swiglu_backward(in, weights, d, RecomputeAct::kYes);
        const NormForward norm = rms_norm_forward(d, weight, 1e-5);
        const NormGradient dnorm = rms_norm_backward(d, weight, norm.rstd, make({rows, width}, 5));
        const at::Tensor index = (at::arange(rows, at::kLong) * 5).remainder(3).to(device);
        at::Tensor sum = make({3, width}, 6);
        add_rows_(sum, index, d);
        const at::Tensor logits = make({rows, width}, 7);
        const at::Tensor losses = gpu_cross_entropy(logits, at::zeros({rows}, index.options()), 0.5);
        const double dx_terms = 1;  // NormKernels.TheGradientOfANarrowRowIsADifference says why
        return Results{swiglu_forward(in, weights),
                       swiglu.dgate_up_C2F,
                       swiglu.act_CF,
                       swiglu.dweights_C,
                       norm.out,
                       norm.rstd,
                       {dnorm.dx, dx_terms},
                       dnorm.dweight_D,
                       sum,
                       losses,
                       logits,
                       gather_rows(make({3, width}, 8), index)};
      };
      expect_as_on_the_host(run, 2 * one_rounding(dtype));
    }
  }
}

TEST_F(GpuKernels, RotationAndUpdateEqualThoseOnTheHost) {
  for (const at::ScalarType dtype : kAllDtypes) {
    const auto run = [&](c10::Device device) {
      const at::Tensor x = values({2, 33, 3, 64}, dtype, 1).to(device);
      const RopeTable table = rope_table(33, 64, 1e4, x.options());
      std::vector<at::Tensor> list = {values({70001}, dtype, 2).to(device),
                                      values({64, 33}, dtype, 3).to(device)};
      const std::vector<at::Tensor> grads = {values({70001}, dtype, 4).to(device),
                                             values({64, 33}, dtype, 5).to(device)};
      AdamwState state = make_adamw_state(list);
      adamw_update(list, grads, state, {}, 1e-2, 0.5);
      return Results{rotate(x, table, RopeLayout::kHalves, RopeDirection::kForward),
                     rotate(x, table, RopeLayout::kPairs, RopeDirection::kBackward),
                     list[0],
                     list[1],
                     state.exp_avg[0],
                     state.exp_avg_sq[0],
                     squared_norm(grads)};
    };
    expect_as_on_the_host(run, one_rounding(dtype));
  }
}

/// Draws are the host's to the bit; what is rounded by them differs in the last bits of fp32.
TEST_F(GpuKernels, NarrowUpdatesAndJitterEqualThoseOnTheHost) {
  for (const at::ScalarType moment : {at::kFloat, at::kBFloat16}) {
    for (const bool master : {false, true}) {
      const auto run = [&](c10::Device device) {
        std::vector<at::Tensor> list = {values({70001}, at::kBFloat16, 2).to(device)};
        AdamwState state =
            make_adamw_state(list, {.master = master, .moment = moment == at::kFloat ? 4.0 : 2.0});
        for (const u64 seed : {4, 5})
          adamw_update(list, {values({70001}, at::kFloat, seed).to(device)}, state, {}, 1e-2, 0.5);
        return Results{list[0], state.exp_avg[0], state.exp_avg_sq[0]};
      };
      expect_as_on_the_host(run, one_rounding(at::kBFloat16));
    }
  }
  const RouterJitter jitter = router_jitter({.jitter = 0.1, .seed = 3, .step = 4}, 1, 2, 5, 40);
  const auto factors = [&](c10::Device device) {
    const at::Tensor x = values({97, 130}, at::kDouble, 1).to(device);
    return Results{jittered(x, jitter, at::kDouble), jittered(x.to(at::kBFloat16), jitter, at::kFloat),
                   jittered(x.to(at::kFloat), jitter, at::kBFloat16)};
  };
  expect_as_on_the_host(factors, 0);
}

/// Thousands of rows for one target, as spaces have in a text of bytes.
TEST_F(GpuKernels, ManyRowsOfOneTargetAreAddedInOrder) {
  const auto run = [&](c10::Device device) {
    const at::Tensor index = (at::arange(5000, at::kLong) * 7).remainder(11).clamp_max(2).to(device);
    at::Tensor sum = values({3, 2048}, at::kFloat, 1).to(device);
    add_rows_(sum, index, values({5000, 2048}, at::kBFloat16, 2).to(device));
    return Results{sum};
  };
  expect_as_on_the_host(run, 0);
}

TEST_F(GpuKernels, RoutingEqualsThatOnTheHost) {
  for (ModelConfig model : tiny_models()) {
    if (model.group_score == GroupScore::kNone) model.num_experts = 61;
    const auto run = [&](c10::Device device) {
      const at::Tensor logits = values({700, model.num_experts}, at::kFloat, 1).to(device);
      const at::Tensor bias = values({model.num_experts}, at::kFloat, 2, 0.1).to(device);
      const Routed routed = gpu_route(model, logits, model.router_bias ? bias : at::Tensor(), 70, {});
      OwnerTable owners;
      for (i32 e = 0; e < model.num_experts; ++e) owners.push_back({{e % 3, 0.3}, {3, 0.7}});
      const DeviceSplit split =
          split_by_owner_on_device(routed.topk_TK, owners_on_device(owners, 4, device), RowDedup::kOn);
      const i64 rows = split.row_begin_D1[4].item<int>();
      return Results{routed.scores_TE,
                     routed.weights_TK,
                     routed.topk_TK,
                     routed.counts_BE,
                     split.token_R.narrow(0, 0, rows),
                     split.row_C,
                     split.expert_C,
                     split.flat_C,
                     split.row_begin_D1,
                     split.copy_begin_D1};
    };
    expect_as_on_the_host(run, 2e-6);
  }
}

}  // namespace
}  // namespace hetermoe::testing
