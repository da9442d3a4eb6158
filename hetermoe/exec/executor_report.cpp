#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/exec/executor.h"
#include "hetermoe/sim/simulator.h"

// What an executor tells of a step: results, times, loads, its first error, and where it hangs.
namespace hetermoe {
namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

}  // namespace

void Executor::poison(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = error;
    poisoned_ = true;
  }
  for (std::unique_ptr<DeviceLanes>& device : devices_) {
    const std::lock_guard lock(device->mutex);
    device->changed.notify_all();
  }
  const std::string text = text_of(error);
  transport_.abort(text);
  host_links_->abort(text);
}

/// The first time the step fails; a lane that even then stays in its op cannot be stopped, so that is said
/// aloud.
void Executor::report_hang(Seconds quiet) {
  const std::string report = fmt::format("no op ended for {:.3g} s. Each lane:\n{}", quiet, hang_report());
  if (!poisoned_) {
    poison(std::make_exception_ptr(TransportError("[watchdog] " + report)));
  } else {
    fmt::print(stderr, "[watchdog] the step failed, but some lanes do not leave their op: {}", report);
  }
}

std::string Executor::hang_report() const {
  std::string text;
  std::vector<AwaitedMessage> awaited = transport_.awaited();
  const std::vector<AwaitedMessage> of_hosts = host_links_->awaited();
  awaited.insert(awaited.end(), of_hosts.begin(), of_hosts.end());
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    const std::size_t head = lane->next;
    const DeviceId device = device_of(lane->id);
    text += fmt::format("  device {} ({}) {}: ", device, context_.cluster.device_name(device),
                        lane_name(lane->id));
    if (head >= lane->ops.size()) {
      const std::size_t ended = lane->num_ended;
      const bool launched = runs_ahead(*lane) && ended < lane->ops.size();
      text += launched ? fmt::format("{} {} is launched and has not ended\n", lane->ops[ended].op,
                                     to_string(context_.schedule.ops[idx(lane->ops[ended].op)]))
                       : "done\n";
      continue;
    }
    const LaneOp& item = lane->ops[head];
    const Op& op = context_.schedule.ops[idx(item.op)];
    std::vector<std::string> missing;
    {
      const std::lock_guard lock(lane->device->mutex);
      for (const OpId dep : item.dependencies) {
        if (lane->device->done[idx(dep)] < lane->step)
          missing.push_back(to_string(context_.schedule.ops[idx(dep)]));
      }
      for (const OpId dep : item.carried) {
        if (lane->device->done[idx(dep)] < lane->step - 1)
          missing.push_back(to_string(context_.schedule.ops[idx(dep)]) + " of the step before");
      }
    }
    const std::string activity = !missing.empty()      ? fmt::format("waits for {}", fmt::join(missing, ", "))
                                 : is_compute(op.kind) ? "computes"
                                                       : "exchanges with its peers";
    std::vector<std::string> silent;
    for (const AwaitedMessage& wait : awaited) {
      if (wait.self == device && wait.op == item.op)
        silent.push_back(fmt::format("device {} ({})", wait.from, context_.cluster.device_name(wait.from)));
    }
    text += fmt::format("{} {} {}{}\n", item.op, to_string(op), activity,
                        silent.empty() ? "" : fmt::format(", has nothing from {}", fmt::join(silent, ", ")));
  }
  return text;
}

namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

}  // namespace

/// What is left of the limit beside what outlives the step.
void Executor::set_memory_limits() {
  if (options_.memory_limit <= 0) return;
  for (const std::unique_ptr<DeviceLanes>& device : devices_) {
    const DeviceId d = device->runtime().device();
    if (d >= context_.schedule.num_devices) continue;
    const auto lasting = static_cast<Bytes>(device->state_bytes);
    if (lasting > options_.memory_limit) {
      fail<ConfigError>(
          "run.memory_limit_gib",
          "device {} ({}) keeps {:.4g} GiB of weights, gradients, masters and moments, expected at most "
          "{:.4g}. plan.offload lets them live in main memory",
          d, context_.cluster.device_name(d), lasting / kGib, options_.memory_limit / kGib);
    }
    options_.memory->set_limit(d, options_.memory_limit - lasting);
  }
}

void Executor::check_memory(const Lane& lane) const {
  if (options_.memory_limit <= 0 || lane.device->runtime().device() >= context_.schedule.num_devices) return;
  const MemoryMeter::Excess excess = options_.memory->excess(lane.device->runtime().device());
  if (excess.op < 0) return;
  fail<DeviceError>("run.memory_limit_gib",
                    "{} needs {:.4g} GiB beside {:.4g} GiB that last, expected at most {:.4g} in all. "
                    "Smaller microbatches or plan.offload take less",
                    to_string(context_.schedule.ops[idx(excess.op)]), excess.bytes / kGib,
                    static_cast<Bytes>(lane.device->state_bytes) / kGib, options_.memory_limit / kGib);
}

