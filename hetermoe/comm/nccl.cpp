#include "hetermoe/comm/nccl.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/comm/awaited_list.h"
#include "hetermoe/comm/parcel.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/device/host_copy.h"

namespace hetermoe {
namespace {

constexpr auto kNap = std::chrono::microseconds(20);

class Nccl : public Transport {
 public:
  Nccl(const Processes& processes, std::unique_ptr<NcclApi> nccl, NcclOptions options)
      : rank_(processes.rank()), nccl_(std::move(nccl)), options_(std::move(options)) {
    const auto working = static_cast<i64>(options_.rank_of.size()) -
                         std::count(options_.rank_of.begin(), options_.rank_of.end(), kNoRank);
    std::vector<i32> devices(idx(processes.num_ranks()), 0);
    for (const i32 rank : options_.rank_of) {
      if (rank == kNoRank || ++devices.at(idx(rank)) == 1) continue;
      fail<ConfigError>("nccl",
                        "rank {} has several devices, but each GPU needs a process of its own: start as many "
                        "processes as the plan has devices ({})",
                        rank, working);
    }
    const OwnStream gpu(options_.device);  // a communicator is for the GPU of the thread that makes it
    for (const i32 queue : options_.queues) {
      const std::string id = processes.gather(rank_ == 0 ? nccl_->make_id() : "")[0];
      communicators_[queue] = nccl_->join(id, rank_, processes.num_ranks());
    }
  }
  ~Nccl() override {
    if (aborted_) return;
    for (const auto& [queue, communicator] : communicators_) nccl_->leave(communicator);
  }

  std::string name() const override { return "nccl"; }

  void begin_step() override {
    check_arrived();
    const std::lock_guard lock(mutex_);
    next_turn_ = 0;
  }
  TransportAttributes attributes() const override { return kNcclAttributes; }

  /// Returns when all is launched on the calling thread's stream, unless a message is for the host.
  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) override {
    HM_CHECK(call.expected.size() == out.size(), "{}: {} messages are expected, {} go out", call.name,
             call.expected.size(), out.size());
    check_arrived();
    std::vector<Message> in(out.size());
    std::vector<Peer> peers;
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (call.participants[i] == call.self) {
        in[i] = std::move(out[i]);
      } else {
        peers.push_back({.index = i,
                         .rank = options_.rank_of[idx(call.participants[i])],
                         .out = make_parcel(call, std::move(out[i]), options_.device),
                         .in = room_for(call.expected[i], options_.device)});
      }
    }
    launch(call, peers);
    std::vector<at::Tensor> rests;  // on the host as soon as the event has passed
    for (const Peer& peer : peers) rests.push_back(start_to_host(peer.in.rest));
    const bool for_host = std::any_of(call.expected.begin(), call.expected.end(), is_for_host);
    const EventPtr arrived = for_host ? nullptr : nccl_->record(options_.device);
    if (arrived == nullptr) wait_for_stream(call, peers);
    for (std::size_t p = 0; p < peers.size(); ++p) {
      Peer& peer = peers[p];
      const std::string where = place_of(call, call.participants[peer.index]);
      if (arrived == nullptr) {
        in[peer.index] = message_of(stamp_of(call), rests[p], std::move(peer.in.tensors), where);
      } else {
        in[peer.index].tensors = std::move(peer.in.tensors);
        check_later({stamp_of(call), where, rests[p], arrived});
      }
    }
    return in;
  }

  void check_health() override {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    for (const auto& [queue, communicator] : communicators_) nccl_->check(communicator);
  }

