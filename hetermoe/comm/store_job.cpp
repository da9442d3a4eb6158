#include "hetermoe/comm/store_job.h"

#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <future>
#include <iostream>
#include <mutex>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"
#include "hetermoe/base/numbers.h"

namespace hetermoe {
namespace {

std::chrono::milliseconds ms(Seconds seconds) {
  return std::chrono::milliseconds(static_cast<i64>(1000 * seconds));
}

/// The server takes values up to 8 MiB.
constexpr std::size_t kPart = std::size_t{4} << 20;

/// What a rank shows instead of a heartbeat when it leaves in peace, and when it ends because the run does.
const char* const kLeft = "left";
const char* const kEnded = "ended";
bool is_last_sign(const std::string& sign) { return sign == kLeft || sign == kEnded; }

/// Between two looks of a gather() at who has come.
constexpr Seconds kShortestPause = 0.001, kLongestPause = 0.05;

std::string rank_key(const std::string& name, i32 rank) { return fmt::format("{}/{}", name, rank); }
std::string part_key(const std::string& key, i64 part) { return fmt::format("{}/{}", key, part); }

/// Whether a connection brings the store with it.
enum class Serve { kNo, kYes };

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

// ---- where ----

StoreAddress read_store_address(const Variables& variable) {
  const auto word = [&](const char* name, const char* what) {
    std::string text = variable(name);
    if (text.empty()) fail<ConfigError>(name, "is not set, expected {}, as torchrun sets it", what);
    return text;
  };
  const auto number = [&](const char* name, const char* what, i64 low, i64 high) {
    const std::string text = word(name, what);
    const std::optional<i64> value = whole_number(text);
    if (!value || *value < low || *value > high)
      fail<ConfigError>(name, "got \"{}\", expected {}, from {} to {}", text, what, low, high);
    return static_cast<i32>(*value);
  };
  StoreAddress out;
  out.num_ranks = number("WORLD_SIZE", "the number of processes", 1, kMaxRanks);
  out.rank = number("RANK", "the number of this process", 0, out.num_ranks - 1);
  out.local_rank = number("LOCAL_RANK", "the number of this process on its host", 0, out.num_ranks - 1);
  out.host = word("MASTER_ADDR", "the host of rank 0");
  out.port = number("MASTER_PORT", "a port of that host", 1, 65535);
  out.hosted = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const std::string restarts = variable("TORCHELASTIC_RESTART_COUNT");
  if (!restarts.empty()) out.attempt = restarts;
  return out;
}

// ---- the store ----

/// A connection to the store, with this run's names of keys. Errors of libtorch become TransportError. One
/// call at a time goes through a connection.
class StoreJob::Store {
 public:
  Store(const StoreAddress& address, Serve serve, Seconds limit) : address_(address) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(address.port);
    options.isServer = serve == Serve::kYes;
    options.waitWorkers = false;  // who is missing is ours to say
    options.timeout = ms(limit);
    const std::string where = fmt::format("MASTER_ADDR {} MASTER_PORT {}", address.host, address.port);
    try {
      store_ = open(address.host, options);
    } catch (const std::exception& error) {
      const auto* const c10_error = dynamic_cast<const c10::Error*>(&error);
      const std::string why = c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
      if (serve == Serve::kYes) {
        fail<ConfigError>(
            where,
            "rank 0 cannot open its store there. Is the port in use, by an earlier run perhaps, "
            "or is this another host? ({})",
            why);
      }
      fail<TransportError>(where,
                           "rank {} found no store there within {:.3g} s; {} holds it. Does that run, and is "
                           "the port open between the hosts? ({})",
                           address.rank, limit, address.hosted ? "the launcher" : "rank 0", why);
    }
  }

  void set(const std::string& key, const std::string& value) const {
    checked([&] { store_->set(full(key), std::vector<std::uint8_t>(value.begin(), value.end())); });
  }
  /// Sets what nobody has set before.
  void set_first(const std::string& key, const std::string& value) const {
    checked(
        [&] { store_->compareSet(full(key), {}, std::vector<std::uint8_t>(value.begin(), value.end())); });
  }
  /// Number of calls so far with this key, this one included.
  i64 count(const std::string& key) const {
    return checked([&] { return store_->add(full(key), 1); });
  }
  /// Whether all are there.
  bool has(const std::vector<std::string>& keys) const {
    return checked([&] { return store_->check(full(keys)); });
  }
  /// Of keys that are there.
  std::vector<std::string> get(const std::vector<std::string>& keys) const {
    std::vector<std::string> values;
    for (const auto& bytes : checked([&] { return store_->multiGet(full(keys)); }))
      values.push_back(text_of(bytes));
    return values;
  }
  void remove(const std::string& key) const {
    checked([&] { store_->deleteKey(full(key)); });
  }

