#include <gtest/gtest.h>

#include "hetermoe/comm/nccl_abi.h"
#include "hetermoe/comm/nccl_api.h"

#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

namespace hetermoe {
namespace {

TEST(NcclAbi, WhatIsDeclaredHereIsWhatTheLibraryHas) {
#ifdef NCCL_UNIQUE_ID_BYTES
  EXPECT_EQ(sizeof(nccl::UniqueId), sizeof(ncclUniqueId));
  EXPECT_EQ(nccl::kSuccess, static_cast<int>(ncclSuccess));
  EXPECT_EQ(nccl::kInProgress, static_cast<int>(ncclInProgress));
  EXPECT_EQ(nccl::kBytes, static_cast<int>(ncclInt8));
  EXPECT_EQ(sizeof(nccl::Result), sizeof(ncclResult_t));
  EXPECT_EQ(sizeof(nccl::DataType), sizeof(ncclDataType_t));
  EXPECT_EQ(sizeof(nccl::Comm), sizeof(ncclComm_t));
  EXPECT_EQ(sizeof(nccl::Stream), sizeof(cudaStream_t));
#else
  GTEST_SKIP() << "no nccl.h here";
#endif
}

TEST(NcclAbi, TheLibraryIsDescribedOrItSaysWhyNot) {
  const std::string text = nccl_description();
  EXPECT_TRUE(text.find("NCCL 2.") == 0 || text.find("libnccl.so.2") != std::string::npos) << text;
}

}  // namespace
}  // namespace hetermoe
