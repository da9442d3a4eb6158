#include "hetermoe/profile/measure.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>

namespace hetermoe {
namespace {

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

void AllocationCounter::mark() { meter_.forget(); }
double AllocationCounter::peak() const { return meter_.of(0, 0).peak; }
double AllocationCounter::current() const { return meter_.of(0, 0).left; }

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
