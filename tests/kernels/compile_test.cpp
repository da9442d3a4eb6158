#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <regex>

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

/// By number of the entry. The log has, for each: "... entry function 'kernel_3' for 'sm_90'", then "... 4
/// bytes spill stores, 4 bytes spill loads", then "Used 40 registers".
std::map<int, Usage> read_usage(const std::string& log) {
  static const std::regex pattern(
      "entry function 'kernel_(\\d+)'|(\\d+) bytes spill stores, (\\d+) bytes spill loads|Used (\\d+) "
      "registers");
  std::map<int, Usage> out;
  int kernel = -1;
  for (std::sregex_iterator it(log.begin(), log.end(), pattern), end; it != end; ++it) {
    const std::smatch& match = *it;
    if (match[1].matched) kernel = std::stoi(match[1]);
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
      for (const auto& [number, one] : read_usage(compiled.log))
        usage[kernels.at(static_cast<std::size_t>(number))->name()][capability] = one;
    }
  }
  std::cout << fmt::format("registers for compute capability {} (bytes spilled)\n",
                           fmt::join(capabilities(), ", "));
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
      "ptxas info    : Compiling entry function 'kernel_7' for 'sm_90'\n"
      "    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Used 255 registers, 380 bytes cmem[0]\n");
  EXPECT_EQ(usage.at(7).spilled_bytes, 20);
  EXPECT_EQ(usage.at(7).registers, 255);
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
}

}  // namespace
}  // namespace hetermoe::kernels
