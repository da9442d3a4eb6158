#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <span>
#include <tuple>

#include "hetermoe/comm/codec.h"
#include "hetermoe/comm/nccl.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/nn/causal_attention.h"
#include "hetermoe/nn/decoder.h"
#include "hetermoe/nn/products.h"
#include "hetermoe/profile/profiler.h"
#include "hetermoe/train/run/verify.h"
#include "tests/nn/compare.h"
#include "tests/nn/expert_case.h"
#include "tests/nn/newer_models.h"
#include "tests/support/counting_data.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"
#include "tests/train/tiny_run.h"

// One GPU is enough: all devices of a plan live on it, as emulated ones do on a CPU.
namespace hetermoe::testing {
namespace {

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) {
      GTEST_SKIP() << "no GPU here: " << (open_cuda().empty() ? "the driver shows none" : open_cuda());
    }
    // What a training before this test asked of the process is undone.
    configure_gpus({.fp64 = true});
  }
};

using GpuEngine = Gpu;
using GpuAttention = Gpu;
using GpuExperts = Gpu;
using GpuProducts = Gpu;
using GpuTraining = Gpu;
using GpuNccl = Gpu;
using GpuProfile = Gpu;
using GpuDecoder = Gpu;

const c10::Device kFirst(c10::DeviceType::CUDA, 0);

struct Outcome {
  StepResult result;
  TensorsByName gradients, values;
};

Outcome two_steps(const NamedPlan& named, const ModelConfig& model, const Cluster& cluster,
                  const std::vector<c10::Device>& where, const Session::MakeTransport& make_transport = {}) {
  Session::Options options{{true, 1, true}, {}, {}};
  options.where = where;
  Session session(model, cluster, named.plan, options, make_transport);
  session.initialize(1);
  StepInput input = random_input(named.plan, model);
  input.learning_rate = 1e-3;
  input.max_grad_norm = 0.1;
  Outcome out;
  for (input.step = 0; input.step < 2; ++input.step) out.result = session.train_step(input);
  out.gradients = session.gradients();
  out.values = session.values();
  return out;
}

double worst_difference(const TensorsByName& a, const TensorsByName& b) {
  double worst = 0;
  for (const auto& [name, tensor] : a) {
    const double scale = std::max(1e-12, tensor.abs().max().item<double>());
    worst = std::max(worst, (tensor - b.at(name)).abs().max().item<double>() / scale);
  }
  return worst;
}

TEST_F(GpuEngine, EveryStrategyEqualsTheCpuInFp64) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    const Outcome cpu = two_steps(named, model, cluster, {});
    const Outcome gpu =
        two_steps(named, model, cluster, std::vector<c10::Device>(cluster.devices.size(), kFirst));
    EXPECT_NEAR(gpu.result.loss, cpu.result.loss, 1e-10 * cpu.result.loss) << named.name;
    EXPECT_NEAR(gpu.result.grad_norm, cpu.result.grad_norm, 1e-8 * cpu.result.grad_norm) << named.name;
    EXPECT_LT(worst_difference(cpu.gradients, gpu.gradients), 1e-8) << named.name;
    EXPECT_LT(worst_difference(cpu.values, gpu.values), 1e-8) << named.name;
  }
}

TEST_F(GpuEngine, EveryRunOfAStepGivesTheSameBits) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  for (NamedPlan named : strategy_plans(model, cluster, small_step())) {
    use_dtype(named.plan, Dtype::kFp32);
    const std::vector<c10::Device> where(cluster.devices.size(), kFirst);
    const Outcome first = two_steps(named, model, cluster, where);
    const Outcome second = two_steps(named, model, cluster, where);
    EXPECT_EQ(worst_difference(first.values, second.values), 0) << named.name;
  }
}

