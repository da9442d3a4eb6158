#pragma once
#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include <array>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hetermoe/base/index.h"
#include "tests/gpus/fake_gpus.h"

// What fake_gpus.cpp knows of its GPUs: which operation of which stream touched which memory, and which
// stream knows that it has ended.
namespace hetermoe::testing::fake {

inline constexpr c10::DeviceType kGpu = c10::DeviceType::PrivateUse1;
inline constexpr i32 kPooled = 16;                // streams of a priority, handed out in turn
inline constexpr i32 kStreams = 1 + 2 * kPooled;  // of a GPU
inline constexpr i32 kQueriesUntilPassed = 3;     // an event is late as long as it may be

using Clock = std::array<u64, kFakeGpus * kStreams>;  ///< operations of each stream

struct Access {
  const char *begin, *end;
  std::size_t stream;
  u64 tick;
  bool writes;
  std::string op;
};

struct Memory {
  std::size_t bytes, stream;  ///< the stream that it was taken for
  std::vector<Access> accesses;
};

struct FakeEvent {
  std::optional<Clock> clock;
  i32 queries = 0;
};

/// A copy to pinned memory: what it is to hold is there when the host has waited.
struct LateCopy {
  std::size_t stream;
  u64 tick;
  at::Tensor target, contents;
};

/// A copy from pinned memory, which the host is not to change before it has ended.
struct LateRead {
  std::size_t stream;
  u64 tick;
  at::Tensor source, contents;
  std::string op;
};

struct World {
  std::recursive_mutex mutex;  // memory may be dropped while it is held
  std::array<Clock, kFakeGpus* kStreams> clocks = {};
  Clock ended = {};  ///< as far as the host knows
  std::array<i32, 2 * kFakeGpus> next_pooled = {};
  std::map<const void*, Memory> memory;
  std::set<const void*> pinned;
  std::list<LateCopy> late;
  std::list<LateRead> late_reads;
  bool all_pinned = false;
  std::vector<std::string> faults;
  std::map<std::string, i64> waits;
};

World& world();

inline thread_local c10::DeviceIndex current_gpu = 0;
inline thread_local std::array<i32, kFakeGpus> current_streams = {};

std::size_t index_of(const c10::Stream& stream);
/// The calling thread's on that GPU.
std::size_t stream_of(c10::DeviceIndex gpu);
std::string name_of(std::size_t stream);
/// An operation with the name of the work that the calling thread does.
std::string full_name(const std::string& op);

// All of these with the world's mutex held, but for give_back().
void merge(Clock& into, const Clock& from);
/// The host knows that all this has ended.
void host_knows(const Clock& clock);
void host_waits(std::size_t stream, const std::string& op);
/// An operation of a stream reads or writes a tensor.
void touch(const at::Tensor& tensor, std::size_t stream, bool writes, const std::string& op);
void take_memory(const void* base, std::size_t bytes, std::size_t stream);
/// Its stream may have the memory again at once, for what it does next.
void give_back(const void* base);

}  // namespace hetermoe::testing::fake
