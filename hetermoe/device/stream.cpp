#include "hetermoe/device/stream.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <list>
#include <utility>

#include "hetermoe/device/accelerator.h"

namespace hetermoe {
namespace {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

class GpuEvent : public StreamEvent {
 public:
  explicit GpuEvent(c10::Device device) : event_(device.type(), c10::EventFlag::BACKEND_DEFAULT) {
    event_.record(current_stream(device));
  }
  bool has_passed() const override { return event_.query(); }
  Seconds seconds_since(const StreamEvent& earlier) const override {
    constexpr Seconds kMillisecond = 1e-3;
    return kMillisecond * dynamic_cast<const GpuEvent&>(earlier).event_.elapsedTime(event_);
  }
  /// Of the GPU that the calling thread works for, and of the event's own: copies from one GPU to another or
  /// to the host run on a stream of their source.
  void hold_current_stream() const override {
    const c10::Device own = event_.device();
    const c10::Device works_for = c10::impl::VirtualGuardImpl(own.type()).getDevice();
    event_.block(current_stream(own));
    if (works_for != own) event_.block(current_stream(works_for));
  }

 private:
  c10::Event event_;
};

class GpuStream : public WorkStream {
 public:
  GpuStream(c10::Device device, bool is_transfer) : device_(device), own_(device, is_transfer) {}

  void launch(std::function<void()> work) override { work(); }
  EventPtr record() override { return record_event(device_); }
  void wait(const EventPtr& event) override { event->hold_current_stream(); }
  void release(std::vector<EventPtr> after, std::function<Released()> take) override {
    held_.push_back({std::move(after), take()});
    collect();
  }
  void collect() override {
    held_.remove_if([](const Held& held) {
      return std::all_of(held.after.begin(), held.after.end(),
                         [](const EventPtr& event) { return event->has_passed(); });
    });
  }

 private:
  struct Held {
    std::vector<EventPtr> after;
    Released what;
  };
  c10::Device device_;
  OwnStream own_;
  std::list<Held> held_;
};

}  // namespace

std::unique_ptr<WorkStream> make_gpu_stream(c10::Device device, bool is_transfer) {
  return device.is_cpu() ? nullptr : std::make_unique<GpuStream>(device, is_transfer);
}

EventPtr record_event(c10::Device device) {
  return device.is_cpu() ? nullptr : std::make_shared<GpuEvent>(device);
}

}  // namespace hetermoe