void Executor::check_leaks(i64 step) const {
  for (const std::unique_ptr<DeviceLanes>& device : devices_) {
    const std::vector<std::string> held = device->runtime(step).slots().held();
    HM_CHECK(held.empty(), "device {} still holds {} buffers after the step, the first is {}",
             device->runtime().device(), held.size(), held[0]);
    if (begun_ > step) continue;  // what outlives a step is in use
    HM_CHECK(!device->runtime().has_visitors(),
             "device {} still holds weights or gradients of a visit after the step",
             device->runtime().device());
    if (context_.migration != nullptr) continue;  // which changes what devices hold
    const i64 bytes = device->runtime().state_bytes();
    HM_CHECK(bytes == device->state_bytes,
             "device {} holds {} bytes of parameters, gradients and moments after the step, before it {}",
             device->runtime().device(), bytes, device->state_bytes);
  }
}

Seconds Executor::end_of(i64 step) const {
  Seconds end = 0;
  for (const std::unique_ptr<Lane>& lane : lanes_) end = std::max(end, lane->steps[side(step)].end);
  return end;
}

namespace {

double relative_error(const at::Tensor& loss) {
  if (!loss.defined()) return 0;
  const at::Tensor squares = to_host(loss, "what wires lose");
  const double all = squares[1].item<double>();
  return all > 0 ? std::sqrt(squares[0].item<double>() / all) : 0;
}

}  // namespace

StepResult Executor::collect(i64 step) {
  StepResult result;
  for (const std::unique_ptr<DeviceLanes>& device : devices_) {
    // Devices without any state take no part in the norm op.
    if (device->runtime(step).result().counts_LE.defined()) {
      result = device->runtime(step).result();
      break;
    }
  }
  if (!context_.placement.options().backward) {
    result.counts_LE = at::zeros(devices_[0]->runtime(step).local_counts().sizes(), at::kLong);
    for (const std::unique_ptr<DeviceLanes>& device : devices_) {
      result.loss += device->runtime(step).forward_loss();
      result.counts_LE.add_(to_host(device->runtime(step).local_counts(), "counts"));
    }
  }
  for (const std::unique_ptr<DeviceLanes>& device : devices_) {
    const WireLosses& losses = device->runtime(step).wire_losses();
    result.rows_error = std::max(result.rows_error, relative_error(losses.rows));
    result.gradients_error = std::max(result.gradients_error, relative_error(losses.gradients));
  }
  for (const std::unique_ptr<Lane>& lane : lanes_) result.cpu_seconds += lane->steps[side(step)].cpu_seconds;
  result.step = last_step_ = end_of(step) - last_end_ * (follows_[side(step)] ? 1 : 0);
  last_end_ = end_of(step);
  return result;
}

namespace {

void begin_at_zero(Timeline& timeline) {
  const auto first = std::min_element(timeline.spans.begin(), timeline.spans.end(),
                                      [](const Span& a, const Span& b) { return a.start < b.start; });
  const Seconds origin = first == timeline.spans.end() ? 0 : first->start;
  for (Span& span : timeline.spans) {
    span.start -= origin;
    span.end -= origin;
  }
}

}  // namespace

Timeline Executor::timeline() const {
  Timeline timeline = timeline_frame(context_.schedule, context_.placement.plan(), context_.cluster,
                                     clock_label(clock_.kind()));
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    const std::vector<Span>& spans = lane->steps[side(over_)].spans;
    timeline.spans.insert(timeline.spans.end(), spans.begin(), spans.end());
  }
  timeline.step = last_step_;
  if (follows_[side(over_)]) begin_at_zero(timeline);
  sort_spans(timeline);
  return timeline;
}

std::vector<DeviceWork> Executor::device_work() const {
  std::vector<DeviceWork> all;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (queue_of(lane->id) == Queue::kCompute && device_of(lane->id) < context_.schedule.num_devices)
      all.push_back({device_of(lane->id), lane->steps[side(over_)].busy, lane->steps[side(over_)].nominal});
  }
  return all;
}

RecordedRouting Executor::recorded_routing() const {
  RecordedRouting routing;
  for (const Op& op : context_.schedule.ops) {
    if (!row_of(op.kind).carries_routing_weights || op.phase != Phase::kForward) continue;
    for (const std::unique_ptr<DeviceLanes>& device : devices_) {
      const DeviceId d = device->runtime().device();
      if (d >= context_.schedule.num_devices) continue;
      const Exchange exchange(op, context_.placement);
      if (!exchange.is_source(d) && !exchange.is_owner(d)) continue;
      routing.set(op.group, op.layer, op.microbatch, op.chunk, *device->runtime(over_).load_of(op));
      break;
    }
  }
  return routing;
}

}  // namespace hetermoe
