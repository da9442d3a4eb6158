#include "hetermoe/comm/watch.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/json.h"

namespace hetermoe {
namespace {

/// What a rank shows instead of a heartbeat when it leaves in peace, and when it ends because the run does.
constexpr const char* kLeft = "left";
constexpr const char* kEnded = "ended";
bool is_last_sign(const std::string& sign) { return sign == kLeft || sign == kEnded; }

/// Where it stands how the run ended.
constexpr const char* kEnd = "end";

}  // namespace

Watch::Watch(const StoreAddress& address, const StoreOptions& options, std::vector<std::string> names,
             std::unique_ptr<KeyStore> store)
    : address_(address),
      options_(options),
      names_(std::move(names)),
      store_(std::move(store)),
      beat_(std::min(0.5, options.silence / 20)),
      ranks_(idx(address.num_ranks)) {
  talker_ = std::thread([this] { talk(); });
  judge_ = std::thread([this] { judge(); });
}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  talker_.join();
  judge_.join();
}

std::string Watch::key(i32 rank) { return fmt::format("life/{}", rank); }

void Watch::leave() {
  std::unique_lock lock(mutex_);
  leaving_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return told_leave_; });
}

void Watch::await_others(Seconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, to_milliseconds(limit), [&] { return all_ended(); });
}

std::vector<bool> Watch::left() {
  const std::lock_guard lock(mutex_);
  std::vector<bool> out;
  for (const Rank& rank : ranks_) out.push_back(rank.sign == kLeft);
  return out;
}

void Watch::on_lost(TakeLost take) {
  const std::lock_guard lock(take_mutex_);
  take_lost_ = std::move(take);
}

void Watch::tell_error(const std::string& text) {
  const std::lock_guard lock(mutex_);
  error_ = text;
}

std::string Watch::told_error() {
  const std::lock_guard lock(mutex_);
  return error_of_others();
}

/// A sign of life is a number that grows. Behind it may stand an error.
std::string Watch::error_of_others() const {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const std::size_t end = ranks_[r].sign.find('\n');
    if (static_cast<i32>(r) != address_.rank && end != std::string::npos)
      return fmt::format("[{}] failed: {}", names_[r], ranks_[r].sign.substr(end + 1));
  }
  return "";
}

void Watch::await_silence() {
  std::unique_lock lock(mutex_);
  transfer_failed_ = true;
  // The rank may have died just now, and its last sign of life is heard a beat later.
  changed_.wait_for(lock, to_milliseconds(1.5 * silence()),
                    [&] { return stop_ || !error_of_others().empty(); });
}

void Watch::end(const std::string& text, int code) {
  claim_end();
  {
    const std::lock_guard lock(mutex_);
    to_tell_ = Json{{"text", text}, {"code", code}}.dump();
  }
  die(text, code);
}

/// All other ranks have left or are silent.
bool Watch::all_ended() const {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const Rank& rank = ranks_[r];
    if (static_cast<i32>(r) != address_.rank && !rank.taken && !is_last_sign(rank.sign) && !is_silent(r))
      return false;
  }
  return true;
}

void Watch::talk() {
  try {
    std::unique_lock lock(mutex_);
    for (i64 beat = 1; !stop_; ++beat) {
      const bool leave = leaving_;
      const std::string last_words = to_tell_;
      const std::string life = std::to_string(beat) + (error_.empty() ? "" : "\n" + error_);
      lock.unlock();
      if (!tell(life, leave, last_words)) return;
      const auto [signs, end] = hear();
      lock.lock();
      note(signs, end);
      changed_.notify_all();
      changed_.wait_for(lock, to_milliseconds(beat_), [&] { return stop_ || leaving_ != told_leave_; });
    }
  } catch (const TransportError& error) {
    const std::lock_guard lock(mutex_);
    lost_ = error.what();
  }
}

