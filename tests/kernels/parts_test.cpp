#include "hetermoe/nn/attention_part.h"
#include "tests/kernels/cases.h"
#include "tests/nn/expert_case.h"

// Whole parts of a layer by kernels of our own, on the host, against the paths of the CPU.
namespace hetermoe::testing {
namespace {

struct ExpertsOutcome {
  at::Tensor out, drows, dweights, gate_up_grad, down_grad;
};

ExpertsOutcome run_experts(at::ScalarType dtype, bool keeps) {
  ExpertCase c = make_uneven_case(dtype);
  if (dtype == at::kDouble) c.weights = c.weights.to(at::kDouble);
  ExpertsSaved saved;
  ExpertsOutcome out;
  out.out = experts_forward(c.slab, c.rows, c.groups, c.weights, keeps ? &saved : nullptr);
  const ExpertsGradient gradient =
      experts_backward(c.slab, c.rows, c.groups, c.weights, keeps ? &saved : nullptr, c.dout);
  out.drows = gradient.drows_RD;
  out.dweights = gradient.dweights_C;
  out.gate_up_grad = c.slab.gate_up_grad;
  out.down_grad = c.slab.down_grad;
  return out;
}

TEST(PartsOnKernels, ExpertsEqualThoseOnTheCpu) {
  for (const at::ScalarType dtype : kAllDtypes) {
    for (const bool keeps : {false, true}) {
      const ExpertsOutcome expected = run_experts(dtype, keeps);
      const HostKernels host(2);
      const LaunchRecorder recorder;
      const ExpertsOutcome got = run_experts(dtype, keeps);
      // One launch for all experts, not one for each.
      EXPECT_EQ(recorder.counts().at("swiglu_forward"), 1);
      EXPECT_EQ(recorder.counts().at("swiglu_backward"), 1);
      EXPECT_EQ(recorder.counts().at("sum_rows"), 2);
      EXPECT_EQ(recorder.counts().at("gather_rows"), 3);
      const double tolerance = 4 * one_rounding(dtype);
      EXPECT_LE(deviation(got.out, expected.out), tolerance);
      EXPECT_LE(deviation(got.drows, expected.drows), tolerance);
      EXPECT_LE(deviation(got.dweights, expected.dweights), tolerance);
      EXPECT_LE(deviation(got.gate_up_grad, expected.gate_up_grad), tolerance);
      EXPECT_LE(deviation(got.down_grad, expected.down_grad), tolerance);
    }
  }
}

struct AttentionOutcome {
  AttentionOutput forward;
  AttentionGradient backward;
  StateGroup state;
};

AttentionOutcome run_attention(const ModelConfig& model, at::ScalarType dtype, i64 layer) {
  AttentionOutcome out;
  out.state = make_attention_state(model, layer, dtype);
  init_parameters(out.state.views(), 7);
  out.state.zero_grads();
  const i64 seq_len = 6, tokens = 2 * seq_len;
  const at::Tensor y = values({tokens, model.hidden}, dtype, 1);
  out.forward = attention_forward(model, layer, out.state, y, seq_len);
  AttentionBackwardInput input;
  input.y_TD = y;
  input.du_TD = values({tokens, model.hidden}, dtype, 2);
  input.topk_TK = out.forward.topk_TK;
  if (out.forward.x_TD.defined()) {
    input.dx_TD = values({tokens, model.hidden}, dtype, 3);
    input.dweights_TK = values(out.forward.weights_TK.sizes(), out.forward.weights_TK.scalar_type(), 4);
    input.balance_AE = values({2, model.num_experts}, at::kDouble, 5);
  }
  out.backward = attention_backward(model, layer, out.state, input, seq_len);
  return out;
}

void expect_equal(const AttentionOutcome& got, const AttentionOutcome& expected, double tolerance) {
  EXPECT_LE(deviation(got.forward.u_TD, expected.forward.u_TD), tolerance);
  if (expected.forward.x_TD.defined()) {
    EXPECT_TRUE(got.forward.topk_TK.equal(expected.forward.topk_TK));
    EXPECT_TRUE(got.forward.counts_BE.equal(expected.forward.counts_BE));
    EXPECT_LE(deviation(got.forward.x_TD, expected.forward.x_TD), tolerance);
    EXPECT_LE(deviation(got.forward.weights_TK, expected.forward.weights_TK), tolerance);
  }
  EXPECT_LE(deviation(got.backward.dy_TD, expected.backward.dy_TD), tolerance);
  EXPECT_NEAR(got.backward.aux_loss.item<double>(), expected.backward.aux_loss.item<double>(),
              100 * tolerance);
  for (std::size_t i = 0; i < expected.state.grads.size(); ++i)
    EXPECT_LE(deviation(got.state.grads[i], expected.state.grads[i]), tolerance) << "gradient " << i;
}

TEST(PartsOnKernels, AttentionEqualsThatOnTheCpuInAllFamilies) {
  for (const ModelConfig& model : tiny_models()) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      for (const i64 layer : {i64{0}, model.num_layers - 1}) {
        SCOPED_TRACE(std::string(c10::toString(dtype)) + " layer " + std::to_string(layer));
        const AttentionOutcome expected = run_attention(model, dtype, layer);
        const HostKernels host(2);
        expect_equal(run_attention(model, dtype, layer), expected, dtype == at::kDouble ? 1e-11 : 1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace hetermoe::testing
