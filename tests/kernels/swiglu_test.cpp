#include "hetermoe/nn/swiglu.h"

#include "tests/kernels/cases.h"

namespace hetermoe::testing {
namespace {

struct Case {
  at::Tensor gate_up, weights, dact;
};

Case make_case(i64 rows, i64 width, at::ScalarType dtype) {
  return {values({rows, 2 * width}, dtype, 1, 2), values({rows}, wide_of(dtype), 2),
          values({rows, width}, dtype, 3)};
}

struct Expected {
  at::Tensor act, dgate_up, dweights;
};

/// In fp64, from the formula.
Expected exact(const Case& c, bool weighted) {
  const at::Tensor in = c.gate_up.to(at::kDouble), dact = c.dact.to(at::kDouble);
  const i64 width = in.size(1) / 2;
  const at::Tensor weights =
      weighted ? c.weights.to(at::kDouble).unsqueeze(1) : at::ones({in.size(0), 1}, at::kDouble);
  const at::Tensor gate = in.narrow(1, 0, width), up = in.narrow(1, width, width), s = gate.sigmoid();
  const at::Tensor silu = gate * s, dplain = dact * weights;
  return {weights * silu * up, at::cat({dplain * up * (s + silu * (1 - s)), dplain * silu}, 1),
          (dact * silu * up).sum(1)};
}

void expect_exact(const Case& c, bool weighted) {
  const at::ScalarType dtype = c.gate_up.scalar_type();
  const at::Tensor weights = weighted ? c.weights : at::Tensor();
  const Expected expected = exact(c, weighted);
  const double tolerance = one_rounding(dtype);
  EXPECT_LE(deviation(swiglu_forward(c.gate_up, weights), expected.act), tolerance);
  const SwigluGradient got = swiglu_backward(c.gate_up, weights, c.dact, RecomputeAct::kYes);
  EXPECT_LE(deviation(got.act_CF, expected.act), tolerance);
  EXPECT_LE(deviation(got.dgate_up_C2F, expected.dgate_up), tolerance);
  if (weighted) {
    // Summed in fp32 at least, whatever the elements.
    EXPECT_LE(deviation(got.dweights_C, expected.dweights), dtype == at::kDouble ? 1e-12 : 2e-5);
  }
}

TEST(SwigluKernel, EqualsTheFormulaForAllDtypesAndWidths) {
  with_blocks_of({1, 3}, [] {
    for (const at::ScalarType dtype : kAllDtypes) {
      for (const auto& [rows, width] : kRowsAndWidths) {
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width) + " " + c10::toString(dtype));
        const Case c = make_case(rows, width, dtype);
        expect_exact(c, true);
        expect_exact(c, false);
      }
    }
  });
}

TEST(SwigluKernel, EqualsTheGenericPath) {
  const HostKernels host;
  for (const at::ScalarType dtype : kAllDtypes) {
    const Case c = make_case(17, 353, dtype);
    const double tolerance = 2 * one_rounding(dtype);  // which rounds more often
    EXPECT_LE(
        deviation(swiglu_forward(c.gate_up, c.weights), swiglu_forward(c.gate_up, c.weights, Path::kGeneric)),
        tolerance);
    const auto own = swiglu_backward(c.gate_up, c.weights, c.dact, RecomputeAct::kYes),
               generic = swiglu_backward(c.gate_up, c.weights, c.dact, RecomputeAct::kYes, Path::kGeneric);
    EXPECT_LE(deviation(own.dgate_up_C2F, generic.dgate_up_C2F), tolerance);
    EXPECT_LE(deviation(own.act_CF, generic.act_CF), tolerance);
    EXPECT_LE(deviation(own.dweights_C, generic.dweights_C), dtype == at::kDouble ? 1e-12 : 1e-5);
  }
}

TEST(SwigluKernel, WorksInThePlaceOfItsInputsToTheBit) {
  const HostKernels host(2);
  for (const at::ScalarType dtype : kAllDtypes) {
    const Case c = make_case(9, 40, dtype);
    const SwigluGradient apart = swiglu_backward(c.gate_up, c.weights, c.dact, RecomputeAct::kYes);
    SwigluGradient in_place{c.gate_up.clone(), c.dact.clone(), at::empty_like(c.weights)};
    swiglu_backward_out(in_place, in_place.dgate_up_C2F, c.weights, in_place.act_CF);
    EXPECT_TRUE(in_place.dgate_up_C2F.equal(apart.dgate_up_C2F));
    EXPECT_TRUE(in_place.act_CF.equal(apart.act_CF));
    EXPECT_TRUE(in_place.dweights_C.equal(apart.dweights_C));
  }
}

TEST(SwigluKernel, RowsAtOddAddressesAreReadOneByOne) {
  const HostKernels host;
  const Case whole = make_case(5, 16, at::kBFloat16);
  const at::Tensor shifted = at::empty({5 * 32 + 1}, at::kBFloat16).narrow(0, 1, 5 * 32).view({5, 32});
  shifted.copy_(whole.gate_up);
  EXPECT_TRUE(swiglu_forward(shifted, whole.weights).equal(swiglu_forward(whole.gate_up, whole.weights)));
}

TEST(SwigluKernel, SurvivesExtremesAndPassesNansOn) {
  const HostKernels host;
  const at::Tensor gate = at::tensor({-1e30f, -100.f, 0.f, 88.f, 1e30f}).view({5, 1});
  const at::Tensor in = at::cat({gate, at::ones_like(gate)}, 1);
  EXPECT_TRUE(at::allclose(swiglu_forward(in, {}), at::silu(gate), 1e-6, 1e-30));
  const SwigluGradient grad = swiglu_backward(in, {}, at::ones_like(gate), RecomputeAct::kNo);
  EXPECT_TRUE(grad.dgate_up_C2F.isfinite().all().item<bool>());
  EXPECT_TRUE(swiglu_forward(at::full({1, 4}, NAN, at::kBFloat16), {}).isnan().all().item<bool>());
}

TEST(SwigluKernel, IsOneLaunchEachWay) {
  const HostKernels host;
  const Case c = make_case(3, 8, at::kBFloat16);
  const LaunchRecorder recorder;
  swiglu_forward(c.gate_up, c.weights);
  swiglu_backward(c.gate_up, c.weights, c.dact, RecomputeAct::kYes);
  EXPECT_EQ(recorder.counts(), (std::map<std::string, i64>{{"swiglu_forward", 1}, {"swiglu_backward", 1}}));
}

}  // namespace
}  // namespace hetermoe::testing
