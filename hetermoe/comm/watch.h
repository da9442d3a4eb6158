#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hetermoe/comm/key_store.h"

namespace hetermoe {

/// Signs of life. Two threads: one talks to the store, and may be stuck there; the other judges what it has
/// heard. Silence is counted in rounds of the judge, so that a process that was stopped for a while does not
/// take the time it slept for the silence of others. Any thread may call.
class Watch {
 public:
  /// names: "rank 2 on n7". store: a connection of its own. address and options must outlive this.
  Watch(const StoreAddress& address, const StoreOptions& options, std::vector<std::string> names,
        std::unique_ptr<KeyStore> store);
  /// Waits for the last message of a rank to the store only if the rank has not left. A rank that has left
  /// does not use the store any more, so a store that stands still then delays no rank.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Where a rank's sign of life stands.
  static std::string key(i32 rank);

  /// Tells the others that silence is no death from now on.
  void leave();
  /// Returns when all others have left, or after `limit`. Should one die, this process ends.
  void await_others(Seconds limit);
  bool holds_store() const { return address_.rank == 0 && !address_.hosted; }
  /// [rank] left in peace.
  std::vector<bool> left();

  /// Who hears of a rank that fell silent, before this process ends; see Processes::on_lost(). Waits for a
  /// call that goes on.
  void on_lost(TakeLost take);

  /// Tells the others, with each sign of life from now on, that this rank met an error of its own.
  void tell_error(const std::string& text);
  /// The error that another rank has told, with its name. Empty = none has told one.
  std::string told_error();

  /// A transfer failed, so another rank may be dead. From now on a quarter of the usual silence is a death.
  /// If a rank falls silent, this process ends and names it; else the call returns after a moment. It
  /// returns at once if a rank has told its error.
  void await_silence();

  /// Ends this process, and tells the others to end with the same words.
  [[noreturn]] void end(const std::string& text, int code);

 private:
  struct Rank {
    std::string sign;       ///< last sign of life
    i64 silent_rounds = 0;  ///< of the judge since it changed
    bool taken = false;     ///< it is lost, and the run goes on without it
  };
  struct Verdict {
    std::string text;
    int code = 1;
    bool known = false;  ///< to the others
    i32 lost = -1;       ///< the rank that fell silent, -1 = none
  };

  Seconds silence() const { return transfer_failed_ ? 0.25 * options_.silence : options_.silence; }
  /// More rounds without a sign of life are a death.
  i64 silent_rounds() const { return static_cast<i64>(0.7 * silence() / beat_); }
  bool is_silent(std::size_t rank) const { return ranks_[rank].silent_rounds > silent_rounds(); }
  bool all_ended() const;
  void talk();
  bool tell(const std::string& life, bool leave, const std::string& last_words);
  std::string error_of_others() const;
  std::pair<std::vector<std::string>, std::string> hear() const;
  void note(const std::vector<std::string>& signs, const std::string& end);
  void judge();
  std::optional<Verdict> next_verdict();
  bool is_taken(const Verdict& verdict);
  std::string store_name() const;
  void claim_end();
  [[noreturn]] void die(const std::string& text, int code);

  const StoreAddress& address_;
  const StoreOptions& options_;
  const std::vector<std::string> names_;
  const std::unique_ptr<KeyStore> store_;  ///< the talker's own, which alone may get stuck in it
  const Seconds beat_;
  std::atomic<bool> ending_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false, leaving_ = false, told_leave_ = false, transfer_failed_ = false;
  std::vector<Rank> ranks_;
  i64 num_heard_ = 0, unheard_rounds_ = 0;
  std::string error_;          ///< of this rank
  std::string to_tell_, end_;  ///< how the run ends, from here and from the store
  std::mutex take_mutex_;      ///< held while it is called
  TakeLost take_lost_;
  std::string lost_;            ///< why there is no store any more
  std::thread talker_, judge_;  // last: they use the others
};

}  // namespace hetermoe
