#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <array>
#include <iostream>
#include <map>
#include <regex>
#include <set>

#include "hetermoe/kernels/nvrtc.h"
#include "hetermoe/kernels/table.h"
#include "tests/support/case_count.h"

namespace hetermoe::kernels {
namespace {

/// Compute capabilities, times ten.
const std::vector<int>& capabilities() {
  static const std::vector<int> few = {75, 90}, all = {75, 80, 86, 89, 90, 100, 120};
  return testing::every_case() ? all : few;
}

std::map<std::string_view, std::vector<const Kernel*>> kernels_by_source() {
  std::map<std::string_view, std::vector<const Kernel*>> out;
  for (const Kernel& kernel : all_kernels()) out[kernel.source].push_back(&kernel);
  return out;
}

/// What the assembler says of a kernel.
struct Usage {
  int registers = -1, spilled_bytes = -1;
};

/// By entry. The log has, for each: "... entry function 'hm_clear' for 'sm_90'", then "... 4 bytes spill
/// stores, 4 bytes spill loads", then "Used 40 registers".
std::map<std::string, Usage> read_usage(const std::string& log) {
  static const std::regex pattern(
      "entry function '(\\w+)'|(\\d+) bytes spill stores, (\\d+) bytes spill loads|Used (\\d+) registers");
  std::map<std::string, Usage> out;
  std::string kernel;
  for (std::sregex_iterator it(log.begin(), log.end(), pattern), end; it != end; ++it) {
    const std::smatch& match = *it;
    if (match[1].matched) kernel = match[1];
    if (match[2].matched) out[kernel].spilled_bytes = std::stoi(match[2]) + std::stoi(match[3]);
    if (match[4].matched) out[kernel].registers = std::stoi(match[4]);
  }
  return out;
}

TEST(KernelCompilation, EveryKernelCompilesForEveryGenerationAndSpillsNothing) {
  if (!nvrtc_missing().empty())
    GTEST_SKIP() << all_kernels().size() << " kernels not compiled: " << nvrtc_missing();
  std::map<std::string, std::map<int, Usage>> usage;
  for (const auto& [source, kernels] : kernels_by_source()) {
    const std::string program = cuda_program(kernels);
    for (const int capability : capabilities()) {
      const CodeTarget target{capability, false};
      const Compiled compiled = compile_cuda(program, target, {"--ptxas-options=-v"});
      EXPECT_EQ(compiled.code.substr(1, 3), "ELF") << source << " for " << capability;
      for (const auto& [entry, one] : read_usage(compiled.log)) usage[entry][capability] = one;
    }
  }
  std::cout << fmt::format("registers for compute capability {} (bytes spilled)\n",
                           fmt::join(capabilities(), ", "));
  for (const Kernel& kernel : all_kernels()) EXPECT_TRUE(usage.contains(kernel.entry())) << kernel.entry();
  ASSERT_EQ(usage.size(), all_kernels().size());
  for (const auto& [name, by_capability] : usage) {
    std::cout << fmt::format("{:<44}", name);
    for (const int capability : capabilities()) {
      const Usage one = by_capability.at(capability);
      std::cout << fmt::format(" {:>4} ({})", one.registers, one.spilled_bytes);
      EXPECT_GT(one.registers, 0) << name << " for " << capability;
      EXPECT_EQ(one.spilled_bytes, 0) << name << " for " << capability;
    }
    std::cout << "\n";
  }
}

TEST(KernelCompilation, TheReportOfASpillIsRead) {
  const auto usage = read_usage(
      "ptxas info    : Compiling entry function 'hm_clear' for 'sm_90'\n"
      "    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Used 255 registers, 380 bytes cmem[0]\n");
  EXPECT_EQ(usage.at("hm_clear").spilled_bytes, 20);
  EXPECT_EQ(usage.at("hm_clear").registers, 255);
}

/// What a profiler shows.
TEST(KernelCompilation, AnEntryIsNamedAfterFunctionAndElements) {
  const std::array<at::ScalarType, 1> bf16 = {at::kBFloat16};
  EXPECT_EQ(find_kernel("swiglu_forward", bf16).entry(), "hm_swiglu_forward_bf16");
  EXPECT_EQ(find_kernel("scan_counts", {}).entry(), "hm_scan_counts");
  std::set<std::string> entries;
  for (const Kernel& kernel : all_kernels()) {
    EXPECT_TRUE(entries.insert(kernel.entry()).second) << kernel.entry();
    const std::array<const Kernel*, 1> one = {&kernel};
    EXPECT_NE(cuda_program(one).find(" " + kernel.entry() + "("), std::string::npos) << kernel.entry();
  }
}

TEST(KernelCompilation, AFaultIsTheCompilersOwnWords) {
  if (!nvrtc_missing().empty()) GTEST_SKIP() << nvrtc_missing();
  try {
    compile_cuda("__global__ void broken() { int x = wrong_name; }", {90, false});
    FAIL() << "compiled";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("wrong_name"), std::string::npos) << error.what();
  }
}

TEST(KernelCompilation, TheNewestArchitectureThatRunsOnAGpuIsTaken) {
  const std::vector<int> known = {75, 80, 86, 89, 90, 100, 120};
  EXPECT_EQ(code_target(90, known).option(), "--gpu-architecture=sm_90");
  EXPECT_EQ(code_target(87, known).option(), "--gpu-architecture=sm_86");
  EXPECT_EQ(code_target(103, known).option(), "--gpu-architecture=sm_100");
  EXPECT_EQ(code_target(130, known).option(), "--gpu-architecture=compute_120");  // newer than the compiler
  EXPECT_EQ(code_target(110, known).option(), "--gpu-architecture=compute_100");
  EXPECT_EQ(code_target(70, known).architecture, 0);  // older than it
  EXPECT_EQ(code_target(70, {}).architecture, 0);
  EXPECT_EQ(code_target(61, {50, 60, 70, 75}).architecture, 0);  // without constants of a grid
  EXPECT_EQ(code_target(70, {50, 60, 70, 75}).architecture, 70);
}

}  // namespace
}  // namespace hetermoe::kernels
