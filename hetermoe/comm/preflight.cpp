#include "hetermoe/comm/preflight.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"
#include "hetermoe/base/median.h"
#include "hetermoe/comm/mpi.h"
#include "hetermoe/report/table.h"

namespace hetermoe {
namespace {

using Time = std::chrono::steady_clock;
using Pair = std::pair<DeviceId, DeviceId>;

/// All pairs as rounds in which every device has at most one partner: one device stays, the others go round.
std::vector<std::vector<Pair>> rounds_of(i32 num_devices) {
  const i32 places = num_devices + num_devices % 2;  // an odd one rests
  std::vector<DeviceId> circle(static_cast<std::size_t>(places));
  std::iota(circle.begin(), circle.end(), 0);
  std::vector<std::vector<Pair>> rounds;
  for (i32 round = 0; round + 1 < places; ++round) {
    rounds.emplace_back();
    for (i32 i = 0; i < places / 2; ++i) {
      const auto [low, high] =
          std::minmax(circle[static_cast<std::size_t>(i)], circle[static_cast<std::size_t>(places - 1 - i)]);
      if (high < num_devices) rounds.back().emplace_back(low, high);
    }
    std::rotate(circle.begin() + 1, circle.end() - 1, circle.end());
  }
  return rounds;
}

/// One device's side of a pair, on a thread of its own: a dead pair holds up nobody else.
class Probe {
 public:
  Probe(Transport& transport, DeviceId self, DeviceId peer, const PreflightOptions& options)
      : self_(self), peer_(peer), thread_([this, &transport, &options] { run(transport, options); }) {}
  ~Probe() { thread_.join(); }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  Pair pair() const { return std::minmax(self_, peer_); }
  /// Times per size; empty when the deadline came first.
  std::vector<Seconds> wait_until(Time::time_point deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return done_; });
    return done_ ? seconds_ : std::vector<Seconds>();
  }

 private:
  void run(Transport& transport, const PreflightOptions& options) {
    std::vector<Seconds> seconds;
    try {
      tell(transport, 0, 1);  // both are there; what it took says nothing
      OpId op = 1;
      for (const i64 size : options.sizes) {
        Seconds fastest = options.limit;
        for (i32 round = 0; round < options.rounds; ++round)
          fastest = std::min(fastest, tell(transport, op++, size));
        seconds.push_back(fastest);
      }
    } catch (const std::exception&) {
      seconds.clear();  // dead: the transport broke, or was aborted when the preflight ended
    }
    const std::lock_guard lock(mutex_);
    seconds_ = std::move(seconds);
    done_ = true;
    changed_.notify_all();
  }

  Seconds tell(Transport& transport, OpId op, i64 size) const {
    const std::vector<DeviceId> both = {std::min(self_, peer_), std::max(self_, peer_)};
    std::vector<Message> out(2);
    for (Message& message : out) message.tensors.push_back(at::zeros({size}, at::kByte));
    const Time::time_point begin = Time::now();
    transport.exchange({0, op, "preflight", self_, both, 0}, std::move(out));
    return std::chrono::duration<double>(Time::now() - begin).count();
  }

  DeviceId self_, peer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::vector<Seconds> seconds_;
  std::thread thread_;  // last: it uses the others
};

/// gather() that does not wait for a process that will never come.
std::vector<std::string> gather_within(const Processes& processes, const std::string& text, Seconds limit) {
  if (processes.alone()) return processes.gather(text);
  const auto gathered = std::make_shared<std::promise<std::vector<std::string>>>();
  std::future<std::vector<std::string>> future = gathered->get_future();
  std::thread([&processes, text, gathered] { gathered->set_value(processes.gather(text)); }).detach();
  if (future.wait_for(std::chrono::duration<double>(limit)) != std::future_status::ready) {
    fail<TransportError>(
        fmt::format("rank {}", processes.rank()),
        "the other processes do not answer: got nothing for {:.3g} s. Is the network between "
        "their hosts open for MPI?",
        limit);
  }
  return future.get();
}

