#include "hetermoe/train/session/presence.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"
#include "hetermoe/base/numbers.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

fs::path ranks_folder(const fs::path& output) { return output / "ranks"; }

std::string rank_file(i32 rank) { return fmt::format("rank-{:05}", rank); }

/// The files of ranks; whatever else lies there is not ours.
std::vector<fs::path> rank_files(const fs::path& output) {
  std::vector<fs::path> files;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(ranks_folder(output), code)) {
    const std::string name = entry.path().filename().string();
    const std::optional<i64> rank = whole_number(name.substr(std::min(name.size(), std::size_t{5})));
    if (rank && name == rank_file(static_cast<i32>(*rank))) files.push_back(entry.path());
  }
  return files;
}

std::atomic<int> own_file = -1;  // of the living Presence

/// The first end counts.
void tell(const char* end, std::size_t size) {
  const int file = own_file.exchange(-1);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(file, end, size);
  ::close(file);
}

}  // namespace

Presence::Presence(const fs::path& output, i32 rank, const std::vector<DeviceId>& devices) {
  const fs::path path = ranks_folder(output) / rank_file(rank);
  std::error_code code;
  fs::create_directories(path.parent_path(), code);
  const std::string line = Json{{"rank", rank}, {"devices", devices}}.dump() + "\n";
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0 || ::write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    fail<IoError>(path.string(), "cannot write: {}", std::strerror(errno));
  own_file = file;
}

Presence::~Presence() { tell("done\n", 5); }

void Presence::tell_stopped() { tell("told to stop\n", 13); }
void Presence::tell_failed() { tell("failed\n", 7); }

std::vector<RankEnd> read_rank_ends(const fs::path& output) {
  std::vector<RankEnd> ends;
  for (const fs::path& path : rank_files(output)) {
    std::ifstream in(path);
    std::string line, end;
    std::getline(in, line);
    std::getline(in, end);
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) continue;  // ended before it had said who it is
    ends.push_back({json.at("rank"), json.at("devices"), end.empty()});
  }
  std::sort(ends.begin(), ends.end(), [](const RankEnd& a, const RankEnd& b) { return a.rank < b.rank; });
  return ends;
}

void forget_ranks(const fs::path& output) {
  std::error_code code;
  for (const fs::path& path : rank_files(output)) fs::remove(path, code);
}

}  // namespace hetermoe