 private:
  using StorePointer = c10::intrusive_ptr<c10d::TCPStore>;

  /// Opening has a limit for connecting, but none for a server that takes the connection and says nothing.
  static StorePointer open(const std::string& host, const c10d::TCPStoreOptions& options) {
    const auto promise = std::make_shared<std::promise<StorePointer>>();
    std::future<StorePointer> opened = promise->get_future();
    std::thread([host, options, promise] {
      try {
        promise->set_value(c10::make_intrusive<c10d::TCPStore>(host, options));
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    }).detach();
    // Where connecting fails, libtorch knows why.
    const auto limit = 2 * options.timeout + std::chrono::seconds(1);
    if (opened.wait_for(limit) != std::future_status::ready)
      throw std::runtime_error("something else listens there");
    return opened.get();
  }

  std::string full(const std::string& key) const {
    return fmt::format("hetermoe/{}/{}", address_.attempt, key);
  }
  std::vector<std::string> full(const std::vector<std::string>& keys) const {
    std::vector<std::string> out;
    for (const std::string& key : keys) out.push_back(full(key));
    return out;
  }
  template <class F>
  std::invoke_result_t<F> checked(F&& call) const {
    try {
      return call();
    } catch (const c10::Error& error) {
      fail<TransportError>(fmt::format("rank {}", address_.rank), "lost {} at {}:{}: {}",
                           address_.hosted ? "the launcher's store" : "rank 0, which holds the store",
                           address_.host, address_.port, error.what_without_backtrace());
    }
  }

  const StoreAddress& address_;
  StorePointer store_;
};

// ---- signs of life ----

/// Two threads: one talks to the store, and may be stuck there; the other judges what it has heard. Silence
/// is counted in rounds of the judge, so that a process that was stopped for a while does not take the time
/// it slept for the silence of others.
class StoreJob::Watch {
 public:
  Watch(const StoreAddress& address, const StoreOptions& options, std::vector<std::string> names)
      : address_(address),
        options_(options),
        names_(std::move(names)),
        store_(address, Serve::kNo, options.join_limit),
        beat_(std::min(0.5, options.silence / 20)),
        silent_rounds_(static_cast<i64>(0.7 * options.silence / beat_)),
        ranks_(static_cast<std::size_t>(address.num_ranks)) {
    talker_ = std::thread([this] { talk(); });
    judge_ = std::thread([this] { judge(); });
  }
  ~Watch() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    talker_.join();
    judge_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  static std::string key(i32 rank) { return fmt::format("life/{}", rank); }