/// Shows a sign of life, or that this rank leaves. false: there is no more to say or to hear. Only who holds
/// the store waits for the others. For all others it may be gone or stand still from now on.
bool Watch::tell(const std::string& life, bool leave, const std::string& last_words) {
  if (!last_words.empty()) store_->set_first(kEnd, last_words);
  const std::string last_sign = ending_ ? kEnded : kLeft;
  store_->set(key(address_.rank), leave ? last_sign : life);
  if (!leave) return true;
  const std::lock_guard lock(mutex_);
  told_leave_ = true;
  changed_.notify_all();
  return holds_store();
}

/// Signs of life of all ranks, and how the run ended, empty while it goes on.
std::pair<std::vector<std::string>, std::string> Watch::hear() const {
  std::vector<std::string> keys;
  for (i32 r = 0; r < address_.num_ranks; ++r) keys.push_back(key(r));
  std::vector<std::string> signs = store_->get(keys);
  return {std::move(signs), store_->has({kEnd}) ? store_->get({kEnd})[0] : ""};
}

void Watch::note(const std::vector<std::string>& signs, const std::string& end) {
  ++num_heard_;
  end_ = end;
  for (std::size_t r = 0; r < signs.size(); ++r) {
    if (signs[r] != ranks_[r].sign) ranks_[r] = {signs[r], 0, ranks_[r].taken};
  }
}

void Watch::judge() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, to_milliseconds(beat_), [&] { return stop_; })) {
    const std::optional<Verdict> verdict = next_verdict();
    if (!verdict) continue;
    lock.unlock();
    if (is_taken(*verdict)) {
      lock.lock();
      ranks_[idx(verdict->lost)].taken = true;
      changed_.notify_all();
      continue;
    }
    if (!verdict->known) end(verdict->text, verdict->code);
    claim_end();
    die(verdict->text, verdict->code);
  }
}

bool Watch::is_taken(const Verdict& verdict) {
  if (verdict.lost < 0) return false;
  const std::lock_guard lock(take_mutex_);
  return take_lost_ && take_lost_({verdict.lost, verdict.text});
}

std::optional<Watch::Verdict> Watch::next_verdict() {
  if (!end_.empty()) {
    const Json end = Json::parse(end_);
    return Verdict{end["text"], end["code"], true};
  }
  // Who has left does not mind that the store goes, too.
  if (told_leave_ && !holds_store()) return {};
  const bool heard = std::exchange(num_heard_, 0) > 0;
  unheard_rounds_ = heard ? 0 : unheard_rounds_ + 1;
  if (!lost_.empty() || unheard_rounds_ > silent_rounds()) {
    const std::string why =
        lost_.empty() ? fmt::format("has not answered for {:.3g} s", silence()) : "is gone: " + lost_;
    return Verdict{fmt::format("[{}] is dead or cut off: its store {}", store_name(), why)};
  }
  if (!heard) return {};  // that is not the fault of the others
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (static_cast<i32>(r) == address_.rank || ranks_[r].taken || is_last_sign(ranks_[r].sign)) continue;
    ++ranks_[r].silent_rounds;
    if (is_silent(r)) {
      return Verdict{
          fmt::format("[{}] is dead or cut off: no sign of life for {:.3g} s", names_[r], silence()), 1,
          false, static_cast<i32>(r)};
    }
  }
  return {};
}

std::string Watch::store_name() const {
  return address_.hosted ? fmt::format("launcher at {}:{}", address_.host, address_.port) : names_[0];
}

/// Only one thread ends the process.
void Watch::claim_end() {
  while (ending_.exchange(true)) std::this_thread::sleep_for(std::chrono::hours(1));
}

void Watch::die(const std::string& text, int code) {
  std::cerr << fmt::format("rank {}: {}", address_.rank, text) << std::endl;
  if (options_.last_words) options_.last_words();
  {
    // The others hear of the end with their next beat; if the store went now, they would blame this
    // process.
    std::unique_lock lock(mutex_);
    leaving_ = true;
    changed_.notify_all();
    const auto told = [&] { return told_leave_ && (!holds_store() || all_ended()); };
    if (lost_.empty()) changed_.wait_for(lock, to_milliseconds(0.2 * options_.silence), told);
  }
  std::_Exit(code);
}

}  // namespace hetermoe
