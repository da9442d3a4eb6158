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
#include "hetermoe/base/index.h"
#include "hetermoe/base/json.h"
#include "hetermoe/base/median.h"
#include "hetermoe/comm/transports.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/report/table.h"

namespace hetermoe {
namespace {

constexpr const char* kSameProcess = "same process";
/// Pairs within one process of which a table has each; of more a single row.
constexpr std::ptrdiff_t kFewPairs = 3;

using Time = std::chrono::steady_clock;
using Pair = std::pair<DeviceId, DeviceId>;
constexpr i32 kQueue = 0;  ///< all messages take the same

/// All pairs as rounds in which every device has at most one partner: one device stays, the others go round.
std::vector<std::vector<Pair>> rounds_of(i32 num_devices) {
  const i32 places = num_devices + num_devices % 2;  // an odd one rests
  std::vector<DeviceId> circle(idx(places));
  std::iota(circle.begin(), circle.end(), 0);
  std::vector<std::vector<Pair>> rounds;
  for (i32 round = 0; round + 1 < places; ++round) {
    rounds.emplace_back();
    for (i32 i = 0; i < places / 2; ++i) {
      const auto [low, high] = std::minmax(circle[idx(i)], circle[idx(places - 1 - i)]);
      if (high < num_devices) rounds.back().emplace_back(low, high);
    }
    std::rotate(circle.begin() + 1, circle.end() - 1, circle.end());
  }
  return rounds;
}

/// What a pair told of itself: times per size, or why there are none. No times and no error: nothing came.
struct Heard {
  std::vector<Seconds> seconds;
  std::string error;
};

/// One device's side of a pair, on a thread of its own: a dead pair holds up nobody else.
class Probe {
 public:
  /// first_turn: exchanges of this device before.
  Probe(Transport& transport, DeviceId self, DeviceId peer, i64 first_turn, const PreflightOptions& options)
      : self_(self),
        peer_(peer),
        turn_(first_turn),
        thread_([this, &transport, &options] { run(transport, options); }) {}
  ~Probe() { thread_.join(); }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  Pair pair() const { return std::minmax(self_, peer_); }
  /// Exchanges of a pair.
  static i64 num_exchanges(const PreflightOptions& options) {
    return 1 + options.rounds * static_cast<i64>(options.sizes.size());
  }
  Heard wait_until(Time::time_point deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return done_; });
    return done_ ? heard_ : Heard();
  }

 private:
  void run(Transport& transport, const PreflightOptions& options) {
    Heard heard;
    try {
      const OwnStream stream(options.device);
      tell(transport, 0, 1, options.device);  // both are there; what it took says nothing
      OpId op = 1;
      for (const i64 size : options.sizes) {
        Seconds fastest = options.limit;
        for (i32 round = 0; round < options.rounds; ++round)
          fastest = std::min(fastest, tell(transport, op++, size, options.device));
        heard.seconds.push_back(fastest);
      }
    } catch (const std::exception& error) {  // the transport broke, or was aborted when the preflight ended
      heard = {{}, error.what()};
    }
    const std::lock_guard lock(mutex_);
    heard_ = std::move(heard);
    done_ = true;
    changed_.notify_all();
  }

  /// Numbers of two bytes: as in a step, they travel from and to the memory of the device.
  Seconds tell(Transport& transport, OpId op, i64 size, c10::Device device) {
    const std::vector<DeviceId> both = {std::min(self_, peer_), std::max(self_, peer_)};
    std::vector<Message> out(2);
    for (Message& message : out)
      message.tensors.push_back(at::zeros({(size + 1) / 2}, at::TensorOptions(at::kHalf).device(device)));
    finish_stream(device);
    const std::vector<MessageShape> expected(
        2, {.numbers = 0, .values = 0, .tensors = {{at::kHalf, {(size + 1) / 2}}}});
    const Time::time_point begin = Time::now();
    transport.exchange({0, op, "preflight", self_, both, kQueue, turn_++, expected}, std::move(out));
    finish_stream(device);
    return std::chrono::duration<double>(Time::now() - begin).count();
  }

