#pragma once
#include <ATen/ATen.h>

#include <functional>

#include "hetermoe/base/fields.h"
#include "hetermoe/exec/memory_meter.h"

namespace hetermoe {

struct TimingOptions {
  i64 warmup = 2;        ///< runs before the first timed one
  i64 min_runs = 5;      ///< timed runs, however long they take
  i64 max_runs = 200;    ///< timed runs at most
  Seconds budget = 0.2;  ///< no further run is begun after so much timed work
  template <class V>
  void fields(V& v) {
    v("warmup", warmup, "runs before the first timed one", at_least(0));
    v("min_runs", min_runs, "timed runs at least", at_least(1));
    v("max_runs", max_runs, "timed runs at most", at_least(1));
    v("budget_s", budget, "no further run is begun after so many timed seconds", at_least(0));
  }
};

/// Something to time. prepare makes what one run uses up, run is timed, clear drops what run has made; both
/// others may be empty.
struct Task {
  std::function<void()> run, prepare, clear;
};

struct Measurement {
  Seconds median = 0, p10 = 0, p90 = 0;
  i64 runs = 0;
  double peak_bytes = 0;  ///< most tensor bytes allocated by one run at a time
  double kept_bytes = 0;  ///< of these alive after it
};

/// Times a task on `device`, and waits for the device's queued work around every run. Then runs the task once
/// more and counts the bytes that it allocates. Allocations of prepare() do not count, nor does run() freeing
/// them.
Measurement measure(const Task& task, const at::Device& device, const TimingOptions& options);

/// Percentile of values by linear interpolation between ranks; share from 0 to 1. `values` is not empty.
double percentile(std::vector<double> values, double share);

/// Waits until all work queued on the device has ended. At once on a CPU.
void synchronize(const at::Device& device);

/// Counts tensor memory of this thread while it lives. Blocks that were allocated before the mark do not
/// count when they are freed: a task that frees its inputs must not hide what it makes.
class AllocationCounter {
 public:
  /// Counts from here: the present becomes zero.
  void mark();
  double peak() const;     ///< most bytes over the mark since
  double current() const;  ///< bytes over the mark now

 private:
  MemoryMeter meter_;
  MemoryMeter::Watch watch_{meter_, 0};
};

}  // namespace hetermoe
