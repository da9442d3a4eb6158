#pragma once
#include <c10/core/GradMode.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "hetermoe/device/stream.h"

// Streams of a CPU: what is launched is called later, by a thread of the stream, as a GPU would do it.
// Between two calls the thread may sleep.
namespace hetermoe::testing {

class FakeEvent : public StreamEvent {
 public:
  bool has_passed() const override {
    const std::lock_guard lock(mutex_);
    return passed_;
  }
  Seconds seconds_since(const StreamEvent& earlier) const override {
    const std::chrono::duration<double> time = time_ - dynamic_cast<const FakeEvent&>(earlier).time_;
    return time.count();
  }
  void hold_current_stream() const override { wait(); }

  void wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return passed_; });
  }
  void pass() {
    const std::lock_guard lock(mutex_);
    passed_ = true;
    time_ = std::chrono::steady_clock::now();
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool passed_ = false;
  std::chrono::steady_clock::time_point time_;
};

struct FakeStreamOptions {
  u64 seed = 0;
  i64 most_delay_us = 0;          ///< before every call, drawn evenly
  bool forgets_waits = false;     ///< a planted fault: streams do not wait for each other
  bool releases_at_once = false;  ///< a planted fault: buffers are taken while they may be in use
};

class FakeStream : public WorkStream {
 public:
  explicit FakeStream(const FakeStreamOptions& options)
      : options_(options), random_(options.seed), thread_([this] { main(); }) {}
  /// All that was launched is called first.
  ~FakeStream() override {
    post({});
    thread_.join();
  }

  void launch(std::function<void()> work) override {
    const i64 delay = std::uniform_int_distribution<i64>(0, options_.most_delay_us)(random_);
    post([work = std::move(work), delay] {
      if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
      work();
    });
  }
  EventPtr record() override {
    auto event = std::make_shared<FakeEvent>();
    post([event] { event->pass(); });
    return event;
  }
  void wait(const EventPtr& event) override {
    if (!options_.forgets_waits) post([event] { std::static_pointer_cast<const FakeEvent>(event)->wait(); });
  }
  void release(std::vector<EventPtr> after, std::function<Released()> take) override {
    if (options_.releases_at_once) {
      take();
      return;
    }
    for (const EventPtr& event : after) wait(event);
    post([take = std::move(take)] { take(); });
  }
  /// After it the buffers are gone from their places, as on a GPU's stream.
  void collect() override { std::static_pointer_cast<const FakeEvent>(record())->wait(); }

 private:
  void post(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_all();
  }
  /// An empty call ends the thread.
  void main() {
    const c10::NoGradGuard no_grad;
    while (true) {
      std::function<void()> call;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !calls_.empty(); });
        call = std::move(calls_.front());
        calls_.pop_front();
      }
      if (!call) return;
      call();
    }
  }

  FakeStreamOptions options_;
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  std::thread thread_;
};

/// Streams with different seeds.
inline MakeStream fake_streams(FakeStreamOptions options) {
  auto count = std::make_shared<std::atomic<u64>>(0);
  return [options, count](c10::Device, bool) {
    FakeStreamOptions own = options;
    own.seed = options.seed * 1000 + (*count)++;
    return std::make_unique<FakeStream>(own);
  };
}

}  // namespace hetermoe::testing
