#include <gtest/gtest.h>

#include "hetermoe/model/op_cost.h"
#include "hetermoe/ops/buffer_sizes.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "tests/support/random_plan.h"

// The ledger that `inspect --team` prints is what buffers of a step hold.
namespace hetermoe {
namespace {

/// Bytes that a device of an even team holds between forward and backward of an attention part.
struct Held {
  Bytes by_buffers = 0, by_ledger = 0;
};

Held held(const ModelConfig& model, i64 n, i32 layer, Recompute recompute) {
  Cluster cluster = testing::make_cluster(static_cast<i32>(n), 1, 1);
  for (DeviceType& type : cluster.types) type.attention_kernel = AttentionKernel::kFlash;
  StrategyRequest request;
  request.seq_len = 64, request.sequences = 1;
  request.team = {n};
  Plan plan = find_strategy("sp-ep").make(model, cluster, request);
  plan.recompute = recompute;
  plan.dtype.assign(cluster.devices.size(), Dtype::kBf16);
  const Placement placement(plan, model, {});
  const ExpectedRouting routing(model);
  const BufferSizes sizes(placement, model, cluster, routing);
  const DeviceId device = 0;
  const Team team = sizes.team_of(BufferKey::of_layer(Buffer::kQkv, layer, 0), device);
  const double tokens = sizes.tokens(layer, 0, device), all = static_cast<double>(team.tokens);
  Held out;
  // Input of the layer and attended rows by tokens; choices; parts.
  out.by_buffers = tokens * (sizes.row(device) + 2 * static_cast<double>(model.output_width()) +
                             routing_bytes(model, layer) + sizes.attention_saved(layer, device));
  if (recompute == Recompute::kSelect || recompute == Recompute::kOff)
    out.by_buffers +=
        tokens * sizes.projection_kept(layer, team, device) + all * sizes.scores_kept(layer, team, device);
  ActivationOptions options;
  options.of_team = true, options.team = n, options.latents = team.latents;
  const KeptActivations keeps =
      recompute == Recompute::kSelect ? KeptActivations::kSelected : KeptActivations::kAll;
  for (const Activation& line : activation_ledger(model, layer, options))
    if (line.of == Activation::Of::kToken && is_kept(line.kept, keeps))
      out.by_ledger += tokens * line.bytes(2);
  return out;
}

TEST(TeamLedger, IsWhatBuffersHold) {
  for (const i64 n : {2, 4, 8, 16}) {  // 8 key-value heads: beyond them each device has one whole
    const Held select = held(load_model("mixtral-8x7b"), n, 3, Recompute::kSelect),
               off = held(load_model("mixtral-8x7b"), n, 3, Recompute::kOff);
    EXPECT_GT(select.by_ledger, 0);
    EXPECT_NEAR(select.by_buffers, select.by_ledger, 1e-6 * select.by_ledger) << n;
    EXPECT_NEAR(off.by_buffers, off.by_ledger, 1e-6 * off.by_ledger) << n;
    EXPECT_LT(select.by_ledger, off.by_ledger);
  }
}

/// With latents of up to 4 devices, with keys and values beyond; dense and with experts.
TEST(TeamLedger, IsWhatBuffersHoldWithLatents) {
  const ModelConfig model = load_model("deepseek-v2-lite");
  for (const i64 n : {2, 4, 8}) {
    for (const i32 layer : {0, 1}) {
      const Held select = held(model, n, layer, Recompute::kSelect);
      EXPECT_NEAR(select.by_buffers, select.by_ledger, 1e-6 * select.by_ledger) << n << " " << layer;
    }
  }
}

}  // namespace
}  // namespace hetermoe
