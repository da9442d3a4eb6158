#include "hetermoe/cost/roofline.h"

#include <gtest/gtest.h>

#include "hetermoe/model/op_cost.h"
#include "hetermoe/planner/strategies/strategies.h"

namespace hetermoe {
namespace {

/// D1 under zebra on O1: devices 0..5 are A40, 6..11 V100.
class RooflineTest : public ::testing::Test {
 protected:
  RooflineTest() { set_recompute(Recompute::kLocal); }
  void set_recompute(Recompute recompute) {
    StrategyRequest request;
    request.seq_len = 4096;
    request.sequences = 12;
    plan_ = find_strategy("zebra").make(model_, cluster_, request);
    plan_.dtype.assign(12, Dtype::kFp16);
    plan_.recompute = recompute;
  }
  Seconds attention(DeviceId device, Phase phase, double sequences, i64 seq_len = 4096) const {
    ComputeWork work;
    work.op = {.kind = OpKind::kAttention, .phase = phase, .layer = 1, .microbatch = 0};
    work.device = device;
    work.seq_len = seq_len;
    work.tokens = sequences * static_cast<double>(seq_len);
    return RooflineCost(model_, cluster_, plan_, constants_).compute(work);
  }
  Seconds experts(DeviceId device, Phase phase, double copies, double num_experts = 4) const {
    ComputeWork work;
    work.op = {.kind = OpKind::kExperts, .phase = phase, .layer = 1, .microbatch = 0};
    work.device = device;
    work.rows = work.copies = copies;
    work.experts = num_experts;
    return RooflineCost(model_, cluster_, plan_, constants_).compute(work);
  }

  ModelConfig model_ = load_model("d1");
  Cluster cluster_ = load_cluster("o1");
  Plan plan_;
  SoftwareConstants constants_;
};

constexpr DeviceId kA40 = 0, kV100 = 6;

TEST_F(RooflineTest, OldDeviceLosesMoreOnLongAttentionThanOnExperts) {
  const double on_experts = experts(kV100, Phase::kForward, 1e5) / experts(kA40, Phase::kForward, 1e5);
  const double on_attention =
      attention(kV100, Phase::kForward, 1, 32768) / attention(kA40, Phase::kForward, 1, 32768);
  EXPECT_GT(on_experts, 1);
  EXPECT_GT(on_attention, 1.5 * on_experts);
}

TEST_F(RooflineTest, NothingToComputeTakesNoTime) {
  EXPECT_EQ(attention(kA40, Phase::kForward, 0), 0);
  EXPECT_EQ(experts(kV100, Phase::kBackward, 0), 0);
}

TEST_F(RooflineTest, ExpertsOfManyRowsRunAtTheDeclaredShareOfThePeak) {
  constants_.kernel_launch = 0;
  constants_.expert_passes = 0;
  constants_.gemm_rows_half = 0;
  const double weights = static_cast<double>(expert_weights(model_)) * 4 * 2;  // read once, fp16
  const Seconds memory = weights / (900e9 * constants_.memory_efficiency);
  const DeviceType& v100 = cluster_.type_of(kV100);
  EXPECT_NEAR(experts(kV100, Phase::kForward, 1e5) - memory,
              1e5 * expert_flops(model_) / (112e12 * v100.gemm_efficiency), 1e-9);
}

TEST_F(RooflineTest, ManySmallExpertsAreSlowerThanFewLargeOnes) {
  EXPECT_GT(experts(kV100, Phase::kForward, 4096, 16), 1.1 * experts(kV100, Phase::kForward, 4096, 1));
}

TEST_F(RooflineTest, LocalRecomputationAddsOneForwardToBackward) {
  const Seconds forward = experts(kV100, Phase::kForward, 1e4);
  const Seconds with = experts(kV100, Phase::kBackward, 1e4);
  set_recompute(Recompute::kOff);
  EXPECT_DOUBLE_EQ(with - experts(kV100, Phase::kBackward, 1e4), forward);
}

TEST_F(RooflineTest, PhasesThatStandApartAddUpToTheWholeBackward) {
  const auto expect_parts = [&](auto seconds) {
    set_recompute(Recompute::kLocal);
    const Seconds whole = seconds(Phase::kBackward);
    set_recompute(Recompute::kAhead);
    EXPECT_NEAR(seconds(Phase::kRecompute) + seconds(Phase::kBackward), whole, 1e-12 * whole);
    plan_.weight_gradients = WeightGradients::kAfter;
    const Seconds inputs = seconds(Phase::kBackward), weights = seconds(Phase::kWeights);
    EXPECT_NEAR(seconds(Phase::kRecompute) + inputs + weights, whole, 1e-12 * whole);
    EXPECT_GE(inputs, weights);  // the attention kernel has no weights
    EXPECT_GT(weights, 0.15 * whole);
  };
  expect_parts([&](Phase phase) { return attention(kA40, phase, 2); });
  expect_parts([&](Phase phase) { return experts(kV100, phase, 1e4); });
}

TEST_F(RooflineTest, ALayerMayRecomputeInItsOwnWay) {
  const Seconds local = experts(kA40, Phase::kBackward, 1e4);
  plan_.groups[0].layers[1].recompute = Recompute::kOff;
  EXPECT_LT(experts(kA40, Phase::kBackward, 1e4), local);
  plan_.groups[0].layers[1].recompute.reset();
  plan_.groups[0].layers[0].recompute = Recompute::kOff;
  EXPECT_EQ(experts(kA40, Phase::kBackward, 1e4), local);
}

TEST_F(RooflineTest, PlainAttentionPaysForScoresInMemory) {
  const Seconds fused = attention(kA40, Phase::kForward, 1, 16384);
  for (DeviceType& type : cluster_.types) type.attention_kernel = AttentionKernel::kPlain;
  EXPECT_GT(attention(kA40, Phase::kForward, 1, 16384), 1.5 * fused);
}

/// A device alone computes as much; it also reads the latents where it makes keys and values of them.
TEST_F(RooflineTest, LatentsMoveAProductToTheAttentionKernel) {
  model_ = load_model("deepseek-v2-lite");
  set_recompute(Recompute::kLocal);
  const RooflineCost cost(model_, cluster_, plan_, constants_);
  for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kRecompute}) {
    const auto of = [&](OpKind kind, bool latents, double frozen) {
      return cost.compute({.op = {.kind = kind, .phase = phase, .layer = 1, .microbatch = 0},
                           .device = kA40,
                           .seq_len = 4096,
                           .tokens = 4096,
                           .of_team = true,
                           .latents = latents,
                           .frozen = frozen});
    };
    for (const double frozen : {0, 1}) {
      const auto both = [&](bool latents) {
        return of(OpKind::kProject, latents, frozen) + of(OpKind::kScores, latents, frozen);
      };
      const Seconds read =
          4096 * 576 * constants_.attention_passes * 2 / (696e9 * constants_.memory_efficiency);  // of an A40
      const double passes = phase == Phase::kBackward ? 2 - frozen : 1;
      EXPECT_NEAR(both(true), both(false) + passes * read, 1e-9 * both(false));
      EXPECT_GT(of(OpKind::kScores, true, frozen), of(OpKind::kScores, false, frozen) + passes * read);
    }
  }
}

