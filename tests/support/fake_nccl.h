#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/comm/nccl_api.h"
#include "hetermoe/comm/processes.h"

// NCCL between threads, on CPU memory, which writes down every launch. Stricter than NCCL unless told to be
// as lazy: a group is done when end_group() returns, so that launches of one rank never overlap.
namespace hetermoe::testing {

/// One call of a group.
struct NcclCall {
  bool sends = false;
  i32 peer = 0;
  i64 bytes = 0;
};
struct NcclLaunch {
  i32 communicator = 0;
  std::vector<NcclCall> calls;
};

/// How often a rank copied what is no tensor of a message.
struct NcclCopies {
  i64 to_device = 0, to_host = 0;
};

/// What the ranks share.
class NcclWorld {
 public:
  explicit NcclWorld(i32 num_ranks)
      : launches(idx(num_ranks)), copies(launches.size()), texts_(launches.size()) {}

  std::vector<std::vector<NcclLaunch>> launches;  ///< [rank]
  std::vector<NcclCopies> copies;                 ///< [rank]

  /// What these two ranks send each other from now on is lost.
  void cut(i32 a, i32 b) {
    const std::lock_guard lock(mutex_);
    cut_ = std::minmax(a, b);
  }
  void put(i32 communicator, i32 from, i32 to, std::vector<char> bytes) {
    const std::lock_guard lock(mutex_);
    if (cut_ == std::pair<i32, i32>(std::minmax(from, to))) return;
    boxes_[{communicator, from, to}].push_back(std::move(bytes));
    changed_.notify_all();
  }
  std::vector<char> take(i32 communicator, i32 from, i32 to) {
    std::unique_lock lock(mutex_);
    std::deque<std::vector<char>>& box = boxes_[{communicator, from, to}];
    changed_.wait(lock, [&] { return aborted_ || !box.empty(); });
    return take_first(box);
  }
  /// None while nothing has come.
  std::optional<std::vector<char>> take_if_there(i32 communicator, i32 from, i32 to) {
    const std::lock_guard lock(mutex_);
    std::deque<std::vector<char>>& box = boxes_[{communicator, from, to}];
    if (!aborted_ && box.empty()) return std::nullopt;
    return take_first(box);
  }
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }
  std::vector<std::string> gather(i32 rank, const std::string& text) {
    std::unique_lock lock(mutex_);
    const i64 round = round_;
    texts_[idx(rank)] = text;
    if (++arrived_ == texts_.size()) {
      all_ = texts_;
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
    return all_;
  }

 private:
  /// The caller holds mutex_.
  std::vector<char> take_first(std::deque<std::vector<char>>& box) const {
    if (aborted_) fail<TransportError>("nccl", "remote error");
    std::vector<char> bytes = std::move(box.front());
    box.pop_front();
    return bytes;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::tuple<i32, i32, i32>, std::deque<std::vector<char>>> boxes_;  // communicator, from, to
  std::pair<i32, i32> cut_ = {-1, -1};
  bool aborted_ = false;
  std::vector<std::string> texts_, all_;
  std::size_t arrived_ = 0;
  i64 round_ = 0;
};

class RankThread : public Processes {
 public:
  RankThread(NcclWorld& world, i32 rank) : world_(world), rank_(rank) {}
  i32 rank() const override { return rank_; }
  i32 num_ranks() const override { return static_cast<i32>(world_.launches.size()); }
  std::vector<std::string> gather(const std::string& text) const override {
    return world_.gather(rank_, text);
  }

 private:
  NcclWorld& world_;
  i32 rank_;
};

/// NCCL as one rank sees it. What touches a communicator that was given back fails the test.
class FakeNccl : public NcclApi {
 public:
  FakeNccl(NcclWorld& world, i32 rank) : world_(world), rank_(rank) {}

  /// Called at the begin of every launch, on the thread that launches.
  std::function<void()> on_launch;
  /// Called before a communicator is aborted, and before it is left.
  std::function<void()> on_abort, on_leave;
  /// As NCCL: end_group() returns at once, and has_ended() says when everything has come.
  bool is_lazy = false;
  /// With is_lazy: exchanges do not wait for what was launched.
  bool has_events = false;

  std::string make_id() override { return std::to_string(num_ids_++); }
  Communicator join(const std::string& id, i32 rank, i32) override {
    EXPECT_EQ(rank, rank_);
    const std::lock_guard lock(mutex_);
    communicators_.push_back(std::make_unique<Member>(std::stoi(id)));
    return communicators_.back().get();
  }
  void begin_group() override {
    group().clear();
    if (on_launch) on_launch();
  }
  void send(const void* data, i64 bytes, i32 peer, Communicator communicator, Stream) override {
    group().push_back({{true, peer, bytes}, const_cast<void*>(data), id_of(communicator, "send")});
  }
  void receive(void* data, i64 bytes, i32 peer, Communicator communicator, Stream) override {
    group().push_back({{false, peer, bytes}, data, id_of(communicator, "receive")});
  }
  void end_group() override {
    NcclLaunch launch;
    for (const Pending& p : group()) {
      launch.communicator = p.communicator;
      launch.calls.push_back(p.call);
      const char* from = static_cast<const char*>(p.data);
      if (p.call.sends) world_.put(p.communicator, rank_, p.call.peer, {from, from + p.call.bytes});
    }
    {
      const std::lock_guard lock(mutex_);
      world_.launches[idx(rank_)].push_back(launch);
    }
    for (const Pending& p : group()) {
      if (p.call.sends) continue;
      if (is_lazy)
        stream().push_back(p);
      else
        arrive(p, world_.take(p.communicator, p.call.peer, rank_));
    }
  }
  bool has_ended(c10::Device) override {
    while (!stream().empty()) {
      const Pending& p = stream().front();
      const std::optional<std::vector<char>> bytes = world_.take_if_there(p.communicator, p.call.peer, rank_);
      if (!bytes) return false;
      arrive(p, *bytes);
      stream().pop_front();
      ++num_arrived();
    }
    return true;
  }
  EventPtr record(c10::Device) override { return has_events ? std::make_shared<Event>(*this) : nullptr; }
  at::Tensor to_device(const at::Tensor& tensor, c10::Device device) override {
    const std::lock_guard lock(mutex_);
    ++world_.copies[idx(rank_)].to_device;
    return NcclApi::to_device(tensor, device);
  }
  at::Tensor start_to_host(const at::Tensor& tensor) override {
    const std::lock_guard lock(mutex_);
    ++world_.copies[idx(rank_)].to_host;
    return NcclApi::start_to_host(tensor);
  }
  void check(Communicator communicator) override { id_of(communicator, "check"); }
  void abort(Communicator communicator) override {
    if (on_abort) on_abort();
    give_back(communicator, "abort");
    world_.abort();
  }
  void leave(Communicator communicator) override {
    if (on_leave) on_leave();
    give_back(communicator, "leave");
  }

 private:
  struct Member {
    explicit Member(i32 number) : id(number) {}
    i32 id;
    bool given_back = false;
  };
  /// Of what the thread that asks has launched.
  struct Event : StreamEvent {
    explicit Event(FakeNccl& of) : nccl(of), after(num_arrived() + stream().size()) {}
    bool has_passed() const override {
      return nccl.has_ended(c10::DeviceType::CPU) || num_arrived() >= after;
    }
    Seconds seconds_since(const StreamEvent&) const override { return 0; }
    void hold_current_stream() const override {}
    FakeNccl& nccl;
    std::size_t after;
  };
  struct Pending {
    NcclCall call;
    void* data;
    i32 communicator;
  };
  static std::vector<Pending>& group() {
    thread_local std::vector<Pending> pending;
    return pending;
  }
  /// What the calling thread has got of all that it launched.
  static std::size_t& num_arrived() {
    thread_local std::size_t count = 0;
    return count;
  }
  /// What the calling thread has launched and not yet got.
  static std::deque<Pending>& stream() {
    thread_local std::deque<Pending> pending;
    return pending;
  }
  void arrive(const Pending& p, const std::vector<char>& bytes) const {
    HM_CHECK(static_cast<i64>(bytes.size()) == p.call.bytes, "rank {} sent {} bytes, rank {} expected {}",
             p.call.peer, bytes.size(), rank_, p.call.bytes);
    std::memcpy(p.data, bytes.data(), bytes.size());
  }
  i32 id_of(Communicator communicator, const char* use) {
    const std::lock_guard lock(mutex_);
    const Member& member = *static_cast<Member*>(communicator);
    EXPECT_FALSE(member.given_back) << use << " on a communicator that rank " << rank_ << " gave back";
    return member.id;
  }
  void give_back(Communicator communicator, const char* use) {
    id_of(communicator, use);
    const std::lock_guard lock(mutex_);
    static_cast<Member*>(communicator)->given_back = true;
  }

  NcclWorld& world_;
  i32 rank_;
  i32 num_ids_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Member>> communicators_;
};

}  // namespace hetermoe::testing
