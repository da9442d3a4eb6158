#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iostream>
#include <optional>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// Where a path leads to.
struct Target {
  fs::path path;          ///< behind all links; need not exist
  std::optional<int> fd;  ///< an open file of this process: /dev/stdout, /dev/fd/3
  bool in_place = false;  ///< a device, a pipe or a socket: nothing may take its place
};

/// The number of an open file of this process that a path in /proc names.
std::optional<int> open_file(const fs::path& path) {
  std::error_code code;
  if (fs::weakly_canonical(path.parent_path(), code) != fs::weakly_canonical("/proc/self/fd", code))
    return {};
  const std::string name = path.filename();
  int fd = -1;
  const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), fd);
  const bool is_number = error == std::errc() && rest == name.data() + name.size() && fd >= 0;
  return is_number ? std::optional<int>(fd) : std::nullopt;
}

[[noreturn]] void refuse(const fs::path& path, const std::string& why) {
  fail<IoError>(path.string(), "cannot be written: {}. Give a place where this process may write", why);
}

/// Throws IoError for a folder, for links in a circle and for names that no file can have.
Target target_of(const fs::path& path) {
  constexpr int kMostLinks = 40;  // as the kernel allows
  Target target{.path = path, .fd = open_file(path)};
  std::error_code code;
  for (int links = 0; !target.fd && fs::is_symlink(fs::symlink_status(target.path, code)); ++links) {
    if (links == kMostLinks) refuse(path, std::strerror(ELOOP));
    target.path = target.path.parent_path() / fs::read_symlink(target.path, code);
    target.fd = open_file(target.path);
  }
  if (target.fd) return target;
  const fs::file_status status = fs::status(target.path, code);
  if (status.type() == fs::file_type::directory)
    fail<IoError>(path.string(), "is a folder, expected the name of a file");
  const bool missing = status.type() == fs::file_type::not_found;
  if (code && !missing) refuse(path, code.message());
  target.in_place = !missing && status.type() != fs::file_type::regular;
  return target;
}

void check_access(const fs::path& path, const fs::path& place, int how) {
  if (::access(place.empty() ? "." : place.c_str(), how) != 0)
    refuse(path, fmt::format("{}: {}", place.empty() ? "." : place.string(), std::strerror(errno)));
}

/// The folder, or the one in which it would be made, must take new files.
void check_folder(const fs::path& path, fs::path folder) {
  std::error_code code;
  while (!folder.empty() && fs::status(folder, code).type() == fs::file_type::not_found)
    folder = folder.parent_path();
  const fs::file_status status = fs::status(folder.empty() ? fs::path(".") : folder, code);
  if (code) refuse(path, code.message());
  if (status.type() != fs::file_type::directory)
    refuse(path, fmt::format("{} is no folder", folder.string()));
  check_access(path, folder, W_OK | X_OK);
}

[[noreturn]] void stopped(const fs::path& path, int error) {
  fail<WriteError>(path.string(), "writing stopped: {}", std::strerror(error));
}

void write_all(int file, const std::string& text, const fs::path& path) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) stopped(path, errno);
    done += static_cast<std::size_t>(count);
  }
}

void write_in_place(const Target& target, const std::string& text, const fs::path& path) {
  if (target.fd) {
    std::cout << std::flush;  // what was said before stays before
    return write_all(*target.fd, text, path);
  }
  const int file = ::open(target.path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) refuse(path, std::strerror(errno));
  try {
    write_all(file, text, path);
  } catch (...) {
    ::close(file);
    throw;
  }
  if (::close(file) != 0) stopped(path, errno);
}

}  // namespace

void check_output_file(const fs::path& path) {
  const Target target = target_of(path);
  if (target.fd) return;
  std::error_code code;
  if (fs::exists(target.path, code)) check_access(path, target.path, W_OK);
  if (!target.in_place) check_folder(path, target.path.parent_path());
}

void check_output_folder(const fs::path& path) { check_folder(path, path); }

void write_text(const fs::path& path, const std::string& text) {
  const Target target = target_of(path);
  if (target.fd || target.in_place) return write_in_place(target, text, path);
  std::error_code code;
  if (target.path.has_parent_path()) fs::create_directories(target.path.parent_path(), code);
  if (code)
    fail<IoError>(path.string(), "cannot create folder {}: {}", target.path.parent_path().string(),
                  code.message());
  const fs::path temporary = target.path.string() + ".tmp";
  errno = 0;
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  if (!out) fail<IoError>(path.string(), "cannot write file: {}", std::strerror(errno));
  out << text;
  out.close();
  if (!out) {
    const int error = errno;
    fs::remove(temporary, code);
    stopped(path, error);
  }
  fs::rename(temporary, target.path, code);
  if (code) fail<IoError>(path.string(), "cannot rename the finished file into place: {}", code.message());
}

}  // namespace hetermoe