TEST_F(RooflineTest, TransferTakesTheBusiestPort) {
  // Devices 0 and 1 share a node and its port; 2 receives all.
  cluster_ = parse_cluster(
      parse_yaml("{name: pair, nodes: [{devices: [A40 x2]}, {devices: [V100]}]}", "test"), "test ");
  plan_.dtype.resize(3);
  const std::vector<DeviceId> devices = {0, 1, 2};
  const std::vector<PortBytes> bytes = {{1e6, 0, 0, 0}, {3e6, 0, 0, 0}, {0, 4e6, 0, 0}};
  const RooflineCost cost(model_, cluster_, plan_, constants_);
  const TransferCost transfer = cost.transfer({Op{OpKind::kDispatch}, devices, bytes});
  ASSERT_EQ(transfer.loads.size(), 2u);
  const double rate = 12.5e9 * constants_.network_efficiency;
  EXPECT_EQ(transfer.loads[0].port, 0);  // uplink of node 0 carries both
  EXPECT_DOUBLE_EQ(transfer.loads[0].seconds, 4e6 / rate);
  EXPECT_EQ(transfer.loads[1].port, 3);  // downlink of node 1
  EXPECT_DOUBLE_EQ(transfer.latency, 10e-6 + 2 * cluster_.nodes[1].peer)
      << "device 2 has both peers on another node";
}

