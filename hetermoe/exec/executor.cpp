#include "hetermoe/exec/executor.h"

#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <system_error>
#include <tuple>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/exec/threads.h"

namespace hetermoe {
namespace {

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The error being handled, with the op that met it. To be called inside a catch block.
std::exception_ptr with_place(const std::string& where) {
  const auto text = [&](const char* what) { return fmt::format("[{}] {}", where, what); };
  try {
    throw;
  } catch (const TransportError& error) {
    return std::make_exception_ptr(TransportError(text(error.what())));
  } catch (const InternalError& error) {
    return std::make_exception_ptr(InternalError(text(error.what())));
  } catch (const c10::Error& error) {
    return std::make_exception_ptr(DeviceError(text(error.what_without_backtrace())));
  } catch (const std::exception& error) {
    return std::make_exception_ptr(DeviceError(text(error.what())));
  } catch (...) {
    return std::make_exception_ptr(DeviceError(text("threw something that is no exception")));
  }
}

/// In one process a message is its sender's memory.
void copy_received(std::vector<Message>& in, std::span<const DeviceId> participants, DeviceId self) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (participants[i] == self) continue;
    for (at::Tensor& tensor : in[i].tensors) tensor = tensor.clone();
  }
}

}  // namespace

Executor::Executor(const RunContext& context, std::vector<DeviceState*> states, Transport& transport,
                   ExecutorOptions options)
    : context_(context),
      transport_(transport),
      options_(std::move(options)),
      clock_(options_.clock, options_.pace_scale),
      work_(options.emulated != nullptr ? *options.emulated : context.placement, context.model,
            context.cluster),
      lifetimes_(make_lifetimes(context.schedule, context.placement)),
      host_links_(make_in_process_transport(context.schedule.num_places())) {
  HM_CHECK(!clock_.needs_durations() || options_.truth != nullptr, "an emulated clock needs a cost model");
  if (options_.memory_limit > 0 && options_.memory == nullptr) {
    own_meter_ = std::make_unique<MemoryMeter>();
    options_.memory = own_meter_.get();
  }
  for (DeviceState* state : states) devices_.push_back(std::make_unique<DeviceLanes>(context_, *state));
  make_lanes();
  give_turns();
  may_overlap_ = can_overlap();
}

Executor::DeviceLanes::DeviceLanes(const RunContext& context, DeviceState& state) {
  const std::size_t count = context.schedule.overlaps() ? 2 : 1;
  while (steps.size() < count) steps.push_back(std::make_unique<DeviceStep>(context, state));
}

/// Streams, meters and turns know one step.
bool Executor::can_overlap() const {
  if (!context_.schedule.overlaps() || options_.memory != nullptr || transport_.attributes().one_launch_order)
    return false;
  return std::all_of(devices_.begin(), devices_.end(), [&](const std::unique_ptr<DeviceLanes>& device) {
    const c10::Device where = device->runtime().where();
    return where.is_cpu() && options_.make_stream(where, false) == nullptr;
  });
}

Executor::~Executor() { stop_lanes(); }

/// Before the first step, not before: who only predicts needs no threads. When the system gives no more,
/// those that run are ended: destroyed without that, they would end the process.
void Executor::start_lanes() {
  if (has_started_) return;
  std::size_t started = 0;
  stop_ = false;  // nobody runs who could read it
  try {
    for (std::unique_ptr<Lane>& lane : lanes_) {
      const auto main = [this, &lane] { lane_main(*lane); };
      lane->thread = options_.start_thread ? options_.start_thread(main) : std::thread(main);
      ++started;
    }
  } catch (const std::system_error& error) {
    stop_lanes();
    fail<DeviceError>(
        "executor",
        "cannot start thread {} of {}, one for each queue of {} devices: {}. Raise the limit of "
        "threads (ulimit -u, pids of the container) or start more processes with fewer devices",
        started + 1, lanes_.size(), devices_.size(), error.what());
  }
  has_started_ = true;
}

void Executor::stop_lanes() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    started_.notify_all();
  }
  for (std::unique_ptr<Lane>& lane : lanes_) {
    if (lane->thread.joinable()) lane->thread.join();
  }
}

