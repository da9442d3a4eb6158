#include "hetermoe/train/checkpoint/output_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <mutex>
#include <system_error>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"
#include "hetermoe/comm/processes.h"
#include "hetermoe/train/checkpoint/shared_folder.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// The line that an owner has written; null when there is none.
Json owner_in(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("host") && json.contains("process") ? json : Json();
}

std::string text_of(const Json& owner) {
  if (owner.is_null()) return "another process";
  return fmt::format("process {} on {}", owner["process"].dump(), owner["host"].dump());
}

bool leads_to(const fs::path& path, int file) {
  struct stat there {
  }, open{};
  return ::fstat(file, &open) == 0 && ::stat(path.c_str(), &there) == 0 && open.st_ino == there.st_ino &&
         open.st_dev == there.st_dev;
}

/// Results that a run would replace, in a folder without a file that the program leaves beside them.
void check_results(const fs::path& folder, const std::string& key) {
  std::error_code code;
  const auto has = [&](const char* name) { return fs::exists(folder / name, code); };
  for (const char* own : {"job.json", "plan.json", "timeline.json", "checkpoints", ".lock"})
    if (has(own)) return;
  for (const char* result : {"report.html", "loss.svg", "summary.json", "metrics.jsonl"})
    if (has(result))
      fail<ConfigError>(
          key,
          "folder {} holds a {} that no run left there (no job.json is beside it): expected another "
          "folder, because a run replaces that file",
          folder.string(), result);
}

fs::path lock_file(const fs::path& folder, bool beside) {
  if (!beside) return folder / ".lock";
  return fs::absolute(folder).parent_path() / fmt::format(".{}.lock", folder.filename().string());
}

}  // namespace

bool holds_training(const fs::path& folder) {
  std::error_code code;
  return fs::exists(folder / "metrics.jsonl", code) || fs::exists(folder / "checkpoints", code);
}

OutputLock::OutputLock(const fs::path& locked, OutputLockOptions options)
    : folder_(locked), path_(lock_file(locked, options.beside)), options_(std::move(options)) {
  if (options_.host.empty()) options_.host = host_name();
  const fs::path folder = path_.parent_path();
  check_output_folder(folder);
  if (!options_.beside) check_results(folder, options_.key);
  std::error_code code;
  for (fs::path missing = folder; !missing.empty() && !fs::exists(missing, code);
       missing = missing.parent_path())
    made_.push_back(missing);
  fs::create_directories(folder, code);
  if (code) fail<IoError>(folder.string(), "cannot create folder: {}", code.message());
  while (!take()) {
  }
  const Json owner = owner_in(path_);
  if (!owner.is_null()) {
    if (owner["host"] != options_.host) wait_for_silence(text_of(owner));
    note_ = fmt::format("{} was left locked by {}, which is gone", folder_.string(), text_of(owner));
  }
  const std::string line = Json{{"host", options_.host}, {"process", ::getpid()}}.dump() + "\n";
  if (::ftruncate(file_, 0) != 0 ||
      ::write(file_, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    fail<IoError>(path_.string(), "cannot write: {}", std::strerror(errno));
  if (!options_.beside) folder_file_ = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  try {
    beat_ = std::jthread([file = file_, pause = options_.beat](const std::stop_token& stop) {
      std::mutex mutex;
      std::condition_variable_any ended;
      std::unique_lock lock(mutex);
      while (!ended.wait_for(lock, stop, std::chrono::duration<double>(pause),
                             [&] { return stop.stop_requested(); })) {
        if (::write(file, ".", 1) != 1) return;  // who looks from another machine sees no life then
      }
    });
  } catch (const std::system_error&) {
    // Without a thread to spare only the lock itself protects the folder.
  }
}

OutputLock::~OutputLock() {
  if (beat_.joinable()) {
    beat_.request_stop();
    beat_.join();
  }
  std::error_code code;
  // While it is locked: nobody else holds this file. In a folder that took this one's place lies another.
  if (leads_to(path_, file_)) fs::remove(path_, code);
  ::close(file_);
  if (folder_file_ >= 0) ::close(folder_file_);
  for (const fs::path& folder : made_) fs::remove(folder, code);  // unless something was written there
}

std::string OutputLock::lost() const {
  struct stat there {};
  if (folder_file_ < 0 || leads_to(folder_, folder_file_) || leads_to(path_, file_)) return "";
  if (::stat(folder_.c_str(), &there) != 0 && errno != ENOENT && errno != ENOTDIR) return "";  // no answer
  std::error_code code;
  const std::string place = fs::read_symlink(fmt::format("/proc/self/fd/{}", folder_file_), code).string();
  if (code || place.ends_with(" (deleted)"))
    return fmt::format(
        "{} was removed during the run: metrics.jsonl and earlier checkpoints are lost. What the run has "
        "written since is in a new folder of this name",
        folder_.string());
  return fmt::format(
      "{} was moved to {} during the run: metrics.jsonl and earlier checkpoints are there. What else the run "
      "has written since is in a new folder {}",
      folder_.string(), place, folder_.string());
}

void OutputLock::refuse(const std::string& owner) const {
  fail<ConfigError>(options_.key, "{} is in use by {}. Wait for it to end, or give another --{}",
                    folder_.string(), owner, options_.key);
}

void OutputLock::open_file() {
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail<IoError>(path_.string(), "cannot write: {}", std::strerror(errno));
}

/// False when the file went away between opening and locking it: the owner has just ended.
bool OutputLock::take() {
  open_file();
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      const Json owner = owner_in(path_);
      ::close(file_);
      refuse(text_of(owner));
    }
    note_ = fmt::format("the file system of {} has no locks ({}): see that no other run writes there",
                        folder_.string(), std::strerror(errno));
  }
  const bool same = leads_to(path_, file_);
  if (!same) ::close(file_);
  return same;
}

/// Not every file system tells machines of each other's locks; a living owner's file grows.
void OutputLock::wait_for_silence(const std::string& owner) const {
  const auto size = [&] {
    std::error_code code;
    return fs::file_size(path_, code);
  };
  const auto before = size();
  const bool grows = wait_until([&] { return size() != before; }, options_.watch);
  if (!grows) return;
  ::close(file_);
  refuse(owner);
}

}  // namespace hetermoe