TEST_F(RooflineTest, ANodeWithAPortForEachDeviceTakesTheBusiestDevice) {
  cluster_ = parse_cluster(
      parse_yaml("{name: pair, nics: 8, network_gbit_s: 800, nodes: [{devices: [A40 x8], count: 2}]}",
                 "test"),
      "test ");
  plan_.dtype.resize(16);
  plan_.nics.assign(16, 1);
  std::vector<DeviceId> devices;
  std::vector<PortBytes> bytes;
  for (DeviceId d = 0; d < 16; ++d) {
    devices.push_back(d);
    bytes.push_back({.net_out = 1e6 * (d + 1), .net_in = 5e5});
  }
  const double rate = 12.5e9 * constants_.network_efficiency;  // of one port
  const TransferCost own =
      RooflineCost(model_, cluster_, plan_, constants_).transfer({Op{OpKind::kDispatch}, devices, bytes});
  EXPECT_EQ(own.loads.size(), 32U) << "one out and one in for each device";
  EXPECT_DOUBLE_EQ(own.seconds() - own.latency, 16e6 / rate);
  plan_.nics.clear();
  const TransferCost shared =
      RooflineCost(model_, cluster_, plan_, constants_).transfer({Op{OpKind::kDispatch}, devices, bytes});
  EXPECT_EQ(shared.loads.size(), 4U);
  EXPECT_DOUBLE_EQ(shared.seconds() - shared.latency, (9 + 16) * 8 / 2 * 1e6 / (8 * rate));
}

TEST_F(RooflineTest, ExchangesOneAfterAnotherTakeWhatEachTakes) {
  cluster_ = parse_cluster(
      parse_yaml("{name: pair, nodes: [{count: 2, devices: [A40 x2], peer_us: 8, local_peer_us: 2}]}",
                 "test"),
      "test ");
  plan_.dtype.resize(4);
  const std::vector<DeviceId> devices = {0, 1, 2, 3};
  const RooflineCost cost(model_, cluster_, plan_, constants_);
  const PortBytes local = {0, 0, 4e6, 4e6}, network = {1e6, 1e6, 0, 0};
  const std::vector<PortBytes> inside(4, local), between(4, network);
  std::vector<PortBytes> both = inside;
  both.insert(both.end(), between.begin(), between.end());
  const Op op{OpKind::kReduceScatter};
  const TransferCost one = cost.transfer({op, devices, inside}),
                     other = cost.transfer({op, devices, between}), all = cost.transfer({op, devices, both});
  // At once a device has three peers, in two levels first one and then one.
  EXPECT_DOUBLE_EQ(one.latency, 5e-6 + 2 * 8e-6 + 2e-6);
  EXPECT_DOUBLE_EQ(other.latency, 10e-6 + 2 * 8e-6 + 2e-6);
  EXPECT_DOUBLE_EQ(all.seconds(), one.seconds() + other.seconds() - 3 * 8e-6 - 2e-6);
  ASSERT_EQ(all.loads.size(), one.loads.size() + other.loads.size());
}

/// Of 1e6 numbers: those that are sent and those that come, by the memory of the slower device.
TEST_F(RooflineTest, RowsWithScalesAreEncodedAndDecoded) {
  const std::vector<DeviceId> devices = {kA40, kV100};
  const std::vector<PortBytes> bytes = {{1e6, 0, 0, 0}, {0, 1e6, 0, 0}};
  const auto transfer = [&](OpKind kind) {
    return RooflineCost(model_, cluster_, plan_, constants_).transfer({Op{kind}, devices, bytes});
  };
  const TransferCost plain = transfer(OpKind::kDispatch), plain_move = transfer(OpKind::kMove);
  const auto rate = [&](DeviceId d) { return cluster_.type_of(d).memory_gb_s * 1e9 * 0.8; };
  const Seconds encode = 1e6 * (4 * 2 + 9) / rate(kA40), decode = 1e6 * (2 + 17) / rate(kV100);
  for (const Wire wire : {Wire::kFp8Row, Wire::kFp8Group}) {
    plan_.wire_forward = wire;
    EXPECT_NEAR(transfer(OpKind::kDispatch).latency - plain.latency, std::max(encode, decode), 1e-12);
    EXPECT_EQ(transfer(OpKind::kMove).latency, plain_move.latency);
  }
  plan_.wire_forward = Wire::kBf16;
  EXPECT_EQ(transfer(OpKind::kDispatch).latency, plain.latency);
}

TEST_F(RooflineTest, EmptyTransferIsFree) {
  const std::vector<DeviceId> devices = {0};
  const std::vector<PortBytes> bytes(1);
  const RooflineCost cost(model_, cluster_, plan_, constants_);
  EXPECT_EQ(cost.transfer({Op{OpKind::kDispatch}, devices, bytes}).seconds(), 0);
}

}  // namespace
}  // namespace hetermoe