void Executor::make_lanes() {
  const Schedule& schedule = context_.schedule;
  std::vector<DeviceLanes*> local(idx(schedule.num_places()), nullptr);
  for (std::unique_ptr<DeviceLanes>& device : devices_) {
    local[idx(device->runtime().device())] = device.get();
    device->done.resize(schedule.ops.size());
    device->ended.resize(schedule.ops.size());
    for (std::unique_ptr<DeviceStep>& step : device->steps) {
      step->end.resize(schedule.ops.size());
      step->uses_left.resize(lifetimes_.epochs.size());
      step->users.resize(lifetimes_.epochs.size());
    }
  }
  std::vector<Lane*> by_id(idx(schedule.num_places()) * kLanesOfPlace, nullptr);
  const auto on_device = [&](OpId op, DeviceId device) {
    const std::span<const LaneId> lanes = schedule.lanes_of(op);
    return std::any_of(lanes.begin(), lanes.end(), [&](LaneId lane) { return device_of(lane) == device; });
  };
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    const std::span<const LaneId> lanes = schedule.lanes_of(op);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      DeviceLanes* device = local[idx(device_of(lanes[i]))];
      if (device == nullptr) continue;
      Lane*& lane = by_id[idx(lanes[i])];
      if (lane == nullptr) {
        lanes_.push_back(std::make_unique<Lane>());
        lane = lanes_.back().get();
        lane->id = lanes[i];
        lane->device = device;
      }
      LaneOp item{op, i, {}, {}, {}};
      for (const OpId dep : schedule.deps_of(op)) {
        if (on_device(dep, device_of(lanes[i]))) item.dependencies.push_back(dep);
      }
      for (const OpId dep : schedule.carry_of(op)) {
        if (on_device(dep, device_of(lanes[i]))) item.carried.push_back(dep);
      }
      lane->ops.push_back(std::move(item));
    }
  }
  std::sort(lanes_.begin(), lanes_.end(), [](const auto& a, const auto& b) { return a->id < b->id; });
}

void Executor::set_clock(ClockKind kind, double pace_scale) {
  clock_ = Clock(kind, pace_scale);
  HM_CHECK(!clock_.needs_durations() || options_.truth != nullptr, "an emulated clock needs a cost model");
}

StepResult Executor::run(const StepInput& input) {
  begin(input);
  return end();
}

void Executor::begin(const StepInput& input) {
  HM_CHECK(!poisoned_, "the executor is used after an error");
  HM_CHECK(steps_under_way() <= (may_overlap_ ? 1 : 0), "{} steps are under way", steps_under_way());
  start_lanes();
  const i64 step = begun_ + 1;
  const bool follows = steps_under_way() > 0;
  inputs_[side(step)] = input;
  follows_[side(step)] = follows;
  if (!follows) transport_.begin_step();
  if (options_.memory != nullptr) options_.memory->clear_records();
  for (std::unique_ptr<DeviceLanes>& device : devices_) {
    DeviceStep& own = device->of(step);
    own.runtime.begin_step(inputs_[side(step)]);
    if (!follows) device->state_bytes = own.runtime.state_bytes();
    device->begin = record_event(own.runtime.where());
    device->origin = nullptr;
    for (std::size_t e = 0; e < lifetimes_.epochs.size(); ++e)
      own.uses_left[e] = lifetimes_.epochs[e].num_ops;
  }
  if (!follows) set_memory_limits();
  const std::lock_guard lock(mutex_);
  lanes_left_[side(step)] = lanes_.size();
  ++begun_;
  if (!follows) clock_.start_step();
  started_.notify_all();
}

StepResult Executor::end() {
  HM_CHECK(steps_under_way() > 0, "no step is under way");
  const i64 step = over_ + 1;
  wait_for_lanes(step);
  if (error_ && steps_under_way() > 1) wait_for_lanes(step + 1);
  over_ = error_ ? begun_ : step;
  if (error_) std::rethrow_exception(error_);
  check_leaks(step);
  return collect(step);
}

void Executor::settle() {
  for (i64 step = over_ + 1; step <= begun_; ++step) wait_for_lanes(step);
}

void Executor::wait_for_lanes(i64 step) {
  using Time = std::chrono::steady_clock;
  const std::chrono::duration<double> poll(std::min(1.0, options_.watchdog / 4));
  std::unique_lock lock(mutex_);
  i64 seen = ops_ended_;
  Time::time_point since = Time::now();
  while (!ended_.wait_for(lock, poll, [&] { return lanes_left_[side(step)] == 0; })) {
    const i64 ended = ops_ended_;
    if (ended != seen) since = Time::now();
    seen = ended;
    const std::chrono::duration<double> quiet = Time::now() - since;
    if (quiet.count() < options_.watchdog) continue;
    lock.unlock();
    report_hang(quiet.count());
    lock.lock();
    since = Time::now();
  }
}

