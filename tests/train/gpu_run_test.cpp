#include "hetermoe/train/job/gpu_run.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

constexpr int kH100 = 90, kA40 = 86, kV100 = 70, kUnknown = 0;
const std::vector<std::string> kZebra = {"attention", "attention", "expert", "expert"};

RoleDtypes chosen(const std::vector<std::string>& roles, const std::vector<int>& capabilities,
                  const PlanOptions& asked = {}) {
  return gpu_dtypes(asked, roles, capabilities);
}

// Claim (GpuDtypes.*, GpuMemory.*, GpuFaults.*, GpuSupport.*): on GPUs: dtypes by compute capability, a plan
// that is one byte too large, two kinds of GPU, a driver or GPU too old
TEST(GpuDtypes, Bf16FromComputeCapability8On) {
  EXPECT_EQ(dtype_of_gpu(80), Dtype::kBf16);
  EXPECT_EQ(dtype_of_gpu(79), Dtype::kFp16);
  EXPECT_EQ(dtype_of_gpu(kUnknown), Dtype::kFp32);
  EXPECT_EQ(chosen({"both"}, {kH100}), (RoleDtypes{Dtype::kBf16, Dtype::kBf16, Wire::kBf16}));
  EXPECT_EQ(chosen({"both"}, {kV100}), (RoleDtypes{Dtype::kFp16, Dtype::kFp16, Wire::kFp16}));
}

TEST(GpuDtypes, EachRoleHasThatOfItsOldestGpu) {
  EXPECT_EQ(chosen(kZebra, {kA40, kA40, kV100, kV100}),
            (RoleDtypes{Dtype::kBf16, Dtype::kFp16, Wire::kBf16}));
  EXPECT_EQ(chosen(kZebra, {kA40, kV100, kH100, kH100}),
            (RoleDtypes{Dtype::kFp16, Dtype::kBf16, Wire::kBf16}));
  EXPECT_EQ(chosen({"both", "idle"}, {kA40, kV100}).attention, Dtype::kBf16);
  EXPECT_EQ(chosen({"both", "both"}, {kA40, kV100}).attention, Dtype::kFp16);
}

TEST(GpuDtypes, WhatWasAskedForStays) {
  PlanOptions asked;
  asked.attention_dtype = Dtype::kFp32;
  EXPECT_EQ(chosen(kZebra, {kH100, kH100, kH100, kH100}, asked),
            (RoleDtypes{Dtype::kFp32, Dtype::kBf16, Wire::kFp32}));
  asked.wire_dtype = Wire::kFp16;
  EXPECT_EQ(chosen(kZebra, {kH100, kH100, kH100, kH100}, asked).wire, Wire::kFp16);
  // Devices with both roles follow the attention's.
  EXPECT_EQ(chosen({"both"}, {kH100}, asked).experts, Dtype::kFp32);
}

TEST(GpuDefaults, AJobOnTheCpuStaysAsItIs) {
  Job job = job_from_overrides({{"model", "tiny"}});
  const Json before = to_json(job);
  EXPECT_EQ(set_gpu_defaults(job, {job.strategy}, Processes()), "");
  EXPECT_EQ(to_json(job), before);
}

TEST(GpuFaults, TheFirstThatCannotBeUsedIsNamed) {
  const GpuFacts h100{"cuda:0", "NVIDIA H100", kH100, 0}, v100{"cuda:1", "Tesla V100", kV100, 0};
  const std::vector<int> cuda13 = {75, 80, 86, 90, 100, 120};
  EXPECT_EQ(gpu_fault({h100, h100}, cuda13), "");
  EXPECT_EQ(gpu_fault({h100, v100}, cuda13), no_code_for(v100, cuda13));
  EXPECT_EQ(gpu_fault({h100, v100}, {70, 90}), "");
}

constexpr Bytes kGib = 1 << 30;

/// Two GPUs of such a compute capability, as much free as is given, of 80 GiB.
std::vector<GpuRoom> rooms(Bytes first, Bytes second, int capability = kUnknown) {
  return {{80 * kGib, first, capability}, {80 * kGib, second, capability}};
}