TEST_F(GpuEngine, RowsWithScalesAreThoseOfTheCpu) {
  const at::Tensor normal = at::randn({500, 96}) * at::pow(2, at::randint(-30, 30, {500, 1}));
  at::Tensor special = at::zeros({4, 96});
  special[1][5] = std::numeric_limits<float>::infinity();
  special[2][7] = 1e-40F;
  const at::Tensor x = at::cat({normal, special});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Wire wire : {Wire::kFp8Row, Wire::kFp8Group}) {
      const at::Tensor cpu = encode(x.to(dtype), wire), gpu = encode(x.to(dtype).to(kFirst), wire);
      const at::Tensor back = decode(cpu, wire, dtype), on_gpu = decode(gpu, wire, dtype);
      EXPECT_TRUE(at::allclose(on_gpu.cpu(), back, 0, 0, /*equal_nan=*/true)) << dtype << name_of(wire);
    }
  }
}

/// The operators that stand-ins serve where tests have no GPU: see kernels/host_operators.
TEST_F(GpuProducts, AddUpInFp32WithoutRounding) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor a = at::rand({513, 300}).to(dtype), b = at::rand({513, 200}).to(dtype);
    const at::Tensor sum = at::ones({300, 200}, at::TensorOptions(kFirst));
    for (int i = 0; i < 2; ++i) add_product_(sum, a.to(kFirst).t(), b.to(kFirst));
    const at::Tensor exact = at::mm(a.t().to(at::kDouble), b.to(at::kDouble)) * 2 + 1;
    EXPECT_LE(((sum.cpu() - exact).abs() / exact).max().item<double>(), 1e-5) << dtype;
  }
}

/// Output and gradients of q, k and v, on the host in fp32.
std::vector<at::Tensor> attention_on_gpu(i64 heads, i64 kv_heads, const AttentionHow& how,
                                         at::ScalarType dtype, Path path) {
  std::vector<at::Tensor> in;
  for (const i64 of : {heads, kv_heads, kv_heads}) {
    at::manual_seed(static_cast<u64>(in.size()));
    in.push_back(at::randn({2, 192, of, 64}).to(kFirst, dtype).requires_grad_());
  }
  const at::Tensor out = causal_attention(in[0], in[1], in[2], how, path);
  at::manual_seed(7);
  const at::Tensor seed = at::randn(out.sizes()).to(kFirst, dtype);
  std::vector<at::Tensor> all = torch::autograd::grad({out}, in, {seed});
  all.push_back(out.detach());
  for (at::Tensor& x : all) x = x.cpu().to(at::kFloat);
  return all;
}

/// Shared heads, documents and a window in bf16 against fp32, whose kernel wants equal heads and is called
/// for each document.
TEST_F(GpuAttention, OfSharedHeadsAndDocumentsIsThatOfFp32) {
  const std::vector<i64> documents = {100, 1, 91, 150, 42};
  for (const auto& [kv_heads, window, parts] :
       {std::tuple(8, 0, std::span<const i64>()), std::tuple(2, 0, std::span<const i64>()),
        std::tuple(2, 0, std::span<const i64>(documents)),
        std::tuple(8, 33, std::span<const i64>(documents))}) {
    const AttentionHow how{0.125, window, parts};
    const std::vector<at::Tensor> narrow = attention_on_gpu(8, kv_heads, how, at::kBFloat16, Path::kAuto),
                                  wide = attention_on_gpu(8, kv_heads, how, at::kFloat, Path::kGeneric);
    for (std::size_t i = 0; i < wide.size(); ++i)
      EXPECT_LE(deviation(narrow[i], wide[i]), 0.03) << kv_heads << " " << window << " tensor " << i;
  }
}

TEST_F(GpuExperts, Bf16InOneKernelEqualsOneAfterAnother) {
  const at::TensorOptions bf16 = at::TensorOptions(at::kBFloat16).device(kFirst);
  EXPECT_GT(compute_capability(kFirst), 0);
  EXPECT_EQ(expert_products(make_uneven_case(bf16).slab) == ExpertProducts::kGrouped,
            compute_capability(kFirst) / 10 == 9);
  expect_one_kernel_equals_each(bf16, 0.02);
}