void Executor::lane_main(Lane& lane) {
  const c10::NoGradGuard no_grad;
  use_precise_sleep();
  const bool computes = queue_of(lane.id) == Queue::kCompute;
  use_threads(computes ? options_.threads_per_lane : 1);
  lane.stream = options_.make_stream(lane.device->runtime().where(), !computes);
  if (options_.memory != nullptr) {
    lane.watch = std::make_unique<MemoryMeter::Watch>(*options_.memory, device_of(lane.id));
  }
  while (true) {
    {
      std::unique_lock lock(mutex_);
      started_.wait(lock, [&] { return stop_ || begun_ != lane.step; });
      if (stop_) break;
      ++lane.step;
    }
    run_lane(lane);
    const std::lock_guard lock(mutex_);
    if (--lanes_left_[side(lane.step)] == 0) ended_.notify_all();
  }
  lane.watch.reset();  // these two belong to this thread
  lane.stream.reset();
}

void Executor::run_lane(Lane& lane) {
  LaneStep& step = now(lane);
  step.spans.assign(lane.ops.size(), {});
  step.busy = step.nominal = 0;
  step.end = follows_[side(lane.step)] ? lane.steps[side(lane.step - 1)].end : 0;
  if (lane.stream != nullptr) begin_stream(lane);
  const double cpu_begin = thread_cpu_seconds();
  for (lane.next = 0; lane.next < lane.ops.size() && !poisoned_; ++lane.next) {
    const LaneOp& item = lane.ops[lane.next];
    guard(lane, item, [&] { run_op(lane, item); });
  }
  if (lane.stream != nullptr && !lane.ops.empty()) guard(lane, lane.ops.back(), [&] { end_stream(lane); });
  step.cpu_seconds = thread_cpu_seconds() - cpu_begin;
}

void Executor::guard(const Lane& lane, const LaneOp& item, const std::function<void()>& f) {
  try {
    f();
  } catch (const Poisoned&) {
  } catch (...) {
    const DeviceId device = device_of(lane.id);
    const std::string where = fmt::format("device {} ({}) {}", device, context_.cluster.device_name(device),
                                          to_string(context_.schedule.ops[idx(item.op)]));
    poison(with_place(where));
  }
}

void Executor::run_op(Lane& lane, const LaneOp& item) {
  const Seconds ready = wait_until_ready(lane, item);
  const Op& op = context_.schedule.ops[idx(item.op)];
  const bool wide = is_wide(op);
  if (wide) use_threads(options_.threads_per_lane);
  if (options_.before_op) options_.before_op(op, device_of(lane.id));
  if (lane.watch != nullptr) lane.watch->begin(item.op);
  now(lane).spans[lane.next] = {item.op, device_of(lane.id), 0, 0};
  if (lane.stream == nullptr) {
    now(lane).end = perform(lane, item, ready);
  } else {
    launch(lane, item, ready);
  }
  if (wide) use_threads(1);
  check_memory(lane);
  finish_op(lane, item, now(lane).end);
}

/// The op itself, from reading its buffers to writing them. Returns when it ended.
Seconds Executor::perform(Lane& lane, const LaneOp& item, Seconds ready) {
  const Op& op = context_.schedule.ops[idx(item.op)];
  Span& span = now(lane).spans[static_cast<std::size_t>(&item - lane.ops.data())];
  return is_compute(op.kind) ? run_compute(lane, op, ready, span) : run_transfer(lane, item, op, ready, span);
}

Seconds Executor::wait_until_ready(Lane& lane, const LaneOp& item) {
  DeviceLanes& device = *lane.device;
  Seconds ready = now(lane).end;
  std::unique_lock lock(device.mutex);
  const auto wait_for = [&](OpId dep, i64 step) {
    device.changed.wait(lock, [&] { return poisoned_ || device.done[idx(dep)] >= step; });
    if (poisoned_) throw Poisoned();
    ready = std::max(ready, device.of(step).end[idx(dep)]);
  };
  for (const OpId dep : item.dependencies) wait_for(dep, lane.step);
  if (follows_[side(lane.step)]) {
    for (const OpId dep : item.carried) wait_for(dep, lane.step - 1);
  }
  if (poisoned_) throw Poisoned();
  for (const i32 epoch : lifetimes_.uses_of(context_.schedule, item.op, item.lane_number)) {
    const Epoch& e = lifetimes_.epochs[idx(epoch)];
    // It may have ended for the next step already: each step has its own buffers.
    HM_CHECK(e.first == item.op || device.done[idx(e.first)] >= lane.step,
             "needs {} of {}, which has not ended: a dependency is missing", to_string(e.key),
             to_string(context_.schedule.ops[idx(e.first)]));
  }
  return ready;
}