TEST(GpuMemory, DevicesThatShareAGpuFitToTheByte) {
  std::vector<MemoryPeak> peaks(3);
  peaks[0].use.weights = 3 * kGib;
  peaks[1].use.saved = 2 * kGib;
  peaks[2].use.workspace = 4 * kGib;
  const c10::Device first(c10::DeviceType::CUDA, 0), second(c10::DeviceType::CUDA, 1);
  const std::vector<c10::Device> where = {first, second, first};
  const Bytes both = 7 * kGib + besides_plan({peaks[0], peaks[2]}, kUnknown, 0).total(),
              one = 2 * kGib + besides_plan({peaks[1]}, kUnknown, 0).total();
  const auto fault = [&](const std::vector<DeviceId>& local, const std::vector<GpuRoom>& room) {
    return gpu_memory_fault(peaks, local, where, room, 0);
  };
  EXPECT_EQ(fault({0, 1, 2}, rooms(both, one)), "");
  EXPECT_EQ(fault({0, 1, 2, 3}, rooms(both, one)), "") << "a host of this process has no GPU";
  EXPECT_NE(fault({0, 1}, rooms(3 * kGib, one)), "");
  EXPECT_EQ(fault({0, 1}, rooms(3.1 * kGib, one)), "");      // device 2 is another process's
  EXPECT_EQ(fault({0, 1, 2}, std::vector<GpuRoom>(2)), "");  // not known
  const std::string one_byte = fault({0, 1, 2}, rooms(both - 1, one));
  EXPECT_NE(one_byte.find("on cuda:0: 7.00 GiB for the plan's 2 devices"), std::string::npos) << one_byte;
  const std::string of_second = fault({0, 1, 2}, rooms(both, one - 1));
  EXPECT_NE(of_second.find("on cuda:1: 2.00 GiB for the plan's 1 device,"), std::string::npos) << of_second;
}

TEST(GpuMemory, LibrariesAndOpsInFlightCount) {
  constexpr Bytes kMib = 1 << 20;
  MemoryPeak peak;
  peak.use.weights = 30 * kGib, peak.use.saved = 6 * kGib, peak.use.workspace = 1 * kGib;
  const BesidesPlan alone = besides_plan({peak}, kH100, 0);
  EXPECT_EQ(alone.workspaces, (3 * 32 + 512) * kMib);
  EXPECT_EQ(alone.messages, 0);
  EXPECT_DOUBLE_EQ(alone.in_flight, 0.03 * 7 * kGib);
  const BesidesPlan shared = besides_plan({peak, peak}, kA40, 8);
  EXPECT_EQ(shared.workspaces, 5 * 8.125 * kMib);
  EXPECT_EQ(shared.messages, 8 * 64 * kMib);
}

/// Another process holds half of the GPU: the plan would fit without it, so it is not the plan that is to
/// change.
TEST(GpuMemory, WhatOthersHoldIsToldInOneSentence) {
  std::vector<MemoryPeak> peaks(1);
  peaks[0].use.weights = 50 * kGib;
  const std::vector<c10::Device> where = {c10::Device(c10::DeviceType::CUDA, 0)};
  const std::string others = gpu_memory_fault(peaks, {0}, where, rooms(40 * kGib, 0, kH100), 8);
  EXPECT_NE(others.find("Of 80.0 GiB there 40.0 GiB are taken, by other programs and by CUDA"),
            std::string::npos)
      << others;
  EXPECT_NE(others.find("expected the programs that `nvidia-smi` shows to be ended"), std::string::npos)
      << others;
  peaks[0].use.weights = 79.9 * kGib;
  const std::string plan = gpu_memory_fault(peaks, {0}, where, rooms(79 * kGib, 0, kH100), 8);
  EXPECT_NE(plan.find("train.microbatches"), std::string::npos) << plan;
}

}  // namespace
}  // namespace hetermoe