/// Losses of a job of 50 steps.
std::vector<double> losses(const std::string& device,
                           std::vector<std::pair<std::string, std::string>> changes) {
  const WorkFolder folder;
  changes.insert(
      changes.end(),
      {{"run.device", device}, {"run.tf32", "false"}, {"train.steps", "50"}, {"checkpoint.every", "0"}});
  std::vector<double> out;
  for (const StepRecord& record : TinyRun(folder.path(), changes).run(Checkpoints::kOff).outcome.records)
    out.push_back(record.loss);
  return out;
}

TEST_F(GpuTraining, FiftyStepsInFp32FollowTheCpu) {
  const std::vector<double> cpu = losses("cpu", {}), gpu = losses("cuda:0", {});
  ASSERT_EQ(cpu.size(), 50U);
  for (std::size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(gpu[i], cpu[i], 1e-4 * cpu[i]) << "step " << i + 1;
}

TEST_F(GpuTraining, Bf16AttentionWithFp16ExpertsFollowsFp32) {
  const std::vector<double> whole = losses("cuda:0", {});
  const std::vector<double> mixed =
      losses("cuda:0", {{"plan.attention_dtype", "bf16"}, {"plan.expert_dtype", "fp16"}});
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(mixed[i], whole[i], 0.1) << "step " << i + 1;
}

TEST_F(GpuTraining, ACheckpointOfAGpuIsReadOnACpu) {
  const WorkFolder folder;
  const TinyRun::End gpu = TinyRun(folder.path(), {{"run.device", "cuda:0"}}).run();
  const TinyRun::End cpu = TinyRun(folder.path(), {{"run.device", "cpu"}}).run();
  EXPECT_EQ(cpu.outcome.first_step, 6);
  expect_equal(cpu.values, gpu.values);
}

TEST_F(GpuTraining, ItsPeakIsInTheRecords) {
  const WorkFolder folder;
  for (const StepRecord& record : TinyRun(folder.path(), {{"run.device", "cuda:0"}}).run().outcome.records)
    EXPECT_GT(record.gpu_peak, 0);
}

TEST_F(GpuTraining, VerifyRunsThePlanOnTheGpu) {
  const WorkFolder folder;
  const TinyRun run(folder.path(), {{"run.device", "cuda:0"}});
  restart_gpu_peak(kFirst);
  const Bytes before = gpu_peak(kFirst);
  const Sampler sampler(counting_data(), {run.job.train.seq_len, 1});
  const VerifyResult result = verify_plan(run.job, run.model, run.cluster, run.plan,
                                          sampler.batch(0, run.job.train.sequences, run.model.vocab));
  EXPECT_TRUE(result.passed());
  EXPECT_GT(gpu_peak(kFirst), before);
}

/// The values of two steps with one setting of run.deterministic.
TensorsByName values_of_bf16_run(const std::string& deterministic) {
  const WorkFolder folder;
  return TinyRun(folder.path(), {{"run.device", "cuda:0"},
                                 {"plan.attention_dtype", "bf16"},
                                 {"plan.expert_dtype", "bf16"},
                                 {"run.deterministic", deterministic}})
      .run()
      .values;
}

TEST_F(GpuTraining, ADeterministicRunRepeatsToTheBit) {
  expect_equal(values_of_bf16_run("true"), values_of_bf16_run("true"));
}

TEST_F(GpuTraining, RecordsReplaysAndBalances) {
  const WorkFolder folder;
  const auto run = [&](const std::string& name, const Settings& more) {
    Settings settings = {
        {"run.device", "cuda:0"}, {"strategy", "ep"}, {"cluster", "demo"}, {"train.sequences", "16"}};
    settings.insert(settings.end(), more.begin(), more.end());
    return TinyRun(folder / name, in_fp64(settings)).run(Checkpoints::kOff);
  };
  const std::string recorded = folder / "first.routes", replayed = folder / "second.routes";
  const TrainOutcome none = run("none", {{"routing.record", recorded}}).outcome,
                     replay =
                         run("replay", {{"routing.replay", recorded}, {"routing.record", replayed}}).outcome,
                     relibra = run("relibra", {{"routing.replay", recorded},
                                               {"balancer.name", "relibra"},
                                               {"balancer.knows", "foresight"},
                                               {"balancer.every", "1"},
                                               {"balancer.guard", "false"},
                                               {"balancer.guest_cost", "0"}})
                                   .outcome;
  EXPECT_EQ(read_text(replayed), read_text(recorded));
  EXPECT_GE(relibra.changes.size(), 1U);
  for (std::size_t s = 0; s < none.records.size(); ++s) {
    EXPECT_NEAR(replay.records[s].loss / none.records[s].loss, 1, 1e-9) << s;
    EXPECT_NEAR(relibra.records[s].loss / none.records[s].loss, 1, 1e-9) << s;
    EXPECT_EQ(*relibra.records[s].replayed_choices, 1) << s;
  }
}

TEST_F(GpuNccl, AWorldOfOneTrains) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = make_cluster(1);
  const NamedPlan named = strategy_plans(model, cluster, small_step())[0];
  const Processes alone;
  const Outcome plain = two_steps(named, model, cluster, {kFirst});
  const Outcome nccl = two_steps(named, model, cluster, {kFirst}, [&](const Schedule& schedule) {
    return make_nccl_transport(alone, open_nccl(), {{0}, transfer_queues(schedule), kFirst});
  });
  EXPECT_EQ(worst_difference(plain.values, nccl.values), 0);
}

