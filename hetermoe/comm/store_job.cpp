#include "hetermoe/comm/store_job.h"

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/numbers.h"
#include "hetermoe/comm/key_store.h"
#include "hetermoe/comm/store_gather.h"
#include "hetermoe/comm/watch.h"

namespace hetermoe {

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

StoreJob::StoreJob(const StoreAddress& address, StoreOptions options)
    : address_(address), options_(std::move(options)) {
  const bool serves = address_.rank == 0 && !address_.hosted;
  store_ = connect_tcp_store(address_, serves ? Serve::kYes : Serve::kNo, options_.join_limit);
  gather_ = std::make_unique<StoreGather>(*store_, address_.rank, address_.num_ranks);
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
  std::vector<std::string> names = gather(host_name(), options_.join_limit);
  for (std::size_t r = 0; r < names.size(); ++r) names[r] = fmt::format("rank {} on {}", r, names[r]);
  watch_ = std::make_unique<Watch>(address_, options_, std::move(names),
                                   connect_tcp_store(address_, Serve::kNo, options_.join_limit));
}

StoreJob::~StoreJob() {
  watch_->leave();
  // After an error of this rank alone the others may never leave: they end when the store goes.
  const bool failed = std::uncaught_exceptions() > 0;
  constexpr Seconds kForever = 1e9;
  if (watch_->holds_store()) watch_->await_others(failed ? 0.2 * options_.silence : kForever);
}

std::vector<std::string> StoreJob::gather(const std::string& text) const {
  return gather(text, options_.gather_limit);
}

std::vector<std::string> StoreJob::gather(const std::string& text, Seconds limit) const {
  return gather_->gather(
      text, limit, [this] { return watch_ ? watch_->left() : std::vector<bool>(idx(address_.num_ranks)); });
}

void StoreJob::on_lost(TakeLost take) const { watch_->on_lost(std::move(take)); }

void StoreJob::tell_error(const std::string& text) const { watch_->tell_error(text); }

void StoreJob::abort(const Ending& ending) const {
  if (ending.of_transfer) {
    watch_->await_silence();
    if (const std::string first = watch_->told_error(); !first.empty()) watch_->end(first, ending.code);
  }
  watch_->end(fmt::format("[rank {} on {}] ended the run with code {}{}{}", address_.rank, host_name(),
                          ending.code, ending.text.empty() ? "" : ": ", ending.text),
              ending.code);
}

std::unique_ptr<Processes> join_store(const StoreAddress& address, StoreOptions options) {
  return std::make_unique<StoreJob>(address, std::move(options));
}

}  // namespace hetermoe