  /// Tells the others that silence is no death from now on.
  void leave() {
    std::unique_lock lock(mutex_);
    leaving_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return told_leave_; });
  }
  /// Returns when all others have left, or after `limit`. Should one die, this process ends.
  void await_others(Seconds limit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, ms(limit), [&] { return all_ended(); });
  }
  bool holds_store() const { return address_.rank == 0 && !address_.hosted; }
  /// [rank] left in peace.
  std::vector<bool> left() {
    const std::lock_guard lock(mutex_);
    std::vector<bool> out;
    for (const Rank& rank : ranks_) out.push_back(rank.sign == kLeft);
    return out;
  }

  /// Ends this process, and tells the others to end with the same words.
  [[noreturn]] void end(const std::string& text, int code) {
    claim_end();
    {
      const std::lock_guard lock(mutex_);
      to_tell_ = Json{{"text", text}, {"code", code}}.dump();
    }
    die(text, code);
  }

 private:
  struct Rank {
    std::string sign;       ///< last sign of life
    i64 silent_rounds = 0;  ///< of the judge since it changed
  };
  struct Verdict {
    std::string text;
    int code = 1;
    bool known = false;  ///< to the others
  };
  static constexpr const char* kEnd = "end";

  bool is_silent(std::size_t rank) const { return ranks_[rank].silent_rounds > silent_rounds_; }

  /// All other ranks have left or are silent.
  bool all_ended() const {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (static_cast<i32>(r) != address_.rank && !is_last_sign(ranks_[r].sign) && !is_silent(r))
        return false;
    }
    return true;
  }

  void talk() {
    try {
      std::unique_lock lock(mutex_);
      for (i64 beat = 1; !stop_; ++beat) {
        const bool leave = leaving_;
        const std::string to_tell = to_tell_;
        lock.unlock();
        if (!to_tell.empty()) store_.set_first(kEnd, to_tell);
        const std::string last_sign = ending_ ? kEnded : kLeft;
        store_.set(key(address_.rank), leave ? last_sign : std::to_string(beat));
        if (leave) {
          // Now: rank 0, told that all have left, may take the store away before hear() has an answer.
          lock.lock();
          told_leave_ = true;
          changed_.notify_all();
          lock.unlock();
        }
        const auto [signs, end] = hear();
        lock.lock();
        note(signs, end);
        changed_.notify_all();
        changed_.wait_for(lock, ms(beat_), [&] { return stop_ || leaving_ != told_leave_; });
      }
    } catch (const TransportError& error) {
      const std::lock_guard lock(mutex_);
      lost_ = error.what();
    }
  }

  /// Signs of life of all ranks, and how the run ended, empty while it goes on.
  std::pair<std::vector<std::string>, std::string> hear() const {
    std::vector<std::string> keys;
    for (i32 r = 0; r < address_.num_ranks; ++r) keys.push_back(key(r));
    std::vector<std::string> signs = store_.get(keys);
    return {std::move(signs), store_.has({kEnd}) ? store_.get({kEnd})[0] : ""};
  }

  void note(const std::vector<std::string>& signs, const std::string& end) {
    ++num_heard_;
    end_ = end;
    for (std::size_t r = 0; r < signs.size(); ++r) {
      if (signs[r] != ranks_[r].sign) ranks_[r] = {signs[r], 0};
    }
  }

  void judge() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, ms(beat_), [&] { return stop_; })) {
      const std::optional<Verdict> verdict = next_verdict();
      if (!verdict) continue;
      lock.unlock();
      if (!verdict->known) end(verdict->text, verdict->code);
      claim_end();
      die(verdict->text, verdict->code);
    }
  }

  std::optional<Verdict> next_verdict() {
    if (!end_.empty()) {
      const Json end = Json::parse(end_);
      return Verdict{end["text"], end["code"], true};
    }
    // Who has left does not mind that the store goes, too.
    if (told_leave_ && !holds_store()) return {};
    const bool heard = std::exchange(num_heard_, 0) > 0;
    unheard_rounds_ = heard ? 0 : unheard_rounds_ + 1;
    if (!lost_.empty() || unheard_rounds_ > silent_rounds_) {
      const std::string why = lost_.empty() ? fmt::format("has not answered for {:.3g} s", options_.silence)
                                            : "is gone: " + lost_;
      return Verdict{fmt::format("[{}] is dead or cut off: its store {}", store_name(), why)};
    }
    if (!heard) return {};  // that is not the fault of the others
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (static_cast<i32>(r) == address_.rank || is_last_sign(ranks_[r].sign)) continue;
      ++ranks_[r].silent_rounds;
      if (is_silent(r)) {
        return Verdict{fmt::format("[{}] is dead or cut off: no sign of life for {:.3g} s", names_[r],
                                   options_.silence)};
      }
    }
    return {};
  }

  std::string store_name() const {
    return address_.hosted ? fmt::format("launcher at {}:{}", address_.host, address_.port) : names_[0];
  }

  /// Only one thread ends the process.
  void claim_end() {
    while (ending_.exchange(true)) std::this_thread::sleep_for(std::chrono::hours(1));
  }

  [[noreturn]] void die(const std::string& text, int code) {
    std::cerr << fmt::format("rank {}: {}", address_.rank, text) << std::endl;
    if (options_.last_words) options_.last_words();
    {
      // The others hear of the end with their next beat; if the store went now, they would blame this
      // process.
      std::unique_lock lock(mutex_);
      leaving_ = true;
      changed_.notify_all();
      const auto told = [&] { return told_leave_ && (!holds_store() || all_ended()); };
      if (lost_.empty()) changed_.wait_for(lock, ms(0.2 * options_.silence), told);
    }
    std::_Exit(code);
  }

  const StoreAddress& address_;
  const StoreOptions& options_;
  const std::vector<std::string> names_;  ///< "rank 2 on n7"
  const Store store_;                     ///< the talker's own, which alone may get stuck in it
  const Seconds beat_;
  const i64 silent_rounds_;  ///< more of them are a death
  std::atomic<bool> ending_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false, leaving_ = false, told_leave_ = false;
  std::vector<Rank> ranks_;
  i64 num_heard_ = 0, unheard_rounds_ = 0;
  std::string to_tell_, end_;   ///< how the run ends, from here and from the store
  std::string lost_;            ///< why there is no store any more
  std::thread talker_, judge_;  // last: they use the others
};

// ---- the processes ----

StoreJob::StoreJob(const StoreAddress& address, StoreOptions options)
    : address_(address), options_(std::move(options)) {
  // Every error comes to us as an exception; libtorch would print it, too, with the addresses of its stack.
  FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  const bool serves = address_.rank == 0 && !address_.hosted;
  store_ = std::make_unique<Store>(address_, serves ? Serve::kYes : Serve::kNo, options_.join_limit);
  join();
}

