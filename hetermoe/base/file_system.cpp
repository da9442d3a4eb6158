#include "hetermoe/base/file_system.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/statvfs.h>

namespace hetermoe {

namespace fs = std::filesystem;

bool swap_paths(const fs::path& a, const fs::path& b) {
#ifdef RENAME_EXCHANGE
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
#else
  return false;
#endif
}

fs::path take_name(const fs::path& fresh, const fs::path& target, const fs::path& aside) {
  if (swap_paths(fresh, target)) return fresh;
  const bool taken = fs::exists(target);
  fs::remove_all(aside);
  if (taken) fs::rename(target, aside);
  std::error_code code;
  fs::rename(fresh, target, code);
  if (!code) return aside;
  if (taken) fs::rename(aside, target);
  throw fs::filesystem_error("cannot rename", fresh, target, code);
}

std::optional<Bytes> free_space(const fs::path& folder) {
  std::error_code code;
  fs::path there = fs::absolute(folder, code);
  while (!fs::exists(there, code) && there.has_relative_path()) there = there.parent_path();
  struct statvfs info {};
  if (::statvfs(there.c_str(), &info) != 0 || info.f_blocks == 0) return {};
  return static_cast<Bytes>(info.f_bavail) * static_cast<Bytes>(info.f_frsize);
}

Bytes folder_bytes(const fs::path& folder) {
  Bytes sum = 0;
  std::error_code code;
  for (fs::recursive_directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    std::error_code unseen;
    if (!at->is_regular_file(unseen)) continue;
    const auto size = at->file_size(unseen);
    if (!unseen) sum += static_cast<Bytes>(size);
  }
  return sum;
}

}  // namespace hetermoe