  /// A launch that is inside NCCL uses the communicators: it has a moment to come out before they are freed.
  /// One that waits there for a peer comes out only when they are.
  void abort(const std::string& reason) override {
    std::unique_lock lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    reason_ = reason;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::duration<double>(options_.abort_patience),
                      [&] { return num_launching_ == 0; });
    for (const auto& [queue, communicator] : communicators_) nccl_->abort(communicator);
  }

  std::vector<AwaitedMessage> awaited() const override { return awaited_.all(); }

 private:
  struct Peer {
    std::size_t index;  ///< among the participants
    i32 rank;
    Parcel out, in;
  };

  /// The right to launch, which goes around in the order of turns.
  class Turn {
   public:
    Turn(Nccl& nccl, const ExchangeCall& call) : nccl_(nccl) {
      std::unique_lock lock(nccl_.mutex_);
      nccl_.changed_.wait(lock, [&] { return nccl_.aborted_ || nccl_.next_turn_ == call.turn; });
      nccl_.stop_if_aborted(call);
    }
    ~Turn() {
      const std::lock_guard lock(nccl_.mutex_);
      ++nccl_.next_turn_;
      nccl_.changed_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Nccl& nccl_;
  };

  NcclApi::Communicator communicator_of(const ExchangeCall& call) const {
    const auto found = communicators_.find(call.queue);
    HM_CHECK(found != communicators_.end(), "{}: no communicator for queue {}", call.name, call.queue);
    return found->second;
  }

  std::string place_of(const ExchangeCall& call, DeviceId peer) const {
    return fmt::format("device {} {} from device {}", call.self, call.name, peer);
  }

  /// The time in which a lane is inside NCCL. None begins after an abort.
  class Launching {
   public:
    Launching(Nccl& nccl, const ExchangeCall& call) : nccl_(nccl) {
      const std::lock_guard lock(nccl_.mutex_);
      nccl_.stop_if_aborted(call);
      ++nccl_.num_launching_;
    }
    ~Launching() {
      const std::lock_guard lock(nccl_.mutex_);
      --nccl_.num_launching_;
      nccl_.changed_.notify_all();
    }
    Launching(const Launching&) = delete;
    Launching& operator=(const Launching&) = delete;

   private:
    Nccl& nccl_;
  };

  /// Empty tensors do not travel: NCCL sends no nothing.
  void launch(const ExchangeCall& call, const std::vector<Peer>& peers) {
    const NcclApi::Communicator communicator = communicator_of(call);
    void* const stream = stream_handle(options_.device);
    const Turn turn(*this, call);
    const Launching launching(*this, call);
    nccl_->begin_group();
    for (const Peer& peer : peers) {
      const auto send = [&](const at::Tensor& tensor) {
        if (tensor.numel() > 0)
          nccl_->send(tensor.const_data_ptr(), static_cast<i64>(tensor.nbytes()), peer.rank, communicator,
                      stream);
      };
      const auto receive = [&](const at::Tensor& tensor) {
        if (tensor.numel() > 0)
          nccl_->receive(tensor.mutable_data_ptr(), static_cast<i64>(tensor.nbytes()), peer.rank,
                         communicator, stream);
      };
      send(peer.out.rest), receive(peer.in.rest);
      for (const at::Tensor& tensor : peer.out.tensors) send(tensor);
      for (const at::Tensor& tensor : peer.in.tensors) receive(tensor);
    }
    nccl_->end_group();
  }

  /// A kernel of NCCL whose peer is gone never ends: this looks after failures while it waits.
  void wait_for_stream(const ExchangeCall& call, std::vector<Peer>& peers) {
    std::vector<std::unique_ptr<AwaitedList::Entry>> waits;
    for (const Peer& peer : peers) {
      waits.push_back(std::make_unique<AwaitedList::Entry>(
          awaited_, AwaitedMessage{call.self, call.op, call.participants[peer.index]}));
    }
    try {
      const NcclApi::Communicator communicator = communicator_of(call);
      while (!nccl_->has_ended(options_.device)) {
        {
          const std::lock_guard lock(mutex_);
          stop_if_aborted(call);
          nccl_->check(communicator);
        }
        std::this_thread::sleep_for(kNap);
      }
      const std::lock_guard lock(mutex_);
      stop_if_aborted(call);
    } catch (...) {
      // What was launched may still read and write this memory until the communicators are given back.
      const std::lock_guard lock(mutex_);
      abandoned_.push_back(std::move(peers));
      throw;
    }
  }

  /// The stamp of a message that nobody waited for, on its way to the host.
  struct Stamped {
    Stamp stamp;
    std::string where;
    at::Tensor rest;
    EventPtr arrived;
  };

  void check_later(Stamped stamped) {
    const std::lock_guard lock(stamps_mutex_);
    unchecked_.push_back(std::move(stamped));
  }

  /// Looks at the stamps that have come by now. Throws TransportError when one is of another op or step. All
  /// of a step have come when its norm is told, before anything is updated.
  void check_arrived() {
    const std::lock_guard lock(stamps_mutex_);
    for (auto each = unchecked_.begin(); each != unchecked_.end();) {
      if (!each->arrived->has_passed()) {
        ++each;
        continue;
      }
      const Stamped stamped = std::move(*each);
      each = unchecked_.erase(each);
      message_of(stamped.stamp, stamped.rest, {}, stamped.where);
    }
  }

  /// The caller holds mutex_.
  void stop_if_aborted(const ExchangeCall& call) const {
    if (aborted_)
      fail<TransportError>(fmt::format("device {} {}", call.self, call.name), "was aborted: {}", reason_);
  }

  i32 rank_;
  std::unique_ptr<NcclApi> nccl_;
  NcclOptions options_;
  std::map<i32, NcclApi::Communicator> communicators_;  // by queue
  AwaitedList awaited_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<Peer>> abandoned_;
  std::mutex stamps_mutex_;
  std::list<Stamped> unchecked_;
  i64 next_turn_ = 0;
  i32 num_launching_ = 0;  ///< lanes inside NCCL
  bool aborted_ = false;
  std::string reason_;
};

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(const Processes& processes, std::unique_ptr<NcclApi> nccl,
                                               NcclOptions options) {
  return std::make_unique<Nccl>(processes, std::move(nccl), std::move(options));
}

}  // namespace hetermoe
