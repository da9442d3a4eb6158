#pragma once
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
};

/// Exchanges messages between all pairs; disjoint pairs at the same time. Collective: every process runs the
/// devices that rank_of gives it. The transport is aborted at the end and serves no more.
std::vector<PairTimes> measure_pairs(const Processes& processes, Transport& transport,
                                     const std::vector<i32>& rank_of, const PreflightOptions& options);

/// Sets the state of each pair.
void judge(std::vector<PairTimes>& pairs, const PreflightOptions& options);

bool any_dead(const std::vector<PairTimes>& pairs);

/// One line per pair: latency, times, bandwidth, state. names: [num_devices].
std::string pair_table(const std::vector<PairTimes>& pairs, const std::vector<std::string>& names,
                       const PreflightOptions& options);
/// "a - b is dead: ..." for each pair that is not good.
std::vector<std::string> pair_complaints(const std::vector<PairTimes>& pairs,
                                         const std::vector<std::string>& names,
                                         const PreflightOptions& options);

/// A preflight between the processes of a run, each one device. Throws TransportError when a pair is dead;
/// returns the complaints about slow ones.
std::vector<std::string> check_processes(const Processes& processes, const PreflightOptions& options = {});
/// "process 2 on host n7", in rank order. Collective.
std::vector<std::string> process_names(const Processes& processes);

}  // namespace hetermoe