std::string link_between(i32 a, i32 b, const std::vector<std::string>& hosts) {
  if (a == b) return "same process";
  return hosts[static_cast<std::size_t>(a)] == hosts[static_cast<std::size_t>(b)] ? "same host" : "network";
}

Json to_json(const std::map<Pair, std::vector<Seconds>>& times) {
  Json json = Json::array();
  for (const auto& [pair, seconds] : times) json.push_back({pair.first, pair.second, seconds});
  return json;
}

/// A pair is as slow as its slower side, and dead when a side heard nothing.
void add(std::map<Pair, std::vector<Seconds>>& all, const Pair& pair, const std::vector<Seconds>& seconds) {
  const auto [entry, fresh] = all.try_emplace(pair, seconds);
  if (fresh) return;
  if (seconds.empty()) entry->second.clear();
  for (std::size_t i = 0; i < entry->second.size(); ++i)
    entry->second[i] = std::max(entry->second[i], seconds[i]);
}

/// Medians per kind of link and size, of the pairs that answered.
std::map<std::string, std::vector<Seconds>> medians(const std::vector<PairTimes>& pairs, std::size_t sizes) {
  std::map<std::string, std::vector<Seconds>> out;
  for (const PairTimes& of : pairs) out[of.link];
  for (auto& [link, seconds] : out) {
    for (std::size_t i = 0; i < sizes; ++i) {
      std::vector<double> values;
      for (const PairTimes& pair : pairs) {
        if (pair.link == link && !pair.seconds.empty()) values.push_back(pair.seconds[i]);
      }
      seconds.push_back(median(values));
    }
  }
  return out;
}

/// The size at which the pair is slow; -1 = none.
i64 slow_size(const PairTimes& pair, const std::vector<Seconds>& median, const PreflightOptions& options) {
  for (std::size_t i = 0; i < pair.seconds.size(); ++i) {
    const Seconds over = pair.seconds[i] - median[i];
    if (pair.seconds[i] > options.slow_factor * median[i] && over > options.slow_floor)
      return static_cast<i64>(i);
  }
  return -1;
}

std::string name_of(const PairTimes& pair, const std::vector<std::string>& names) {
  return fmt::format("{} - {}", names[static_cast<std::size_t>(pair.a)],
                     names[static_cast<std::size_t>(pair.b)]);
}

}  // namespace

std::vector<PairTimes> measure_pairs(const Processes& processes, Transport& transport,
                                     const std::vector<i32>& rank_of, const PreflightOptions& options) {
  const std::vector<std::string> hosts = gather_within(processes, host_name(), options.limit);
  std::vector<std::unique_ptr<Probe>> probes;
  std::map<Pair, std::vector<Seconds>> mine;
  const auto is_here = [&](DeviceId d) { return rank_of[static_cast<std::size_t>(d)] == processes.rank(); };
  for (const std::vector<Pair>& round : rounds_of(static_cast<i32>(rank_of.size()))) {
    const std::size_t first = probes.size();
    for (const auto& [a, b] : round) {
      if (is_here(a)) probes.push_back(std::make_unique<Probe>(transport, a, b, options));
      if (is_here(b)) probes.push_back(std::make_unique<Probe>(transport, b, a, options));
    }
    const auto deadline = Time::now() + std::chrono::duration_cast<Time::duration>(
                                            std::chrono::duration<double>(options.limit));
    for (std::size_t p = first; p < probes.size(); ++p)
      add(mine, probes[p]->pair(), probes[p]->wait_until(deadline));
    gather_within(processes, "", 2 * options.limit);  // nobody begins the next round early
  }
  std::map<Pair, std::vector<Seconds>> all;
  for (const std::string& text : gather_within(processes, to_json(mine).dump(), options.limit)) {
    for (const Json& one : Json::parse(text)) add(all, {one[0], one[1]}, one[2].get<std::vector<Seconds>>());
  }
  transport.abort("the preflight is over");
  std::vector<PairTimes> pairs;
  for (const auto& [pair, seconds] : all) {
    const i32 a = rank_of[static_cast<std::size_t>(pair.first)],
              b = rank_of[static_cast<std::size_t>(pair.second)];
    pairs.push_back({pair.first, pair.second, link_between(a, b, hosts), seconds, PairState::kGood});
  }
  judge(pairs, options);
  return pairs;
}