void StoreJob::join() {
  const std::string num_ranks = std::to_string(address_.num_ranks);
  store_->set_first("num_ranks", num_ranks);
  if (const std::string other = store_->get({"num_ranks"})[0]; other != num_ranks) {
    fail<ConfigError>("WORLD_SIZE", "got {} on rank {}, expected {} as on another rank", num_ranks,
                      address_.rank, other);
  }
  if (store_->count(fmt::format("start/{}", address_.rank)) > 1)
    fail<ConfigError>("RANK", "got {} in two processes, expected a number of its own in each", address_.rank);
  store_->set(Watch::key(address_.rank), "0");
  std::vector<std::string> names = gather("join", host_name(), options_.join_limit);
  for (std::size_t r = 0; r < names.size(); ++r) names[r] = fmt::format("rank {} on {}", r, names[r]);
  watch_ = std::make_unique<Watch>(address_, options_, std::move(names));
}

StoreJob::~StoreJob() {
  watch_->leave();
  // After an error of this rank alone the others may never leave: they end when the store goes.
  const bool failed = std::uncaught_exceptions() > 0;
  constexpr Seconds kForever = 1e9;
  if (watch_->holds_store()) watch_->await_others(failed ? 0.2 * options_.silence : kForever);
}

std::vector<std::string> StoreJob::gather(const std::string& text) const {
  return gather(fmt::format("gather/{}", num_gathers_++), text, options_.gather_limit);
}

/// A rank's text is its number of further parts, a line end, and the first part. The others have keys of
/// their own and are there before it.
std::vector<std::string> StoreJob::gather(const std::string& name, const std::string& text,
                                          Seconds limit) const {
  const std::string own = rank_key(name, address_.rank);
  std::vector<std::string> keys = {own};
  for (std::size_t begin = kPart; begin < text.size(); begin += kPart) {
    keys.push_back(part_key(own, static_cast<i64>(keys.size())));
    store_->set(keys.back(), text.substr(begin, kPart));
  }
  store_->set(own, fmt::format("{}\n{}", keys.size() - 1, text.substr(0, kPart)));
  await(name, limit);
  // All have come here, so all are done with the gather before.
  for (const std::string& key : std::exchange(own_keys_, keys)) store_->remove(key);
  std::vector<std::string> all;
  for (i32 r = 0; r < address_.num_ranks; ++r) {
    const std::string head = store_->get({rank_key(name, r)})[0];
    const std::size_t line_end = head.find('\n');
    const i64 num_parts = whole_number(head.substr(0, line_end)).value_or(0);
    all.push_back(head.substr(line_end + 1));
    for (i64 part = 1; part <= num_parts; ++part)
      all.back() += store_->get({part_key(rank_key(name, r), part)})[0];
  }
  return all;
}

/// Returns when every rank has come to the gather. Asks again and again: a wait of the store that ends
/// without an answer writes warnings of its own.
void StoreJob::await(const std::string& name, Seconds limit) const {
  std::vector<std::string> keys;
  for (i32 r = 0; r < address_.num_ranks; ++r) keys.push_back(rank_key(name, r));
  const auto begin = std::chrono::steady_clock::now();
  for (Seconds pause = kShortestPause;; pause = std::min(2 * pause, kLongestPause)) {
    // Who has left had come before: so first who has left, then who has come.
    const std::vector<bool> left = watch_ ? watch_->left() : std::vector<bool>(keys.size());
    if (store_->has(keys)) return;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    const bool is_late = waited.count() > limit;
    if (is_late || std::find(left.begin(), left.end(), true) != left.end()) fail_missing(keys, left, limit);
    std::this_thread::sleep_for(ms(pause));
  }
}

void StoreJob::fail_missing(const std::vector<std::string>& keys, const std::vector<bool>& left,
                            Seconds limit) const {
  std::vector<std::size_t> missing, gone;
  for (std::size_t r = 0; r < keys.size(); ++r) {
    if (!store_->has({keys[r]})) (left[r] ? gone : missing).push_back(r);
  }
  if (!gone.empty()) {
    fail<TransportError>(fmt::format("rank {}", fmt::join(gone, ", ")),
                         "ended while rank {} waits for it in a gather", address_.rank);
  }
  fail<TransportError>(fmt::format("rank {}", fmt::join(missing, ", ")),
                       "did not come within {:.3g} s: rank {} waits. Was it started?", limit, address_.rank);
}

void StoreJob::abort(int code) const {
  watch_->end(fmt::format("[rank {} on {}] ended the run with code {}", address_.rank, host_name(), code),
              code);
}

std::unique_ptr<Processes> join_store(const StoreAddress& address, StoreOptions options) {
  return std::make_unique<StoreJob>(address, std::move(options));
}

}  // namespace hetermoe
