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

TEST(GpuMemory, DevicesThatShareAGpuFitToTheByte) {
  std::vector<MemoryPeak> peaks(3);
  peaks[0].use.weights = 3e9;
  peaks[1].use.saved = 2e9;
  peaks[2].use.workspace = 4e9;
  const c10::Device first(c10::DeviceType::CUDA, 0), second(c10::DeviceType::CUDA, 1);
  const std::vector<c10::Device> where = {first, second, first};
  EXPECT_EQ(gpu_memory_fault(peaks, {0, 1, 2}, where, {7e9, 2e9}), "");
  EXPECT_EQ(gpu_memory_fault(peaks, {0, 1}, where, {3e9, 2e9}), "");  // device 2 is another process's
  EXPECT_EQ(gpu_memory_fault(peaks, {0, 1, 2}, where, {0, 0}), "");   // not known
  const std::string one_byte = gpu_memory_fault(peaks, {0, 1, 2}, where, {7e9 - 1, 2e9});
  EXPECT_NE(one_byte.find("on cuda:0 for 2 devices"), std::string::npos) << one_byte;
  EXPECT_NE(one_byte.find("train.microbatches"), std::string::npos) << one_byte;
  EXPECT_NE(gpu_memory_fault(peaks, {0, 1, 2}, where, {7e9, 2e9 - 1}).find("cuda:1 for 1 device,"),
            std::string::npos);
}

}  // namespace
}  // namespace hetermoe
