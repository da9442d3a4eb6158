#include "hetermoe/train/checkpoint/shared_folder.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// Writes a file with a name of its own; why that failed, empty = it is there.
std::string leave_sign(const fs::path& path) {
  std::error_code code;
  fs::create_directories(path.parent_path(), code);
  if (code) return fmt::format("[{}] cannot create folder: {}", path.parent_path().string(), code.message());
  try {
    write_text(path, "seen by all?\n");
  } catch (const IoError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

bool wait_until(const std::function<bool()>& done, Seconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit));
  for (auto pause = std::chrono::milliseconds(2); !done();
       pause = std::min(2 * pause, std::chrono::milliseconds(200))) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

void check_shared_folder(const Processes& processes, const fs::path& folder, Seconds limit) {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::string name = processes.gather(fmt::format(".shared-{:x}", static_cast<u64>(now))).front();
  const std::string error = processes.gather(processes.rank() == 0 ? leave_sign(folder / name) : "").front();
  if (!error.empty()) throw IoError(error);
  const bool seen = wait_until([&] { return fs::exists(folder / name); }, limit);
  const Json mine = {{"seen", seen}, {"host", host_name()}};
  const std::vector<std::string> all = processes.gather(mine.dump());
  std::error_code code;
  if (processes.rank() == 0) fs::remove(folder / name, code);
  for (std::size_t r = 0; r < all.size(); ++r) {
    const Json one = Json::parse(all[r]);
    if (one.at("seen").get<bool>()) continue;
    fail<ConfigError>(
        "output",
        "rank {} on {} does not see in {} what rank 0 on {} has written there: all ranks write their parts "
        "of "
        "a checkpoint into one folder. Give a folder that the hosts share, or --checkpoint.every 0",
        r, one.at("host").get<std::string>(), folder.string(),
        Json::parse(all[0]).at("host").get<std::string>());
  }
}

}  // namespace hetermoe
