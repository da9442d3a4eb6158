#include "hetermoe/profile/measure.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <unordered_map>

namespace hetermoe {
namespace {

/// Blocks that were allocated before the mark do not count when they are freed: an op that frees its inputs
/// must not hide what it makes.
class Observer : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* block, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    const std::lock_guard lock(mutex_);
    if (size > 0) {
      blocks_[block] = static_cast<double>(size);
      current_ += static_cast<double>(size);
      peak_ = std::max(peak_, current_);
      return;
    }
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return;
    current_ -= found->second;
    blocks_.erase(found);
  }
  bool memoryProfilingEnabled() const override { return true; }
  void mark() {
    const std::lock_guard lock(mutex_);
    blocks_.clear();
    current_ = peak_ = 0;
  }
  double peak() const {
    const std::lock_guard lock(mutex_);
    return peak_;
  }
  double current() const {
    const std::lock_guard lock(mutex_);
    return current_;
  }

 private:
  mutable std::mutex mutex_;  // autograd of a GPU runs on its own threads
  std::unordered_map<void*, double> blocks_;
  double current_ = 0, peak_ = 0;
};

Seconds now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void prepare(const Task& task, const at::Device& device) {
  if (task.prepare) task.prepare();
  synchronize(device);
}

void clear(const Task& task) {
  if (task.clear) task.clear();
}

}  // namespace

struct AllocationCounter::Impl {
  std::shared_ptr<Observer> observer = std::make_shared<Observer>();
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, observer};
};

AllocationCounter::AllocationCounter() : impl_(std::make_unique<Impl>()) {}
AllocationCounter::~AllocationCounter() = default;
void AllocationCounter::mark() { impl_->observer->mark(); }
double AllocationCounter::peak() const { return impl_->observer->peak(); }
double AllocationCounter::current() const { return impl_->observer->current(); }

void synchronize(const at::Device& device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeDevice(device.has_index() ? device.index() : guard.getDevice().index());
}

double percentile(std::vector<double> values, double share) {
  HM_CHECK(!values.empty(), "a percentile of nothing");
  std::sort(values.begin(), values.end());
  const double rank = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (rank - static_cast<double>(below)) * (values[above] - values[below]);
}

Measurement measure(const Task& task, const at::Device& device, const TimingOptions& options) {
  for (i64 i = 0; i < options.warmup; ++i) {
    prepare(task, device);
    task.run();
    clear(task);
  }
  std::vector<double> seconds;
  Seconds spent = 0;
  while (static_cast<i64>(seconds.size()) < options.min_runs ||
         (spent < options.budget && static_cast<i64>(seconds.size()) < options.max_runs)) {
    prepare(task, device);
    const Seconds begin = now();
    task.run();
    synchronize(device);
    // The clock's resolution is a nanosecond or so; a time of zero would be no measurement.
    seconds.push_back(std::max(now() - begin, 1e-9));
    spent += seconds.back();
    clear(task);
  }
  Measurement out{percentile(seconds, 0.5), percentile(seconds, 0.1), percentile(seconds, 0.9),
                  static_cast<i64>(seconds.size())};
  AllocationCounter counter;
  prepare(task, device);
  counter.mark();
  task.run();
  synchronize(device);
  out.peak_bytes = counter.peak();
  out.kept_bytes = counter.current();
  clear(task);
  return out;
}

}  // namespace hetermoe
