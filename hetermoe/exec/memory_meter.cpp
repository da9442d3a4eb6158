#include "hetermoe/exec/memory_meter.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace hetermoe {

/// Shared by all threads that work for any device: a block may be freed by another device's thread than
/// allocated it, which then counts for the op that freed it on the device that held it.
struct MemoryMeter::Ledger {
  struct Block {
    Bytes bytes;
    DeviceId device;
  };
  mutable std::mutex mutex;
  std::unordered_map<void*, Block> blocks;
  /// Of an op on a device. How far the threads of other devices are with it is chance, so that what they free
  /// lowers `left` and never the peak: a device holds what it sends until the op ends.
  struct Record {
    OpBytes bytes;
    Bytes held = 0;  ///< what its own threads have made and not freed
  };
  std::map<std::pair<OpId, DeviceId>, Record> records;
  struct Limit {
    Bytes most;
    Bytes now = 0;
    Excess excess = {};
  };
  std::map<DeviceId, Limit> limits;

  void change(DeviceId device, OpId op, Bytes bytes) {
    const auto found = limits.find(device);
    if (found == limits.end()) return;
    Limit& limit = found->second;
    limit.now += bytes;
    if (limit.now > limit.most && limit.excess.op < 0) limit.excess = {op, limit.now};
  }

  void report(void* block, i64 size, OpId op, DeviceId device) {
    const std::lock_guard lock(mutex);
    if (size > 0) {
      const auto bytes = static_cast<Bytes>(size);
      blocks[block] = {bytes, device};
      Record& record = records[{op, device}];
      record.bytes.left += bytes;
      record.held += bytes;
      record.bytes.peak = std::max(record.bytes.peak, record.held);
      change(device, op, bytes);
      return;
    }
    const auto found = blocks.find(block);
    if (found == blocks.end()) return;
    const auto [bytes, holder] = found->second;
    Record& record = records[{op, holder}];
    record.bytes.left -= bytes;
    if (holder == device) record.held -= bytes;
    change(holder, op, -bytes);
    blocks.erase(found);
  }
};

/// What libtorch calls on the thread that allocates or frees.
struct MemoryMeter::Observer : public c10::MemoryReportingInfoBase {
  Observer(std::shared_ptr<Ledger> in, DeviceId of) : ledger(std::move(in)), device(of) {}
  void reportMemoryUsage(void* block, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    ledger->report(block, size, op, device);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::shared_ptr<Ledger> ledger;
  DeviceId device;
  OpId op = 0;
};

struct MemoryMeter::Watch::Impl {
  std::shared_ptr<Observer> observer;
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, observer};
};

MemoryMeter::Watch::Watch(MemoryMeter& meter, DeviceId device)
    : impl_(new Impl{std::make_shared<Observer>(meter.ledger_, device)}) {}
MemoryMeter::Watch::~Watch() = default;
void MemoryMeter::Watch::begin(OpId op) { impl_->observer->op = op; }

MemoryMeter::MemoryMeter() : ledger_(std::make_shared<Ledger>()) {}
MemoryMeter::~MemoryMeter() = default;

void MemoryMeter::clear_records() {
  const std::lock_guard lock(ledger_->mutex);
  ledger_->records.clear();
}

void MemoryMeter::forget() {
  const std::lock_guard lock(ledger_->mutex);
  ledger_->records.clear();
  ledger_->blocks.clear();
}

void MemoryMeter::set_limit(DeviceId device, Bytes most) {
  const std::lock_guard lock(ledger_->mutex);
  Ledger::Limit limit{.most = most};
  for (const auto& [address, block] : ledger_->blocks) limit.now += block.device == device ? block.bytes : 0;
  ledger_->limits[device] = limit;
}

MemoryMeter::Excess MemoryMeter::excess(DeviceId device) const {
  const std::lock_guard lock(ledger_->mutex);
  const auto found = ledger_->limits.find(device);
  return found == ledger_->limits.end() ? Excess{} : found->second.excess;
}

MemoryMeter::OpBytes MemoryMeter::of(OpId op, DeviceId device) const {
  const std::lock_guard lock(ledger_->mutex);
  const auto found = ledger_->records.find({op, device});
  return found == ledger_->records.end() ? OpBytes{} : found->second.bytes;
}

Bytes MemoryMeter::alive() const {
  const std::lock_guard lock(ledger_->mutex);
  Bytes sum = 0;
  for (const auto& [address, block] : ledger_->blocks) sum += block.bytes;
  return sum;
}

std::vector<Bytes> MemoryMeter::peaks(const Timeline& timeline, i32 num_devices) const {
  struct Change {
    Seconds time;
    bool starts;
    Bytes bytes;
    /// At one moment, what ends is gone before what begins comes.
    bool operator<(const Change& other) const {
      return time != other.time ? time < other.time : starts < other.starts;
    }
  };
  std::vector<std::vector<Change>> changes(static_cast<std::size_t>(num_devices));
  for (const Span& span : timeline.spans) {
    const OpBytes bytes = of(span.op, span.device);
    std::vector<Change>& of_device = changes[static_cast<std::size_t>(span.device)];
    of_device.push_back({span.start, true, bytes.peak});
    of_device.push_back({span.end, false, bytes.left - bytes.peak});
  }
  std::vector<Bytes> peaks;
  for (std::vector<Change>& of_device : changes) {
    std::stable_sort(of_device.begin(), of_device.end());
    Bytes now = 0, peak = 0;
    for (const Change& change : of_device) {
      now += change.bytes;
      peak = std::max(peak, now);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace hetermoe
