#include "hetermoe/comm/nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <iostream>
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

namespace hetermoe {
namespace {

constexpr auto kNap = std::chrono::microseconds(20);

class Nccl : public Transport {
 public:
  Nccl(const Processes& processes, std::unique_ptr<NcclApi> nccl, NcclOptions options)
      : processes_(processes), nccl_(std::move(nccl)), options_(std::move(options)) {
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
      const std::string id = processes.gather(processes.rank() == 0 ? nccl_->make_id() : "")[0];
      communicators_[queue] = nccl_->join(id, processes.rank(), processes.num_ranks());
    }
  }
  ~Nccl() override {
    if (std::uncaught_exceptions() > 0) abort("an error ends this process");
    if (ends_all_.joinable()) {
      ends_all_.join();
    } else {
      for (const auto& [queue, communicator] : communicators_) nccl_->leave(communicator);
    }
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
    Traffic traffic = make_traffic(call, out, in);
    launch(call, traffic);
    Arrived arrived = await(call, traffic);
    for (std::size_t p = 0; p < traffic.peers.size(); ++p) {
      Message& message = in[traffic.peers[p]];
      if (arrived.event == nullptr) message = arrived.message(p);
      message.tensors = std::move(traffic.in.tensors[p]);
    }
    if (arrived.event != nullptr && !arrived.rests.empty()) check_later(std::move(arrived));
    return in;
  }

  void check_health() override {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    for (const auto& each : communicators_) check(each.second);
  }

  /// A launch that is inside NCCL uses the communicators: it has a moment to come out before they are freed.
  /// One that waits there for a peer comes out only when they are.
  void abort(const std::string& reason) override {
    {
      const std::lock_guard lock(mutex_);
      if (aborted_) return;
      aborted_ = true;
      reason_ = reason;
      changed_.notify_all();
    }
    if (!nccl_failed_) processes_.tell_error(reason);
    // Said now: NCCL may not come back.
    std::cerr << fmt::format("rank {}: transfers are aborted: {}", processes_.rank(), reason) << std::endl;
    ends_all_ = std::thread([this] { end_communicators(); });
  }

  std::vector<AwaitedMessage> awaited() const override { return awaited_.all(); }

 private:
  /// Messages of an exchange to and from other processes.
  struct Traffic {
    std::vector<std::size_t> peers;  ///< their positions among the participants
    std::vector<i32> ranks;          ///< [peers]
    Parcels out, in;                 ///< [peers]
    bool for_host = false;           ///< the host has to read some of them

    bool empty() const { return out.rests.empty() && in.rests.empty(); }
  };

  /// What of the messages of an exchange is on the host, or will be when the event has passed.
  struct Arrived {
    Stamp stamp;
    std::string exchange;         ///< for errors
    std::vector<DeviceId> peers;  ///< [peers]
    Rests rests;
    EventPtr event;  ///< null: they have come

    /// Throws TransportError when it is of another op or step.
    Message message(std::size_t peer) const {
      return message_of(stamp, rests, peer, fmt::format("{} from device {}", exchange, peers[peer]));
    }
  };

  /// The own message goes to `in`.
  Traffic make_traffic(const ExchangeCall& call, std::vector<Message>& out, std::vector<Message>& in) const {
    Traffic traffic;
    std::vector<Message> to_peers;
    std::vector<MessageShape> expected;
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (call.participants[i] == call.self) {
        in[i] = std::move(out[i]);
        continue;
      }
      traffic.peers.push_back(i);
      traffic.ranks.push_back(options_.rank_of[idx(call.participants[i])]);
      to_peers.push_back(std::move(out[i]));
      expected.push_back(call.expected[i]);
    }
    traffic.for_host = std::any_of(expected.begin(), expected.end(), is_for_host);
    const Travel travel = options_.tells_ready ? Travel::kAll : Travel::kContent;
    traffic.out = make_parcels(call, std::move(to_peers), travel, options_.device);
    at::Tensor& rests = traffic.out.rests.bytes;
    if (!traffic.out.rests.empty()) rests = nccl_->to_device(rests, options_.device);
    traffic.in = room_for(expected, travel, options_.device);
    return traffic;
  }

  /// Waits for the messages only if the host has to read them.
  Arrived await(const ExchangeCall& call, Traffic& traffic) {
    Arrived out{stamp_of(call), fmt::format("device {} {}", call.self, call.name), {}, traffic.in.rests, {}};
    for (const std::size_t peer : traffic.peers) out.peers.push_back(call.participants[peer]);
    if (traffic.empty()) return out;
    if (!traffic.in.rests.empty()) out.rests.bytes = nccl_->start_to_host(traffic.in.rests.bytes);
    if (!traffic.for_host) out.event = nccl_->record(options_.device);
    if (out.event == nullptr) wait_for_stream(call, traffic);
    return out;
  }

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
  void launch(const ExchangeCall& call, const Traffic& traffic) {
    const NcclApi::Communicator communicator = communicator_of(call);
    void* const stream = stream_handle(options_.device);
    const Turn turn(*this, call);
    if (traffic.empty()) return;
    const Launching launching(*this, call);
    with_nccl([&] { launch_group(traffic, communicator, stream); });
  }

