#pragma once
#include <array>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/base/types.h"

// Which process of a run vanished? Each rank keeps a file OUTPUT/ranks/rank-00002 that says what devices it
// has and, as its last line, how it ended: done, failed, or told to stop (as a launcher tells the ranks that
// are left). A rank that is killed or whose machine is gone writes no such line.
namespace hetermoe {

/// By these a run is asked to end after its current step: Ctrl-C, a launcher or the system, a terminal that
/// is closed, a queue whose time is up.
inline constexpr std::array<int, 4> kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

/// The file of this process. At most one lives at a time: the signal handler of stop_on_interrupt() writes to
/// it.
class Presence {
 public:
  /// Throws IoError.
  Presence(const std::filesystem::path& output, i32 rank, const std::vector<DeviceId>& devices);
  ~Presence();  ///< done, unless another end was told before
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

  /// Safe in a signal handler.
  static void tell_stopped();
  static void tell_failed();
};

/// The last record of a rank of a run.
struct RankEnd {
  i32 rank = 0;
  std::vector<DeviceId> devices;
  bool vanished = false;  ///< ended without a word
};
/// In rank order; empty when the run has one process or never began.
std::vector<RankEnd> read_rank_ends(const std::filesystem::path& output);
/// To be called before a run starts: the files of an earlier one must not speak for it.
void forget_ranks(const std::filesystem::path& output);

}  // namespace hetermoe
