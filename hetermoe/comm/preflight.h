#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/comm/transport.h"

// Before a run: does every pair of devices, or of processes, hear each other, and how fast?
namespace hetermoe {

struct PreflightOptions {
  std::vector<i64> sizes = {8, 64 << 10, 4 << 20};  ///< bytes of a message, ascending
  i32 rounds = 5;                                   ///< of each size; the fastest counts
  Seconds limit = 10;                               ///< a pair that takes longer is dead
  double slow_factor = 2;                           ///< slow: above this times the median of its like ...
  Seconds slow_floor = 0.002;                       ///< ... and by more than this: the noise of a machine
  Seconds start_limit = 60;                         ///< until the transport between processes is there
  c10::Device device = c10::DeviceType::CPU;        ///< of this process: where its messages are
};

enum class PairState { kGood, kSlow, kDead };

/// Two devices that told each other messages of each size, both at once.
struct PairTimes {
  DeviceId a = 0, b = 0;
  std::string link;              ///< pairs of one kind of link are compared: "same process", "same host", ...
  std::vector<Seconds> seconds;  ///< [sizes]; empty = no answer within the limit
  /// Does not say anything where devices of one process hand over what they do not copy.
  bool has_bandwidth() const { return !seconds.empty() && link != "same process"; }
  PairState state = PairState::kGood;
  std::string error{};  ///< of a dead pair: what the transport met; empty = nothing came within the limit
};

/// Exchanges messages between all pairs; disjoint pairs at the same time. Collective: every process runs the
/// devices that rank_of gives it. If a pair is dead, the transport is aborted at the end and serves no more.
/// Where exchanges take turns, pairs that come after a dead one are not tried, and not in the result.
std::vector<PairTimes> measure_pairs(const Processes& processes, Transport& transport,
                                     const std::vector<i32>& rank_of, const PreflightOptions& options);

/// Sets the state of each pair.
void judge(std::vector<PairTimes>& pairs, const PreflightOptions& options);

bool any_dead(const std::vector<PairTimes>& pairs);

/// One line per pair: latency, times, bandwidth, state. names: [num_devices].
std::string pair_table(const std::vector<PairTimes>& pairs, const std::vector<std::string>& names,
                       const PreflightOptions& options);
/// "a - b is dead: ..." for each pair that is not good, and how many were not tried.
std::vector<std::string> pair_complaints(const std::vector<PairTimes>& pairs,
                                         const std::vector<std::string>& names,
                                         const PreflightOptions& options);

/// Makes the transport between processes, device r on rank r. Collective; may wait for others.
using MakePairTransport = std::function<std::unique_ptr<Transport>(const std::vector<i32>& rank_of)>;
/// By find_transport(); `device` is this process's.
MakePairTransport pair_transport(const Processes& processes, c10::Device device,
                                 const std::string& name = "auto");

struct MeasuredPairs {
  std::vector<PairTimes> pairs;
  std::vector<std::string> names;  ///< of devices or processes: "process 2 on n7"
};
/// Pairs of processes, each one device. Collective. Throws TransportError when the other processes do not
/// answer, or the transport is not there within options.start_limit.
MeasuredPairs measure_processes(const Processes& processes, const MakePairTransport& make_transport,
                                const PreflightOptions& options);

/// A preflight between the processes of a run. Throws TransportError when a pair is dead; returns the
/// complaints about slow ones.
std::vector<std::string> check_processes(const Processes& processes, const MakePairTransport& make_transport,
                                         const PreflightOptions& options = {});

}  // namespace hetermoe
