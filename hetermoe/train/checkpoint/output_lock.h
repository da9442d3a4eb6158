#pragma once
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// Whether `train` left its results in the folder. Commands that only predict or compare must not replace
/// them: a training takes hours, and `verify --step` compares with what it left.
bool holds_training(const std::filesystem::path& folder);

struct OutputLockOptions {
  Seconds beat = 2;            ///< a living owner says so often that it lives
  Seconds watch = 10;          ///< an owner on another machine that does not say so for so long is gone
  std::string host;            ///< name of this machine; empty = the system's
  std::string key = "output";  ///< which key of the job names the folder
  bool beside = false;         ///< the lock lies beside the folder, which is replaced as a whole
};

/// Keeps other runs out of a folder while it lives: the file FOLDER/.lock, or .FOLDER.lock beside it, is
/// locked (flock) and says which process of which host owns it. The lock of a killed run is recognised. On
/// this machine the system releases the lock of a dead process. If the owner is on another machine and the
/// file system does not report its lock, a file that does not grow any more shows it. One process of a run
/// holds it, rank 0.
class OutputLock {
 public:
  /// Throws ConfigError that names the owner when another process has the folder, IoError when the folder
  /// cannot be written.
  explicit OutputLock(const std::filesystem::path& folder, OutputLockOptions options = {});
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

  /// A note for the user: whose lock was taken over, or that this file system has no locks. Empty = none.
  const std::string& note() const { return note_; }
  /// Where the files of a run lie whose folder was moved or removed since it was locked. Empty = it is there.
  /// Not for a lock beside the folder.
  std::string lost() const;

 private:
  void open_file();
  bool take();
  [[noreturn]] void refuse(const std::string& owner) const;
  void wait_for_silence(const std::string& owner) const;

  std::vector<std::filesystem::path> made_;  ///< folders, the deepest first
  std::filesystem::path folder_, path_;
  OutputLockOptions options_;
  int file_ = -1, folder_file_ = -1;
  std::string note_;
  std::jthread beat_;
};

}  // namespace hetermoe
