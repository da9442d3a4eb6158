#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "hetermoe/base/error.h"
#include "hetermoe/comm/awaited_list.h"
#include "hetermoe/comm/transport.h"

namespace hetermoe {
namespace {

class InProcess : public Transport {
 public:
  explicit InProcess(i32 num_devices) : boxes_(static_cast<std::size_t>(num_devices)) {}

  std::string name() const override { return "in-process"; }

  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) override {
    std::vector<Message> in(out.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (call.participants[i] == call.self) {
        in[i] = std::move(out[i]);
      } else {
        put(call.participants[i], {call.step, call.op, call.round, call.self}, std::move(out[i]));
      }
    }
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (call.participants[i] == call.self) continue;
      in[i] = take(call, call.participants[i]);
      if (in[i].written != nullptr) in[i].written->hold_current_stream();
    }
    return in;
  }

  void abort(const std::string& reason) override {
    {
      const std::lock_guard lock(abort_mutex_);
      if (!aborted_) aborted_ = reason;
    }
    for (Box& box : boxes_) {
      const std::lock_guard lock(box.mutex);
      box.aborted = true;
      box.arrived.notify_all();
    }
  }

  std::vector<AwaitedMessage> awaited() const override { return awaited_.all(); }

 private:
  using Key = std::tuple<i64, OpId, i32, DeviceId>;  // step, op, round, sender
  struct Box {
    std::mutex mutex;
    std::condition_variable arrived;
    std::map<Key, Message> messages;
    bool aborted = false;
  };

  void put(DeviceId to, const Key& key, Message message) {
    Box& box = boxes_[static_cast<std::size_t>(to)];
    const std::lock_guard lock(box.mutex);
    const bool fresh = box.messages.emplace(key, std::move(message)).second;
    HM_CHECK(fresh, "device {} sent op {} of step {} to device {} twice", std::get<3>(key), std::get<1>(key),
             std::get<0>(key), to);
    box.arrived.notify_all();
  }

  Message take(const ExchangeCall& call, DeviceId from) {
    Box& box = boxes_[static_cast<std::size_t>(call.self)];
    const Key key(call.step, call.op, call.round, from);
    const AwaitedList::Entry wait(awaited_, {call.self, call.op, from});
    std::unique_lock lock(box.mutex);
    std::map<Key, Message>::iterator found;
    box.arrived.wait(lock, [&] {
      found = box.messages.find(key);
      return box.aborted || found != box.messages.end();
    });
    if (box.aborted) {
      const std::lock_guard abort_lock(abort_mutex_);
      fail<TransportError>(fmt::format("device {}", call.self), "{} from device {} was aborted: {}",
                           call.name, from, aborted_.value_or("unknown reason"));
    }
    Message message = std::move(found->second);
    box.messages.erase(found);
    return message;
  }

  std::vector<Box> boxes_;
  AwaitedList awaited_;
  std::mutex abort_mutex_;
  std::optional<std::string> aborted_;
};

}  // namespace

std::unique_ptr<Transport> make_in_process_transport(i32 num_devices) {
  return std::make_unique<InProcess>(num_devices);
}

}  // namespace hetermoe