  DeviceId self_, peer_;
  i64 turn_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Heard heard_;
  std::thread thread_;  // last: it uses the others
};

/// What `work` returns or throws; TransportError with `what` when that takes longer than the limit. The work
/// goes on then: nobody can end it.
template <class F>
std::invoke_result_t<F> within(Seconds limit, i32 rank, const std::string& what, F work) {
  const auto task = std::make_shared<std::packaged_task<std::invoke_result_t<F>()>>(std::move(work));
  std::future<std::invoke_result_t<F>> future = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (future.wait_for(std::chrono::duration<double>(limit)) != std::future_status::ready) {
    fail<TransportError>(fmt::format("rank {}", rank),
                         "{}: got nothing for {:.3g} s. Is the network between the hosts open?", what, limit);
  }
  return future.get();
}

/// gather() that does not wait for a process that will never come.
std::vector<std::string> gather_within(const Processes& processes, const std::string& text, Seconds limit) {
  if (processes.alone()) return processes.gather(text);
  return within(limit, processes.rank(), "the other processes do not answer",
                [&processes, text] { return processes.gather(text); });
}

std::string link_between(i32 a, i32 b, const std::vector<std::string>& hosts) {
  if (a == b) return kSameProcess;
  return hosts[idx(a)] == hosts[idx(b)] ? "same host" : "network";
}

Json to_json(const std::map<Pair, Heard>& all) {
  Json json = Json::array();
  for (const auto& [pair, heard] : all) json.push_back({pair.first, pair.second, heard.seconds, heard.error});
  return json;
}

/// A pair is as slow as its slower side, and dead when a side heard nothing.
void add(std::map<Pair, Heard>& all, const Pair& pair, const Heard& heard) {
  const auto [entry, fresh] = all.try_emplace(pair, heard);
  if (fresh) return;
  Heard& both = entry->second;
  if (both.error.empty()) both.error = heard.error;
  if (heard.seconds.empty()) both.seconds.clear();
  for (std::size_t i = 0; i < both.seconds.size(); ++i)
    both.seconds[i] = std::max(both.seconds[i], heard.seconds[i]);
}

/// What all processes heard; collective.
std::map<Pair, Heard> gather_heard(const Processes& processes, const std::map<Pair, Heard>& mine,
                                   const PreflightOptions& options) {
  std::map<Pair, Heard> all;
  for (const std::string& text : gather_within(processes, to_json(mine).dump(), options.limit)) {
    for (const Json& one : Json::parse(text))
      add(all, {one[0], one[1]}, {one[2].get<std::vector<Seconds>>(), one[3].get<std::string>()});
  }
  return all;
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
  return fmt::format("{} - {}", names[idx(pair.a)], names[idx(pair.b)]);
}

}  // namespace

