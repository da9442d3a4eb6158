#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

#include "hetermoe/base/types.h"

// Work that a device does in order while its host thread goes on.
namespace hetermoe {

/// A point in the work of a stream. May be asked by any thread.
class StreamEvent {
 public:
  virtual ~StreamEvent() = default;
  /// Whether all that was launched before has ended. Throws what a kernel met.
  virtual bool has_passed() const = 0;
  /// Time from `earlier`, an event of the same device. Both have passed.
  virtual Seconds seconds_since(const StreamEvent& earlier) const = 0;
  /// Work that the calling thread launches from here on, on its own stream, starts after the event.
  virtual void hold_current_stream() const = 0;
};
using EventPtr = std::shared_ptr<const StreamEvent>;

/// The contents of a buffer, to be dropped.
using Released = std::shared_ptr<void>;

/// The stream of a thread that works for a device. Only this thread uses it, and it makes and destroys it.
class WorkStream {
 public:
  virtual ~WorkStream() = default;
  /// Launches what an op does, after all that was launched before. A GPU's work is launched inside `work`,
  /// before this returns; a stream of a test may call it later, in a thread of its own.
  virtual void launch(std::function<void()> work) = 0;
  virtual EventPtr record() = 0;
  /// Work that is launched later starts after the event.
  virtual void wait(const EventPtr& event) = 0;
  /// Takes a buffer out of its place and drops it when all events have passed: until then the memory is not
  /// reused.
  virtual void release(std::vector<EventPtr> after, std::function<Released()> take) = 0;
  /// Drops what may be dropped by now.
  virtual void collect() = 0;
};
using MakeStream = std::function<std::unique_ptr<WorkStream>(c10::Device device, bool is_transfer)>;

/// The calling thread's stream of a GPU; null on a CPU, whose work has ended when a call returns. Streams of
/// transfers come first where a GPU has to choose: they are short, and others wait for them.
std::unique_ptr<WorkStream> make_gpu_stream(c10::Device device, bool is_transfer);

/// An event after all that the calling thread has launched on the device; null on a CPU.
EventPtr record_event(c10::Device device);

}  // namespace hetermoe