Seconds Executor::run_compute(Lane& lane, const Op& op, Seconds ready, Span& span) {
  DeviceRuntime& runtime = here(lane).runtime;
  span.start = clock_.start(ready);
  runtime.compute(op);
  Seconds duration = 0;
  if (clock_.needs_durations() || options_.nominal != nullptr) {
    const ComputeWork work = work_.compute_work(op, runtime.device(), runtime.load_of(op));
    if (clock_.needs_durations()) duration = options_.truth->compute(work);
    if (options_.nominal != nullptr) now(lane).nominal += options_.nominal->compute(work);
  }
  span.end = clock_.finish(span.start, duration);
  now(lane).busy += span.end - span.start;
  return span.end;
}

Seconds Executor::run_transfer(Lane& lane, const LaneOp& item, const Op& op, Seconds ready, Span& span) {
  DeviceRuntime& runtime = here(lane).runtime;
  std::vector<DeviceId> participants;
  for (const LaneId id : context_.schedule.lanes_of(item.op)) participants.push_back(device_of(id));
  span.start = clock_.start(ready);
  i32 round = 0;
  for (const TransferOp* each = &transfer_op_of(op, context_.placement, context_.cluster); each != nullptr;
       each = each->next, ++round) {
    // Each tells its peers the latest of whom it knows.
    ready = exchange(lane, item, *each, round, ready,
                     peers_of(*each, context_.cluster, participants, runtime.device()));
    // A transfer starts when its last participant is ready.
    if (clock_.needs_durations()) span.start = std::max(span.start, ready);
  }
  Seconds duration = 0;
  if (clock_.needs_durations()) {
    const std::vector<PortBytes> bytes = work_.port_bytes(op, participants, runtime.load_of(op));
    duration = options_.truth->transfer({op, participants, bytes}).seconds();
  }
  span.end = clock_.finish(span.start, duration);
  return span.end;
}

/// With the participants that are peers here. Returns when the last of them was ready.
Seconds Executor::exchange(Lane& lane, const LaneOp& item, const TransferOp& transfer, i32 round,
                           Seconds ready, std::span<const DeviceId> participants) {
  DeviceRuntime& runtime = here(lane).runtime;
  const Op& op = context_.schedule.ops[idx(item.op)];
  std::vector<Message> out = runtime.pack(transfer, op, participants);
  // The receiver may read the same memory.
  const EventPtr written = record_event(runtime.where());
  for (Message& message : out) {
    message.ready = ready;
    message.written = written;
  }
  const std::vector<MessageShape> expected =
      runtime.expected(transfer, op, participants, out[position(participants, runtime.device())]);
  const bool is_copy = is_host_copy(op);
  Transport& transport = is_copy ? *host_links_ : transport_;
  std::vector<Message> in = transport.exchange({.step = inputs_[side(lane.step)].step,
                                                .op = item.op,
                                                .name = to_string(op),
                                                .self = runtime.device(),
                                                .participants = participants,
                                                .queue = static_cast<i32>(queue_of(lane.id)),
                                                .turn = is_copy ? 0 : item.turns[idx(round)],
                                                .expected = expected,
                                                .round = round,
                                                .where = runtime.where()},
                                               std::move(out));
  Seconds last = ready;
  for (const Message& message : in) last = std::max(last, message.ready);
  if (is_copy && runtime.where().is_cpu()) wait_for_writers(in);
  Message elsewhere;
  if (!is_copy) elsewhere = bring_here(in, runtime.where());
  if (options_.memory != nullptr && !is_copy) copy_received(in, participants, runtime.device());
  runtime.check(transfer, op, participants, expected, in);
  runtime.unpack(transfer, op, participants, in);
  in.push_back(std::move(elsewhere));
  keep_until_read(lane, std::move(in));
  return last;
}

void Executor::finish_op(Lane& lane, const LaneOp& item, Seconds end) {
  DeviceLanes& device = *lane.device;
  DeviceStep& step = here(lane);
  const std::lock_guard lock(device.mutex);
  for (const i32 epoch : lifetimes_.uses_of(context_.schedule, item.op, item.lane_number)) {
    if (lane.stream != nullptr) step.users[idx(epoch)].push_back(device.ended[idx(item.op)]);
    if (--step.uses_left[idx(epoch)] > 0) continue;
    const Epoch& e = lifetimes_.epochs[idx(epoch)];
    const auto take = [runtime = &step.runtime, e] { return runtime->take(e.key); };
    if (lane.stream != nullptr) {
      lane.stream->release(std::exchange(step.users[idx(epoch)], {}), take);
    } else {
      take();
    }
  }
  step.end[idx(item.op)] = end;
  device.done[idx(item.op)] = lane.step;
  ++ops_ended_;
  device.changed.notify_all();
}

}  // namespace hetermoe