struct Written {
  std::vector<i64> tokens;
  at::Tensor logits_TV;  ///< on the host
};

/// The likeliest tokens after a prompt of six, read in two parts, with weights, keys and values on a device.
Written written_on(const c10::Device device, const ModelConfig& model) {
  const ModelState host = make_model_state(model, at::kDouble);
  init_parameters(host.views(model), 1);
  const ModelState state = make_model_state(model, at::TensorOptions(device).dtype(at::kDouble));
  const std::vector<NamedView> from = host.views(model), to = state.views(model);
  for (std::size_t i = 0; i < to.size(); ++i) {
    at::Tensor value = to[i].value;
    value.copy_(from[i].value);
  }
  constexpr i64 kTokens = 12;
  Decoder decoder(model, state, 6 + kTokens);
  at::Tensor last = decoder.read_prompt(at::tensor({3, 1, 4, 1, 5, 9}, at::kLong), 4);
  Written out;
  std::vector<at::Tensor> logits;
  while (static_cast<i64>(out.tokens.size()) < kTokens) {
    EXPECT_EQ(last.device().type(), device.type());
    logits.push_back(last.cpu());
    out.tokens.push_back(choose_token(last, {}, decoder.size()));
    last = decoder.read(at::tensor({out.tokens.back()}, at::kLong))[0];
  }
  out.logits_TV = at::stack(logits);
  return out;
}

TEST_F(GpuDecoder, WritesTheTokensThatTheCpuWrites) {
  for (const ModelConfig& model : models_of_all_families()) {
    const Written gpu = written_on(kFirst, model), cpu = written_on(c10::kCPU, model);
    EXPECT_EQ(gpu.tokens, cpu.tokens) << model.name;
    const double scale = cpu.logits_TV.abs().max().item<double>();
    EXPECT_LT((gpu.logits_TV - cpu.logits_TV).abs().max().item<double>(), 1e-9 * scale) << model.name;
  }
}

TEST_F(GpuProfile, MeasuresTheGpu) {
  ProfileOptions options;
  options.device = "cuda";
  options.dtype = Dtype::kFp16;
  const ProfileFile file = profile_device(load_model("tiny"), options);
  ASSERT_FALSE(file.entries.empty());
  for (const ProfileEntry& entry : file.entries) EXPECT_GT(entry.seconds, 0);
}

}  // namespace
}  // namespace hetermoe::testing
