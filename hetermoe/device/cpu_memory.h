#pragma once
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

// Memory of the CPU's tensors. Buffers come back step after step in the same sizes. As shipped, malloc gives
// large ones back to the system, and every reuse pays for fresh zeroed pages, 6 to 9 % of a training step;
// told to keep them, it cuts them up for small ones and grows for the next large one.
namespace hetermoe {

/// Large blocks of memory which are kept when they are given back, whole, for the next of about their size.
/// Never holds more than was in use at once, and the slack: where another size is asked for, kept blocks give
/// way. Any thread may call.
class BlockCache {
 public:
  explicit BlockCache(std::size_t slack = 0) : slack_(slack) {}
  ~BlockCache();  ///< blocks in use stay
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  /// At least so many bytes (> 0), aligned to a page. Throws std::bad_alloc.
  void* take(std::size_t bytes);
  /// false: the block is not of this cache.
  bool give_back(void* block) noexcept;

  struct Usage {
    std::size_t in_use = 0, kept = 0;  ///< bytes now
    std::size_t most_in_use = 0;
  };
  Usage usage() const;

 private:
  struct Block {
    void* begin;
    std::size_t bytes;
  };
  void* map(std::size_t bytes);
  void drop_for(std::size_t bytes) noexcept;

  const std::size_t slack_;
  mutable std::mutex mutex_;
  std::unordered_map<void*, std::size_t> in_use_;  ///< bytes by begin
  std::vector<Block> kept_;                        ///< the one that was given back last at the end
  Usage usage_;
};

/// Sets one of malloc's parameters, as mallopt() does; 0 = refused.
using SetMalloc = std::function<int(int parameter, int value)>;

/// Tells malloc to keep what is freed, in one arena. The C library may refuse: glibc before 2.35 takes no
/// threshold beyond 32 MiB for blocks that it maps one by one. Then the largest is set that it takes. Returns
/// the names of what it refused altogether, which only costs time.
std::vector<std::string> tune_malloc(const SetMalloc& set);

/// From here on this process keeps the memory that it frees: large tensors come from a BlockCache, the rest
/// from malloc, which keeps it, too. Call once, before the first tensor.
void keep_freed_memory();

}  // namespace hetermoe
