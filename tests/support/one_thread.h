#pragma once
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace hetermoe::testing {

/// Tests of a program that includes this compute with one intra-op thread: for tiny tensors a second one only
/// waits.
class OneThread : public ::testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};
inline const auto* const kOneThread = ::testing::AddGlobalTestEnvironment(new OneThread);

}  // namespace hetermoe::testing
