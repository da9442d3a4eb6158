#include "hetermoe/planner/strategies/tensor_parallel.h"

#include <gtest/gtest.h>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/price.h"
#include "hetermoe/planner/strategies/compare.h"

namespace hetermoe {
namespace {

/// Keeps what it is asked, and costs nothing.
class Recorder : public CostModel {
 public:
  struct Asked {
    Op op;
    std::vector<PortBytes> bytes;
  };
  Recorder(std::vector<Asked>& transfers, std::vector<ComputeWork>& works)
      : transfers_(transfers), works_(works) {}
  Seconds compute(const ComputeWork& work) const override {
    works_.push_back(work);
    return 0;
  }
  TransferCost transfer(const TransferWork& work) const override {
    transfers_.push_back({work.op, {work.bytes.begin(), work.bytes.end()}});
    return {};
  }

 private:
  std::vector<Asked>& transfers_;
  std::vector<ComputeWork>& works_;
};

class TensorParallel : public ::testing::Test {
 protected:
  TensorParallel() {
    setting_.seq_len = 1024, setting_.sequences = 4, setting_.dtype = Dtype::kBf16;
    plan_ = tensor_parallel_plan(model_, cluster_, setting_, kSize, 1);
  }

  /// Of the whole step, as it is priced.
  void price_step() {
    const Placement placement(plan_, model_, StepOptions{});
    const TensorParallelCost cost(std::make_unique<Recorder>(transfers_, works_), model_, cluster_, plan_);
    price(build_schedule(plan_, model_), placement, model_, cluster_, cost, ExpectedRouting(model_));
  }
  /// What a device sends in forward exchanges of a layer, by both kinds of op.
  double sent(OpKind before, OpKind after) const {
    double sum = 0;
    for (const Recorder::Asked& asked : transfers_) {
      const Op& op = asked.op;
      if (op.layer != 0 || op.group != 0 || op.microbatch != 0 || op.phase != Phase::kForward) continue;
      if (op.kind == before || op.kind == after) sum += asked.bytes[0].local_out + asked.bytes[0].net_out;
    }
    return sum;
  }

  static constexpr i64 kSize = 4;
  ModelConfig model_ = load_model("d1");
  Cluster cluster_ = load_cluster("a800x8");
  Setting setting_;
  Plan plan_;
  std::vector<Recorder::Asked> transfers_;
  std::vector<ComputeWork> works_;
};

/// Formulas (1) and (4) of MegaScale-MoE, section 3, in elements: 2 b s h (n - 1) / n.
TEST_F(TensorParallel, BothPartsOfALayerSendFullRows) {
  price_step();
  const double tokens = 2 * 1024;  // of a group
  const double expected = 2 * tokens * real(model_.hidden) * (kSize - 1) / kSize * 2 /*bytes*/;
  EXPECT_DOUBLE_EQ(sent(OpKind::kToHeads, OpKind::kToTokens), expected);
  EXPECT_DOUBLE_EQ(sent(OpKind::kDispatch, OpKind::kCombine), expected);
}

TEST_F(TensorParallel, ADenseLayerSendsForItsMlpToo) {
  model_ = load_model("llama-3.1-8b");
  model_.num_layers = 2, model_.dense_layer.resize(2);
  plan_ = tensor_parallel_plan(model_, cluster_, setting_, kSize, 1);
  price_step();
  const double rows = 2 * 2 * 1024 * real(model_.hidden) * (kSize - 1) / kSize * 2;
  EXPECT_DOUBLE_EQ(sent(OpKind::kToHeads, OpKind::kToTokens), 2 * rows);
}

/// P / n of the parameters over g groups, in place of all over all devices.
TEST_F(TensorParallel, GradientsAreSummedOverGroupsAlone) {
  const TensorParallelCost cost(std::make_unique<Recorder>(transfers_, works_), model_, cluster_, plan_);
  const std::vector<DeviceId> devices = {0, 1, 2, 3, 4, 5, 6, 7};
  const double params = 1000, n = kSize, g = 2;
  std::vector<PortBytes> bytes(devices.size());
  for (PortBytes& port : bytes) port.local_out = 2 * params * (n * g - 1) / (n * g);
  cost.transfer({{.kind = OpKind::kReduce, .state = 1}, devices, bytes});  // of attention
  EXPECT_NEAR(transfers_.at(0).bytes[0].local_out, 2 * params / n * (g - 1) / g, 1e-9);
  cost.transfer({{.kind = OpKind::kReduce, .state = 2}, devices, bytes});  // of experts
  EXPECT_EQ(transfers_.at(1).bytes[0].local_out, bytes[0].local_out);
  cost.compute({.op = {.kind = OpKind::kUpdate, .state = 1}, .params = params});
  EXPECT_EQ(works_.at(0).params, params / n);
}

TEST_F(TensorParallel, ADeviceHasItsPartOfEveryMatrix) {
  model_.num_layers = 2, model_.dense_layer.resize(2);
  setting_.check_memory = false;
  const Tuned tuned = tune_tensor_parallel(model_, cluster_, setting_, {});
  ASSERT_EQ(tuned.infeasible, "");
  Predictor predictor(model_, cluster_);
  predictor.price_by([&](std::unique_ptr<CostModel> cost, const Plan& plan) {  // peaks depend on times
    return std::make_unique<TensorParallelCost>(std::move(cost), model_, cluster_, plan);
  });
  const Bytes whole = predictor.judge_within(1'000'000, tuned.plan)->memory[0];
  const ParamCounts counts = count_parameters(model_);
  const double params = real(counts.embedding + counts.head + 2 * counts.attention_part[0]),
               size = real(std::ssize(tuned.plan.groups[0].devices));
  EXPECT_NEAR(whole - tuned.prediction.memory[0], params * (1 - 1 / size) * 18, 1);
}

TEST_F(TensorParallel, IsABaselineThatBestDoesNotTake) {
  CompareOptions options;
  options.strategies = {"tp", "best"}, options.dtype = Dtype::kBf16, options.sequences = 16;
  options.limits.simulation_budget = 10'000;
  const std::vector<CompareRow> rows = compare_strategies(model_, cluster_, {4096}, options);
  ASSERT_EQ(rows[0].infeasible, "");
  EXPECT_NE(rows[0].plan.find("simulated alone"), std::string::npos) << rows[0].plan;
  EXPECT_EQ(rows[1].plan.find("that of tp"), std::string::npos) << rows[1].plan;
  EXPECT_GT(rows[1].tokens_per_s, rows[0].tokens_per_s);
  model_.num_heads = 7, model_.num_kv_heads = 7;
  const CompareRow none = compare_strategies(model_, cluster_, {4096}, options)[0];
  EXPECT_NE(none.infeasible.find("8 devices, 7 heads and 24 experts"), std::string::npos) << none.infeasible;
}

TEST_F(TensorParallel, IsNoStrategyOfAJob) {
  try {
    find_strategy("tp");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("`compare --seq`"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace hetermoe
