#pragma once
#include <memory>
#include <vector>

#include "hetermoe/timeline/timeline.h"

namespace hetermoe {

/// Tensor memory by device and op. libtorch's allocators (CPU and CUDA alike) report every block to the
/// thread's memory observer, the hook that its own profiler uses; threads of autograd inherit it. Blocks that
/// were allocated outside of a watched thread do not count, neither when they come nor when they go. Not to
/// be used under torch's profiler.
class MemoryMeter {
 private:
  struct Ledger;
  struct Observer;

 public:
  /// Memory of one op on one device: bytes over those at its start.
  struct OpBytes {
    Bytes peak = 0;  ///< the most while it ran, with what other devices freed of it before its end
    Bytes left = 0;  ///< at its end; negative = it freed more than it made
  };

  MemoryMeter();
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  /// The calling thread works for `device` while this lives. One at a time per thread.
  class Watch {
   public:
    Watch(MemoryMeter& meter, DeviceId device);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    /// From here on the thread runs this op.
    void begin(OpId op);

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  /// Forgets the records of all ops. Blocks that are alive stay known, so that freeing them counts.
  void clear_records();
  /// Forgets the blocks, too: freeing them counts no more.
  void forget();
  OpBytes of(OpId op, DeviceId device) const;
  /// Bytes of all blocks that watched threads have allocated and not freed.
  Bytes alive() const;

  /// From now on the device may have so many bytes of watched blocks at once.
  void set_limit(DeviceId device, Bytes most);
  /// The first op that had more, and how much; op -1 = none had.
  struct Excess {
    OpId op = -1;
    Bytes bytes = 0;
  };
  Excess excess(DeviceId device) const;

  /// [num_devices] most bytes at any moment of a step whose ops ran at the times of the timeline.
  std::vector<Bytes> peaks(const Timeline& timeline, i32 num_devices) const;

 private:
  std::shared_ptr<Ledger> ledger_;
};

}  // namespace hetermoe
