#pragma once
#include <ATen/ATen.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hetermoe/base/types.h"
#include "hetermoe/device/stream.h"

namespace hetermoe {

/// The data that one participant of a transfer sends another. Tensors may be empty (no rows), never missing
/// in number.
struct Message {
  std::vector<i64> numbers;    ///< counts and the like
  std::vector<double> values;  ///< losses and the like
  std::vector<at::Tensor> tensors;
  Seconds ready = 0;  ///< when the sender was ready, on emulated clocks
  EventPtr written;   ///< when the tensors hold what they should, on a GPU: handed over inside a process only
};

/// The sizes of a message's contents.
struct MessageShape {
  std::size_t numbers = 0, values = 0;
  struct Part {
    at::ScalarType dtype;
    std::vector<i64> sizes;
  };
  std::vector<Part> tensors;
};

/// The process of a device that the plan leaves idle. Such a device takes part in no transfer.
inline constexpr i32 kNoRank = -1;

/// One participant's side of a transfer op. Referenced objects have to live until exchange() returns.
struct ExchangeCall {
  i64 step = 0;
  OpId op = 0;
  std::string name;  ///< of the op, for errors
  DeviceId self = 0;
  std::span<const DeviceId> participants;  ///< ascending, `self` among them
  i32 queue = 0;                           ///< lane kind of the op: messages of one queue keep their order
  i64 turn = 0;  ///< position among the step's transfers of `self`, in an order that all devices agree on
  /// The shapes that each participant will send here, in their order; the own one is not looked at.
  std::span<const MessageShape> expected = {};
  i32 round = 0;                             ///< of an op that is several exchanges: which one
  c10::Device where = c10::DeviceType::CPU;  ///< of the tensors of `self`
};

/// A device that waits for another's message.
struct AwaitedMessage {
  DeviceId self = 0;
  OpId op = 0;
  DeviceId from = 0;
};

/// Abilities and needs of a transport.
struct TransportAttributes {
  /// The exchanges of a process take turns, by ExchangeCall::turn, in an order that all processes agree on:
  /// one that never ends holds up all after it.
  bool one_launch_order = false;
  bool hosts = true;            ///< hosts exchange, too
  bool several_devices = true;  ///< a process may have more than one device
  bool operator==(const TransportAttributes&) const = default;
};

/// Moves messages between devices. Every participant of a transfer calls exchange() for it, on its own lane
/// thread, also with an empty message; lanes call in schedule order.
///
/// Threads: exchange() may be called by many threads at once, by one at a time for each device and queue.
/// abort() and awaited() may be called by any thread at any moment, also several times. begin_step() is
/// called by one thread, when no exchange is under way. Lifetime: no call is under way when a transport is
/// destroyed, and the Processes that it was made with live longer. After an error or an abort a transport can
/// only be destroyed. Results of exchange() stay valid after that.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;

  /// Before the first exchange of a step.
  virtual void begin_step() {}

  /// Those of its kind (TransportKind).
  virtual TransportAttributes attributes() const { return {}; }

  /// Sends out[i] to participants[i] and returns what each of them sent here, in the same order. Blocks until
  /// all have arrived. The own message comes back unchanged. Tensors are handed over: the sender must not
  /// change them afterwards, the receiver must not write into them (in one process they are the same memory).
  /// On a GPU the calling thread's stream has to reach this point, not the host: what it launches afterwards
  /// finds the messages there.
  /// Throws TransportError when the transport fails or was aborted, and when a message of another op or step
  /// comes in the place of the one that is awaited.
  virtual std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) = 0;

  /// Throws TransportError when what was launched will not end because the transport failed meanwhile. Any
  /// thread, at any moment.
  virtual void check_health() {}

  /// Wakes every blocked exchange with a TransportError that carries `reason`. The first reason wins. Returns
  /// soon: it does not wait until the exchanges have ended.
  virtual void abort(const std::string& reason) = 0;

  /// The devices that wait at this moment, and their peers, for reports of hangs.
  virtual std::vector<AwaitedMessage> awaited() const { return {}; }
};

/// Passes everything on. A transport that adds something to another derives from it.
class TransportDecorator : public Transport {
 public:
  explicit TransportDecorator(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name(); }
  void begin_step() override { inner_->begin_step(); }
  TransportAttributes attributes() const override { return inner_->attributes(); }
  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) override {
    return inner_->exchange(call, std::move(out));
  }
  void check_health() override { inner_->check_health(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  std::vector<AwaitedMessage> awaited() const override { return inner_->awaited(); }

 protected:
  Transport& inner() { return *inner_; }

 private:
  std::unique_ptr<Transport> inner_;
};

/// Threads of one process, each a device.
std::unique_ptr<Transport> make_in_process_transport(i32 num_devices);

/// Adds a checksum over content, op, sender and receiver to every message and compares it on arrival,
/// whatever moves the messages in between. A message that differs is a TransportError.
std::unique_ptr<Transport> make_checksummed_transport(std::unique_ptr<Transport> inner);

}  // namespace hetermoe
