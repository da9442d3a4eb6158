#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/rig.h"

// One fault at one exchange call. To be hooked into a HookedTransport.
namespace hetermoe::testing {

enum class Fault {
  kFail,   ///< the call throws
  kDelay,  ///< the call comes late
  kGone,   ///< the device sends nothing and never returns
  kCut,    ///< the last part of a message to the peer is missing
  kShape,  ///< a tensor of a message to the peer has lost a row, or a list of counts its last one
  kFlip    ///< a bit of a message to the peer is flipped
};
inline const std::vector<Fault>& all_faults() {
  static const std::vector<Fault> all = {Fault::kFail, Fault::kDelay, Fault::kGone,
                                         Fault::kCut,  Fault::kShape, Fault::kFlip};
  return all;
}
inline std::string name_of(Fault fault) {
  static const std::vector<std::string> names = {"fail", "delay",       "gone",
                                                 "cut",  "wrong shape", "flipped bit"};
  return names[static_cast<std::size_t>(fault)];
}
/// Whether the fault is one of a message to a single peer.
inline bool alters(Fault fault) { return fault >= Fault::kCut; }

struct FaultPoint {
  Fault fault = Fault::kFail;
  OpId op = 0;
  DeviceId device = 0;  ///< whose call it is
  DeviceId peer = 0;    ///< who receives the altered message
};

/// Holds a lane back until told otherwise.
class Gate {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

template <class T>
void flip_bit(std::vector<T>& values) {
  reinterpret_cast<char*>(&values[values.size() / 2])[sizeof(T) / 2] ^= 0x10;
}

/// Tensors are shared with the sender, who must not see the fault.
inline bool flip_bit(Message& message) {
  for (at::Tensor& tensor : message.tensors) {
    if (tensor.numel() == 0) continue;
    tensor = tensor.contiguous().clone();
    static_cast<char*>(tensor.mutable_data_ptr())[tensor.nbytes() / 2] ^= 0x10;
    return true;
  }
  if (message.values.empty() && message.numbers.empty()) return false;
  message.values.empty() ? flip_bit(message.numbers) : flip_bit(message.values);
  return true;
}

inline bool lose_row(Message& message) {
  for (at::Tensor& tensor : message.tensors) {
    if (tensor.dim() == 0 || tensor.size(0) == 0) continue;
    tensor = tensor.narrow(0, 0, tensor.size(0) - 1);
    return true;
  }
  if (message.numbers.empty()) return false;
  message.numbers.pop_back();
  return true;
}

inline bool cut(Message& message) {
  if (!message.tensors.empty())
    message.tensors.pop_back();
  else if (!message.values.empty())
    message.values.pop_back();
  else if (!message.numbers.empty())
    message.numbers.pop_back();
  else
    return false;
  return true;
}

/// Plants one fault; lives as long as the transport it is hooked into.
class FaultPlanter {
 public:
  explicit FaultPlanter(const FaultPoint& point) : point_(point) {}

  /// Hook on_send.
  void on_send(const ExchangeCall& call, std::vector<Message>& out) {
    if (call.op != point_.op || call.self != point_.device) return;
    switch (point_.fault) {
      case Fault::kFail:
        fail<TransportError>(fmt::format("to device {}", point_.peer), "the wire broke");
      case Fault::kDelay:
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        break;
      case Fault::kGone:
        gate_.wait();
        throw TransportError("this device is gone");
      default:
        if (Message* message = message_to(call, out); message != nullptr && alter(*message)) altered_ = true;
    }
  }
  /// Hook on_abort.
  void on_abort() { gate_.open(); }
  /// False when the message had nothing in it that could be altered.
  bool altered() const { return altered_; }

 private:
  /// Null in an exchange without the peer: others of the op have it.
  Message* message_to(const ExchangeCall& call, std::vector<Message>& out) const {
    for (std::size_t i = 0; i < call.participants.size(); ++i)
      if (call.participants[i] == point_.peer) return &out[i];
    return nullptr;
  }
  bool alter(Message& message) const {
    return point_.fault == Fault::kCut     ? cut(message)
           : point_.fault == Fault::kShape ? lose_row(message)
                                           : flip_bit(message);
  }

  FaultPoint point_;
  Gate gate_;
  std::atomic<bool> altered_ = false;
};

/// Watchdogs to run a step with, one after another as long as it woke_early(). Where a device is gone only
/// the watchdog ends the step, which is to be soon.
inline std::vector<Seconds> watchdogs_for(Fault fault) {
  return fault == Fault::kGone ? std::vector<Seconds>{0.25, 1, 4} : std::vector<Seconds>{60};
}
/// Whether the watchdog ended the step `error` although nobody waited for the device that is gone in this op
/// yet: the machine stood still.
inline bool woke_early(Fault fault, const std::string& op, const std::string& error) {
  return fault == Fault::kGone && error.find("[watchdog]") != std::string::npos &&
         error.find(op + " exchanges with its peers, has nothing from") == std::string::npos;
}

/// Every exchange call of one step, by every device, with the fault planted there; message faults once for
/// each peer.
inline std::vector<FaultPoint> fault_points(const Schedule& schedule, Fault fault) {
  std::vector<FaultPoint> points;
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    if (is_compute(schedule.ops[static_cast<std::size_t>(op)].kind)) continue;
    for (const LaneId lane : schedule.lanes_of(op)) {
      for (const LaneId other : schedule.lanes_of(op)) {
        if (other == lane) continue;
        points.push_back({fault, op, device_of(lane), device_of(other)});
        if (!alters(fault)) break;
      }
    }
  }
  return points;
}

/// Ends the whole test program when a step does not end: a hang is a failure, not a timeout of the machine.
class Deadline {
 public:
  explicit Deadline(std::chrono::seconds limit) : thread_([this, limit] { wait(limit); }) {}
  ~Deadline() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

 private:
  void wait(std::chrono::seconds limit) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, limit, [&] { return done_; })) return;
    fmt::print(stderr, "a step hangs\n");
    std::abort();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

inline ::testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "no \"" << part << "\" in: " << text;
}

}  // namespace hetermoe::testing
