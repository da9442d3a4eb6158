#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/types.h"
#include "hetermoe/weights/hf_writer.h"

// Faults of the disk, planted in calls of the C library that this program makes (disk_fault_test.cpp).
namespace hetermoe::testing {

struct DiskFaults {
  /// Writes to files fail after so many bytes, as on a full disk.
  std::optional<i64> room;
  /// What the file system says that it has free, and how often until it says 0.
  std::optional<Bytes> free;
  i64 free_calls = -1;  ///< -1: forever
  /// This process is killed before the call that changes a name or removes one, after so many of them.
  std::optional<i64> calls_until_kill;
  /// And before a file or folder gets this name.
  std::function<bool(const std::string& from, const std::string& to)> kills_rename;
  bool no_exchange = false;  ///< the file system cannot exchange names
};
/// Set by the test while nothing is written.
DiskFaults& disk_faults();

/// No fault any more when it goes.
struct DiskFaultsEnd {
  DiskFaultsEnd() = default;
  DiskFaultsEnd(const DiskFaultsEnd&) = delete;
  DiskFaultsEnd& operator=(const DiskFaultsEnd&) = delete;
  ~DiskFaultsEnd() { disk_faults() = {}; }
};

/// Whether a process that does this work meets the planted kill; it starts with what this one has.
template <class F>
bool is_killed(F&& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/// Names of all files and folders of a folder, hidden ones as well, sorted.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// A folder of weights with one tensor of 16 bytes.
inline void write_folder(const std::filesystem::path& target, double value) {
  write_hf_folder(target, {kept_tensor("w", at::full({4}, value))}, {.config = {{"model_type", "mixtral"}}});
}

}  // namespace hetermoe::testing
