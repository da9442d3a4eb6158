#include "hetermoe/device/cpu_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <new>

namespace hetermoe {
namespace {

constexpr std::size_t kPage = 4096;

/// Sizes between two powers of two come in eight steps, so that buffers of nearly equal size, such as the
/// rows that an expert receives, find each other. What is not touched costs no memory.
std::size_t stepped_up(std::size_t bytes) {
  const std::size_t step = std::max(kPage, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

/// Whether a kept block of `have` bytes may serve for `want`.
bool serves(std::size_t have, std::size_t want) { return have >= want && have - want <= want / 4; }

}  // namespace

BlockCache::~BlockCache() {
  while (!kept_.empty()) drop_for(1);
}

void* BlockCache::take(std::size_t bytes) {
  const std::size_t want = stepped_up(bytes);
  const std::lock_guard lock(mutex_);
  std::size_t best = kept_.size();
  for (std::size_t i = kept_.size(); i-- > 0;) {
    if (serves(kept_[i].bytes, want) && (best == kept_.size() || kept_[i].bytes < kept_[best].bytes))
      best = i;
  }
  Block block{nullptr, want};
  if (best < kept_.size()) {
    block = kept_[best];
    kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(best));
    usage_.kept -= block.bytes;
  }
  usage_.in_use += block.bytes;
  usage_.most_in_use = std::max(usage_.most_in_use, usage_.in_use);
  const std::size_t most = usage_.most_in_use + slack_;
  while (!kept_.empty() && usage_.in_use + usage_.kept > most) drop_for(usage_.in_use + usage_.kept - most);
  try {
    if (block.begin == nullptr) block.begin = map(block.bytes);
    in_use_.emplace(block.begin, block.bytes);
  } catch (...) {
    usage_.in_use -= block.bytes;
    throw;
  }
  return block.begin;
}

bool BlockCache::give_back(void* begin) noexcept {
  const std::lock_guard lock(mutex_);
  const auto it = in_use_.find(begin);
  if (it == in_use_.end()) return false;
  const Block block{begin, it->second};
  in_use_.erase(it);
  usage_.in_use -= block.bytes;
  usage_.kept += block.bytes;
  kept_.push_back(block);
  return true;
}

BlockCache::Usage BlockCache::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

void* BlockCache::map(std::size_t bytes) {
  void* const begin = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) throw std::bad_alloc();
  return begin;
}

/// Drops one block: the smallest that is enough, so that large ones, which cost most to fill anew, stay where
/// small ones do; without such a one the largest. Of equal ones that which was kept longest.
void BlockCache::drop_for(std::size_t bytes) noexcept {
  std::size_t best = 0;
  for (std::size_t i = 1; i < kept_.size(); ++i) {
    const std::size_t size = kept_[i].bytes, best_size = kept_[best].bytes;
    if (best_size < bytes ? size > best_size : size >= bytes && size < best_size) best = i;
  }
  const Block block = kept_[best];
  kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(best));
  usage_.kept -= block.bytes;
  ::munmap(block.begin, block.bytes);
}

namespace {

/// Sizes whose turns to be used most differ do not take each other's place within this.
constexpr std::size_t kSlack = 32 << 20;

/// Tensors may outlive every destructor of this process, so the cache has none.
BlockCache& cache() {
  static BlockCache& instance = *new BlockCache(kSlack);
  return instance;
}

/// Smaller ones are malloc's: it cuts them from what it keeps.
constexpr std::size_t kSmallestBlock = 1 << 20;

void free_tensor(void* data) {
  if (data != nullptr && !cache().give_back(data)) c10::GetDefaultCPUAllocator()->raw_deallocate(data);
}

struct TensorAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes < kSmallestBlock) return c10::GetDefaultCPUAllocator()->allocate(bytes);
    void* const data = cache().take(bytes);
    return {data, data, &free_tensor, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_tensor; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

}  // namespace

std::vector<std::string> tune_malloc(const SetMalloc& set) {
  struct Parameter {
    int number;
    const char* name;
    std::vector<int> values;  ///< the first that malloc takes
  };
  std::vector<Parameter> parameters;
#ifdef __GLIBC__
  parameters = {{M_MMAP_THRESHOLD, "M_MMAP_THRESHOLD", {1 << 30, 32 << 20}},
                {M_TRIM_THRESHOLD, "M_TRIM_THRESHOLD", {1 << 30}},
                {M_ARENA_MAX, "M_ARENA_MAX", {1}}};  // arenas of threads hold no large blocks
#endif
  std::vector<std::string> refused;
  for (const Parameter& parameter : parameters) {
    const auto takes = [&](int value) { return set(parameter.number, value) != 0; };
    if (std::none_of(parameter.values.begin(), parameter.values.end(), takes))
      refused.emplace_back(parameter.name);
  }
  return refused;
}

void keep_freed_memory() {
#ifdef __GLIBC__
  tune_malloc(&::mallopt);
#endif
  static TensorAllocator allocator;
  constexpr std::uint8_t kPriority = 1;  // of libtorch's own: 0
  c10::SetCPUAllocator(&allocator, kPriority);
}

}  // namespace hetermoe
