#include "hetermoe/kernels/kernel_code.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <iostream>

namespace hetermoe::kernels {
namespace {

constexpr const char* kStandIn = HM_BINARY_DIR "/libstand_in_nvrtc.so";

int of_stand_in(const char* function) {
  void* const library = dlopen(kStandIn, RTLD_NOW | RTLD_NOLOAD);
  const auto ask = library == nullptr ? nullptr : reinterpret_cast<int (*)()>(dlsym(library, function));
  return ask == nullptr ? -1 : ask();
}

/// In a process of its own, for NVRTC is looked for once.
void compile_by_the_stand_in() {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("hm_code_" + std::to_string(getpid()));
  setenv("HETERMOE_NVRTC", kStandIn, 1);
  setenv("HETERMOE_CACHE_DIR", folder.c_str(), 1);
  const std::array<at::ScalarType, 2> elements = {at::kFloat, at::kInt};
  const i64 num_kernels = compile_ahead(90, elements, 4);
  const bool are_all = num_kernels == of_stand_in("stand_in_num_compiled") && num_kernels > 15;
  const bool at_once = of_stand_in("stand_in_most_at_once") > 1;
  const std::array<at::ScalarType, 1> one = {at::kFloat}, other = {at::kBFloat16};
  const CachedCode ahead = kernel_code(find_kernel("swiglu_forward", one), 90);
  const bool is_kept = ahead.code.find(" hm_swiglu_forward_float(") != std::string::npos &&
                       of_stand_in("stand_in_num_compiled") == num_kernels;
  kernel_code(find_kernel("swiglu_forward", other), 90);
  const bool is_other = of_stand_in("stand_in_num_compiled") == num_kernels + 1;
  std::filesystem::remove_all(folder);
  std::cerr << num_kernels << " kernels:" << are_all << at_once << is_kept << is_other << std::endl;
  std::_Exit(0);
}

TEST(KernelCode, KernelsOfGivenElementsAreCompiledAheadAtTheSameTimeAndOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(compile_by_the_stand_in(), ::testing::ExitedWithCode(0), "[0-9]+ kernels:1111");
}

}  // namespace
}  // namespace hetermoe::kernels