  void launch_group(const Traffic& traffic, NcclApi::Communicator communicator, void* stream) {
    nccl_->begin_group();
    for (std::size_t p = 0; p < traffic.peers.size(); ++p) {
      const i32 rank = traffic.ranks[p];
      const auto send = [&](const void* data, i64 bytes) {
        if (bytes > 0) nccl_->send(data, bytes, rank, communicator, stream);
      };
      const auto receive = [&](void* data, i64 bytes) {
        if (bytes > 0) nccl_->receive(data, bytes, rank, communicator, stream);
      };
      send(traffic.out.rests.data(p), traffic.out.rests.size(p));
      receive(traffic.in.rests.data(p), traffic.in.rests.size(p));
      for (const at::Tensor& tensor : traffic.out.tensors[p])
        send(tensor.const_data_ptr(), static_cast<i64>(tensor.nbytes()));
      for (const at::Tensor& tensor : traffic.in.tensors[p])
        receive(tensor.mutable_data_ptr(), static_cast<i64>(tensor.nbytes()));
    }
    nccl_->end_group();
  }

  /// An error of NCCL may come from a rank that is gone; others are this rank's own.
  template <class F>
  void with_nccl(F&& call) {
    try {
      call();
    } catch (const TransportError&) {
      nccl_failed_ = true;
      throw;
    }
  }
  void check(NcclApi::Communicator communicator) {
    with_nccl([&] { nccl_->check(communicator); });
  }

  /// A kernel of NCCL whose peer is gone never ends: this looks after failures while it waits.
  void wait_for_stream(const ExchangeCall& call, Traffic& traffic) {
    std::vector<std::unique_ptr<AwaitedList::Entry>> waits;
    for (const std::size_t peer : traffic.peers) {
      waits.push_back(std::make_unique<AwaitedList::Entry>(
          awaited_, AwaitedMessage{call.self, call.op, call.participants[peer]}));
    }
    try {
      const NcclApi::Communicator communicator = communicator_of(call);
      while (!nccl_->has_ended(options_.device)) {
        {
          const std::lock_guard lock(mutex_);
          stop_if_aborted(call);
          check(communicator);
        }
        std::this_thread::sleep_for(kNap);
      }
      const std::lock_guard lock(mutex_);
      stop_if_aborted(call);
    } catch (...) {
      // What was launched may still read and write this memory until the communicators are given back.
      const std::lock_guard lock(mutex_);
      abandoned_.push_back(std::move(traffic));
      throw;
    }
  }

  void check_later(Arrived messages) {
    const std::lock_guard lock(stamps_mutex_);
    unchecked_.push_back(std::move(messages));
  }

  /// Looks at the stamps that have come by now. All of a step have come when its norm is told, before
  /// anything is updated.
  void check_arrived() {
    const std::lock_guard lock(stamps_mutex_);
    for (auto each = unchecked_.begin(); each != unchecked_.end();) {
      if (!each->event->has_passed()) {
        ++each;
        continue;
      }
      const Arrived messages = std::move(*each);
      each = unchecked_.erase(each);
      for (std::size_t p = 0; p < messages.peers.size(); ++p) messages.message(p);
    }
  }

  /// Work of the thread of an abort. Freeing a communicator may wait for the kernels of the others, so all
  /// are aborted at the same time, and no lock is held.
  void end_communicators() {
    const auto within = [&](Seconds limit, auto condition) {
      std::unique_lock lock(mutex_);
      return changed_.wait_for(lock, std::chrono::duration<double>(limit), condition);
    };
    within(options_.abort_patience, [&] { return num_launching_ == 0; });
    std::size_t num_ended = 0;
    std::vector<std::thread> threads;
    for (const auto& each : communicators_) {
      threads.emplace_back([this, communicator = each.second, &num_ended] {
        nccl_->abort(communicator);
        const std::lock_guard lock(mutex_);
        ++num_ended;
        changed_.notify_all();
      });
    }
    const bool all_ended = within(options_.abort_limit,
                                  [&] { return num_ended == communicators_.size() && num_launching_ == 0; });
    if (!all_ended) end_without_nccl();
    for (std::thread& thread : threads) thread.join();
  }

  [[noreturn]] void end_without_nccl() const {
    std::cerr << fmt::format(
                     "rank {}: NCCL has not ended its transfers {:.3g} s after their abort: this process "
                     "ends without it",
                     processes_.rank(), options_.abort_limit)
              << std::endl;
    processes_.abort({.code = 1, .text = reason_, .of_transfer = true});
    __builtin_unreachable();
  }

  /// The caller holds mutex_.
  void stop_if_aborted(const ExchangeCall& call) const {
    if (aborted_)
      fail<TransportError>(fmt::format("device {} {}", call.self, call.name), "was aborted: {}", reason_);
  }

  const Processes& processes_;
  std::unique_ptr<NcclApi> nccl_;
  NcclOptions options_;
  std::map<i32, NcclApi::Communicator> communicators_;  // by queue
  AwaitedList awaited_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Traffic> abandoned_;
  std::mutex stamps_mutex_;
  std::list<Arrived> unchecked_;
  i64 next_turn_ = 0;
  i32 num_launching_ = 0;  ///< lanes inside NCCL
  bool aborted_ = false;
  std::atomic<bool> nccl_failed_ = false;
  std::string reason_;
  std::thread ends_all_;  ///< that of an abort
};

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(const Processes& processes, std::unique_ptr<NcclApi> nccl,
                                               NcclOptions options) {
  return std::make_unique<Nccl>(processes, std::move(nccl), std::move(options));
}

}  // namespace hetermoe