void judge(std::vector<PairTimes>& pairs, const PreflightOptions& options) {
  const auto median = medians(pairs, options.sizes.size());
  for (PairTimes& pair : pairs) {
    pair.state = pair.seconds.empty()                                  ? PairState::kDead
                 : slow_size(pair, median.at(pair.link), options) >= 0 ? PairState::kSlow
                                                                       : PairState::kGood;
  }
}

bool any_dead(const std::vector<PairTimes>& pairs) {
  return std::any_of(pairs.begin(), pairs.end(),
                     [](const PairTimes& pair) { return pair.state == PairState::kDead; });
}

std::string pair_table(const std::vector<PairTimes>& pairs, const std::vector<std::string>& names,
                       const PreflightOptions& options) {
  std::vector<std::string> header = {"pair", "link"};
  for (const i64 size : options.sizes) header.push_back(format_bytes(static_cast<double>(size)));
  header.insert(header.end(), {"bandwidth", ""});
  Table table(header);
  for (const PairTimes& pair : pairs) {
    std::vector<std::string> row = {name_of(pair, names), pair.link};
    for (std::size_t i = 0; i < options.sizes.size(); ++i)
      row.push_back(pair.seconds.empty() ? "-" : format_seconds(pair.seconds[i]));
    const auto largest = static_cast<double>(options.sizes.back());
    row.push_back(pair.has_bandwidth() ? format_bytes(largest / pair.seconds.back()) + "/s" : "-");
    const char* const states[] = {"", "SLOW", "DEAD"};
    row.push_back(states[static_cast<int>(pair.state)]);
    table.add_row(std::move(row));
  }
  return table.str();
}

std::vector<std::string> pair_complaints(const std::vector<PairTimes>& pairs,
                                         const std::vector<std::string>& names,
                                         const PreflightOptions& options) {
  const auto median = medians(pairs, options.sizes.size());
  std::vector<std::string> out;
  for (const PairTimes& pair : pairs) {
    if (pair.state == PairState::kDead)
      out.push_back(
          fmt::format("{} is dead: no answer within {:.3g} s", name_of(pair, names), options.limit));
    if (pair.state != PairState::kSlow) continue;
    const std::vector<Seconds>& usual = median.at(pair.link);
    const auto i = static_cast<std::size_t>(slow_size(pair, usual, options));
    out.push_back(fmt::format("{} is slow: {} took {}, the median of such pairs ({}) is {}",
                              name_of(pair, names), format_bytes(static_cast<double>(options.sizes[i])),
                              format_seconds(pair.seconds[i]), pair.link, format_seconds(usual[i])));
  }
  return out;
}

std::vector<std::string> process_names(const Processes& processes) {
  std::vector<std::string> names;
  for (const std::string& host : processes.gather(host_name()))
    names.push_back(fmt::format("process {} on {}", names.size(), host));
  return names;
}

std::vector<std::string> check_processes(const Processes& processes, const PreflightOptions& options) {
  std::vector<i32> ranks(static_cast<std::size_t>(processes.num_ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::unique_ptr<Transport> transport = make_mpi_transport(processes, ranks);
  const std::vector<PairTimes> pairs = measure_pairs(processes, *transport, ranks, options);
  const std::vector<std::string> names = process_names(processes);
  const std::vector<std::string> complaints = pair_complaints(pairs, names, options);
  if (any_dead(pairs)) fail<TransportError>("preflight", "{}", fmt::join(complaints, "; "));
  return complaints;
}

}  // namespace hetermoe