std::vector<PairTimes> measure_pairs(const Processes& processes, Transport& transport,
                                     const std::vector<i32>& rank_of, const PreflightOptions& options) {
  const std::vector<std::string> hosts = gather_within(processes, host_name(), options.limit);
  std::vector<std::unique_ptr<Probe>> probes;
  std::vector<i64> turns(rank_of.size(), 0);
  std::map<Pair, Heard> mine;
  const auto start = [&](DeviceId self, DeviceId peer) {
    if (rank_of[idx(self)] != processes.rank()) return;
    i64& turn = turns[idx(self)];
    probes.push_back(std::make_unique<Probe>(transport, self, peer, turn, options));
    turn += Probe::num_exchanges(options);
  };
  for (const std::vector<Pair>& round : rounds_of(static_cast<i32>(rank_of.size()))) {
    const std::size_t first = probes.size();
    for (const auto& [a, b] : round) {
      start(a, b);
      start(b, a);
    }
    const auto deadline = Time::now() + std::chrono::duration_cast<Time::duration>(
                                            std::chrono::duration<double>(options.limit));
    bool dead = false;
    for (std::size_t p = first; p < probes.size(); ++p) {
      const Heard heard = probes[p]->wait_until(deadline);
      dead = dead || heard.seconds.empty();
      add(mine, probes[p]->pair(), heard);
    }
    // Nobody begins the next round early, or at all when one of them could not.
    const std::vector<std::string> ends = gather_within(processes, dead ? "dead" : "", 2 * options.limit);
    if (transport.attributes().one_launch_order && std::find(ends.begin(), ends.end(), "dead") != ends.end())
      break;
  }
  const std::map<Pair, Heard> all = gather_heard(processes, mine, options);
  std::vector<std::string> silent;
  for (const auto& [pair, heard] : all) {
    if (heard.seconds.empty()) silent.push_back(fmt::format("{} - {}", pair.first, pair.second));
  }
  if (!silent.empty()) transport.abort(fmt::format("no answer between devices {}", fmt::join(silent, ", ")));
  std::vector<PairTimes> pairs;
  for (const auto& [pair, heard] : all) {
    const i32 a = rank_of[idx(pair.first)], b = rank_of[idx(pair.second)];
    pairs.push_back(
        {pair.first, pair.second, link_between(a, b, hosts), heard.seconds, PairState::kGood, heard.error});
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
  const auto median = medians(pairs, options.sizes.size());
  const auto hands_over = [](const PairTimes& pair) {
    return pair.link == kSameProcess && pair.state == PairState::kGood;
  };
  const auto folded = std::count_if(pairs.begin(), pairs.end(), hands_over);
  if (folded > kFewPairs) {
    std::vector<std::string> row = {fmt::format("{} pairs, median", folded), kSameProcess};
    for (const Seconds seconds : median.at(kSameProcess)) row.push_back(format_seconds(seconds));
    row.insert(row.end(), {"-", ""});
    table.add_row(std::move(row));
  }
  for (const PairTimes& pair : pairs) {
    if (folded > kFewPairs && hands_over(pair)) continue;
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
      out.push_back(fmt::format(
          "{} is dead: {}", name_of(pair, names),
          pair.error.empty() ? fmt::format("no answer within {:.3g} s", options.limit) : pair.error));
    if (pair.state != PairState::kSlow) continue;
    const std::vector<Seconds>& usual = median.at(pair.link);
    const auto i = idx(slow_size(pair, usual, options));
    out.push_back(fmt::format("{} is slow: {} took {}, the median of such pairs ({}) is {}",
                              name_of(pair, names), format_bytes(static_cast<double>(options.sizes[i])),
                              format_seconds(pair.seconds[i]), pair.link, format_seconds(usual[i])));
  }
  const std::size_t num_pairs = names.size() * (names.size() - 1) / 2;
  if (pairs.size() < num_pairs)
    out.push_back(
        fmt::format("{} of {} pairs were not tried after that", num_pairs - pairs.size(), num_pairs));
  return out;
}

MakePairTransport pair_transport(const Processes& processes, c10::Device device, const std::string& name) {
  return [&processes, device, name](const std::vector<i32>& rank_of) {
    return find_transport(processes, device, name)
        .make(processes, {.rank_of = rank_of, .queues = {kQueue}, .device = device});
  };
}

MeasuredPairs measure_processes(const Processes& processes, const MakePairTransport& make_transport,
                                const PreflightOptions& options) {
  MeasuredPairs out;
  for (const std::string& host : gather_within(processes, host_name(), options.limit))
    out.names.push_back(fmt::format("process {} on {}", out.names.size(), host));
  std::vector<i32> ranks(out.names.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::unique_ptr<Transport> transport =
      within(options.start_limit, processes.rank(), "the processes do not come together",
             [make_transport, ranks] { return make_transport(ranks); });
  out.pairs = measure_pairs(processes, *transport, ranks, options);
  return out;
}

std::vector<std::string> check_processes(const Processes& processes, const MakePairTransport& make_transport,
                                         const PreflightOptions& options) {
  const MeasuredPairs found = measure_processes(processes, make_transport, options);
  const std::vector<std::string> complaints = pair_complaints(found.pairs, found.names, options);
  if (any_dead(found.pairs)) fail<TransportError>("preflight", "{}", fmt::join(complaints, "; "));
  return complaints;
}

}  // namespace hetermoe
