#pragma once
#include <cstddef>

// The part of NCCL's binary interface that is called here, so that no header of it is needed to build. It has
// not changed since 2.7; tests/comm/nccl_abi_test.cpp compares it with nccl.h where there is one.
namespace hetermoe::nccl {

using Result = int;  // ncclResult_t
inline constexpr Result kSuccess = 0, kInProgress = 7;
using DataType = int;  // ncclDataType_t
inline constexpr DataType kBytes = 0;
struct UniqueId {
  char internal[128];
};
using Comm = void*;    // ncclComm_t
using Stream = void*;  // cudaStream_t

using GetVersion = Result(int*);
using GetErrorString = const char*(Result);
using GetUniqueId = Result(UniqueId*);
using CommInitRank = Result(Comm*, int num_ranks, UniqueId, int rank);
using GroupCall = Result();
using Send = Result(const void*, std::size_t count, DataType, int peer, Comm, Stream);
using Receive = Result(void*, std::size_t count, DataType, int peer, Comm, Stream);
using CommGetAsyncError = Result(Comm, Result*);
using CommCall = Result(Comm);

}  // namespace hetermoe::nccl
