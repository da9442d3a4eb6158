#include "hetermoe/comm/nccl.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/comm/awaited_list.h"
#include "hetermoe/comm/parcel.h"
#include "hetermoe/device/accelerator.h"

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
    const std::lock_guard lock(mutex_);
    next_turn_ = 0;
  }
  bool takes_turns() const override { return true; }

  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) override {
    std::vector<Message> in(out.size());
    std::vector<Peer> peers;
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (call.participants[i] == call.self) {
        in[i] = std::move(out[i]);
      } else {
        peers.push_back(
            {.index = i,
             .rank = options_.rank_of[idx(call.participants[i])],
             .out = make_parcel(call, std::move(out[i]), options_.device),
             .in = call.expected.empty() ? Parcel() : room_for(call.expected[i], options_.device)});
      }
    }
    std::vector<at::Tensor> headers;
    try {
      {
        const Turn turn(*this, call);
        if (call.expected.empty()) exchange_headers(call, peers, headers);
        launch_bodies(call, peers);
      }
      wait_for_stream(call);
    } catch (...) {
      // What was launched may still read and write this memory until the communicators are given back.
      const std::lock_guard lock(mutex_);
      abandoned_.emplace_back(std::move(peers), std::move(headers));
      throw;
    }
    for (const Peer& peer : peers) {
      const MessageShape* shape = call.expected.empty() ? nullptr : &call.expected[peer.index];
      in[peer.index] = message_of(call, peer.in, place_of(call, call.participants[peer.index]), shape);
    }
    return in;
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

  void launch(const ExchangeCall& call, const std::function<void(NcclApi::Communicator, void*)>& calls) {
    const NcclApi::Communicator communicator = communicator_of(call);
    const Launching launching(*this, call);
    nccl_->begin_group();
    calls(communicator, stream_handle(options_.device));
    nccl_->end_group();
  }

  /// Sizes that only the peer knows. The turn is held until they have come, because bodies have to be
  /// launched in one order everywhere.
  void exchange_headers(const ExchangeCall& call, std::vector<Peer>& peers,
                        std::vector<at::Tensor>& headers) {
    const i64 count = static_cast<i64>(peers.size());
    constexpr std::size_t kBytes = kParcelHeader * sizeof(i64);
    at::Tensor out = at::empty({count, static_cast<i64>(kParcelHeader)}, at::kLong);
    for (i64 i = 0; i < count; ++i)
      std::memcpy(out[i].mutable_data_ptr(), peers[idx(i)].out.header.data(), kBytes);
    out = out.to(options_.device);
    at::Tensor in = at::empty_like(out);
    headers = {out, in};
    launch(call, [&](NcclApi::Communicator communicator, void* stream) {
      for (i64 i = 0; i < count; ++i) {
        nccl_->send(out[i].const_data_ptr(), kBytes, peers[idx(i)].rank, communicator, stream);
        nccl_->receive(in[i].mutable_data_ptr(), kBytes, peers[idx(i)].rank, communicator, stream);
      }
    });
    wait_for_stream(call);
    in = in.to(at::kCPU);
    for (i64 i = 0; i < count; ++i) {
      Peer& peer = peers[idx(i)];
      std::memcpy(peer.in.header.data(), in[i].const_data_ptr(), kBytes);
      make_room(call, peer.in, options_.device, place_of(call, call.participants[peer.index]));
    }
  }

  /// Empty tensors do not travel: NCCL sends no nothing.
  void launch_bodies(const ExchangeCall& call, std::vector<Peer>& peers) {
    launch(call, [&](NcclApi::Communicator communicator, void* stream) {
      const auto bytes_of = [](const at::Tensor& tensor) { return static_cast<i64>(tensor.nbytes()); };
      for (Peer& peer : peers) {
        const auto send = [&](const at::Tensor& tensor) {
          if (tensor.numel() > 0)
            nccl_->send(tensor.const_data_ptr(), bytes_of(tensor), peer.rank, communicator, stream);
        };
        const auto receive = [&](const at::Tensor& tensor) {
          if (tensor.numel() > 0)
            nccl_->receive(tensor.mutable_data_ptr(), bytes_of(tensor), peer.rank, communicator, stream);
        };
        send(peer.out.rest), receive(peer.in.rest);
        for (const at::Tensor& tensor : peer.out.tensors) send(tensor);
        for (const at::Tensor& tensor : peer.in.tensors) receive(tensor);
      }
    });
  }

  /// A kernel of NCCL whose peer is gone never ends: this looks after failures while it waits.
  void wait_for_stream(const ExchangeCall& call) {
    std::vector<std::unique_ptr<AwaitedList::Entry>> waits;
    for (const DeviceId peer : call.participants) {
      if (peer != call.self)
        waits.push_back(
            std::make_unique<AwaitedList::Entry>(awaited_, AwaitedMessage{call.self, call.op, peer}));
    }
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
  std::vector<std::pair<std::vector<Peer>, std::vector<at::Tensor>>> abandoned_;
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
