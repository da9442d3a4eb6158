#include <chrono>
#include <thread>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/exec/executor.h"

// Lanes whose device works while their thread goes on.
namespace hetermoe {

/// Before a step a stream has nothing to do, so that the first event of a device passes at once.
void Executor::begin_stream(Lane& lane) {
  DeviceLanes& device = *lane.device;
  lane.launched.clear();
  lane.num_ended = 0;
  {
    const std::lock_guard lock(device.mutex);
    if (device.origin == nullptr) {
      device.origin = lane.stream->record();
      device.origin_time = clock_.now();
    }
  }
  if (device.begin != nullptr) lane.stream->wait(device.begin);
}

void Executor::launch(Lane& lane, const LaneOp& item, Seconds ready) {
  WorkStream& stream = *lane.stream;
  DeviceLanes& device = *lane.device;
  {
    const std::lock_guard lock(device.mutex);
    for (const OpId dep : item.dependencies) stream.wait(device.ended[idx(dep)]);
  }
  Launched& launched = lane.launched.emplace_back();
  launched.start = stream.record();
  const bool ahead = runs_ahead(lane);
  stream.launch([this, &lane, &item, ready, ahead] {
    guard(lane, item, [&] {
      if (poisoned_) throw Poisoned();
      const Seconds end = perform(lane, item, ready);
      if (!ahead) now(lane).end = end;
    });
  });
  launched.end = stream.record();
  if (!ahead) {
    wait_for_event(*launched.end);
    if (poisoned_) throw Poisoned();
  } else if (lane.launched.size() > options_.ops_ahead) {
    wait_for_event(*lane.launched[lane.launched.size() - 1 - options_.ops_ahead].end);
  }
  const std::lock_guard lock(device.mutex);
  device.ended[idx(item.op)] = launched.end;
}

/// An emulated clock has to know when an op ended before the next one begins, and a meter what it freed.
bool Executor::runs_ahead(const Lane& lane) const {
  return lane.stream != nullptr && !clock_.needs_durations() && options_.memory == nullptr;
}

/// Work that will never end, because a peer is gone, does not keep the host.
void Executor::wait_for_event(const StreamEvent& event) const {
  constexpr auto kNap = std::chrono::microseconds(20);
  constexpr i64 kNapsPerCheck = 50;  // all lanes ask the transport, which answers one at a time
  for (i64 naps = 1; !event.has_passed(); ++naps) {
    if (poisoned_) throw Poisoned();
    if (naps % kNapsPerCheck == 0) transport_.check_health();
    std::this_thread::sleep_for(kNap);
  }
}

/// A host has no stream that could wait in its place: it changes what a GPU copied, or reads what one wrote.
void Executor::wait_for_writers(const std::vector<Message>& in) const {
  for (const Message& message : in) {
    if (message.written != nullptr) wait_for_event(*message.written);
  }
}

/// Between GPUs of one process a message is its sender's memory. Numbers for the host stay there. Returns
/// what was copied, to be kept until the copies have ended.
Message Executor::bring_here(std::vector<Message>& in, c10::Device here) {
  Message elsewhere;
  for (Message& message : in) {
    for (at::Tensor& tensor : message.tensors) {
      if (tensor.device() == here || tensor.is_cpu()) continue;
      elsewhere.tensors.push_back(tensor);
      tensor = tensor.to(here);
    }
  }
  return elsewhere;
}

void Executor::end_stream(Lane& lane) {
  if (runs_ahead(lane)) end_launched(lane);
  lane.stream->collect();
  if (poisoned_) throw Poisoned();
}

/// Waits for what was launched. The spans are then those of the events.
void Executor::end_launched(Lane& lane) {
  Seconds busy = 0;
  for (std::size_t i = 0; i < lane.launched.size(); ++i) {
    const Launched& launched = lane.launched[i];
    wait_for_event(*launched.end);
    ++ops_ended_;
    ++lane.num_ended;
    const DeviceLanes& device = *lane.device;
    Span& span = now(lane).spans[i];
    span.start = device.origin_time + launched.start->seconds_since(*device.origin);
    span.end = device.origin_time + launched.end->seconds_since(*device.origin);
    busy += span.end - span.start;
    now(lane).end = span.end;
  }
  now(lane).busy = busy;
}

/// On a GPU messages are still being read when the call that unpacks them has returned.
void Executor::keep_until_read(Lane& lane, std::vector<Message> in) {
  const EventPtr read = record_event(lane.device->runtime().where());
  if (read == nullptr) return;
  lane.stream->release({read}, [&in] { return std::make_shared<std::vector<Message>>(std::move(in)); });
}

}  // namespace hetermoe
