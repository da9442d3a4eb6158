#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"

// Writing files: whole or not at all, and only where that can work.
namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// Where the bytes go: what a link points to, even when it is not there yet.
fs::path target_of(const fs::path& path) {
  std::error_code code;
  fs::path target = path;
  for (int links = 0; links < 40 && fs::is_symlink(target, code); ++links) {
    const fs::path next = fs::read_symlink(target, code);
    if (code) break;
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  return target;
}

/// A device or a pipe: nothing is ever renamed over it.
bool is_special(const fs::path& path) {
  std::error_code code;
  const fs::file_type type = fs::status(path, code).type();
  return type == fs::file_type::character || type == fs::file_type::block || type == fs::file_type::fifo ||
         type == fs::file_type::socket;
}

void write_all(int file, const std::string& text, const fs::path& path) {
  const char* at = text.data();
  for (std::size_t left = text.size(); left > 0;) {
    const ssize_t done = ::write(file, at, left);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail<WriteError>(path.string(), "writing stopped: {}", std::strerror(errno));
    at += done;
    left -= static_cast<std::size_t>(done);
  }
}

/// Opens `name` and writes; errors name `path`, which is what the user knows.
void write_file(const fs::path& name, int flags, const std::string& text, const fs::path& path) {
  const int file = ::open(name.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  if (file < 0) fail<IoError>(path.string(), "cannot write file: {}", std::strerror(errno));
  try {
    write_all(file, text, path);
  } catch (...) {
    ::close(file);
    throw;
  }
  // Some file systems tell only here that they are full.
  if (::close(file) != 0) fail<WriteError>(path.string(), "writing stopped: {}", std::strerror(errno));
}

}  // namespace

void write_text(const fs::path& path, const std::string& text) {
  if (is_special(path)) {
    write_file(path, 0, text, path);
    return;
  }
  std::error_code code;
  const fs::path target = target_of(path);
  if (target.has_parent_path()) fs::create_directories(target.parent_path(), code);
  if (code)
    fail<IoError>(path.string(), "cannot create folder {}: {}", target.parent_path().string(),
                  code.message());
  const fs::path temporary = target.string() + ".tmp";
  try {
    write_file(temporary, O_CREAT | O_TRUNC, text, path);
  } catch (const WriteError&) {
    fs::remove(temporary, code);
    throw;
  }
  fs::rename(temporary, target, code);
  if (!code) return;
  const std::string reason = code.message();
  fs::remove(temporary, code);
  fail<IoError>(path.string(), "cannot rename the finished file into place: {}", reason);
}

void check_writable(const fs::path& path) {
  if (path.empty()) fail<IoError>("output", "the name of the file is empty, expected a path");
  std::error_code code;
  if (fs::is_directory(path, code)) fail<IoError>(path.string(), "is a folder, expected a file to write");
  if (code == std::errc::filename_too_long)
    fail<IoError>(path.string(), "cannot write file: {}", code.message());
  if (is_special(path)) {
    if (::access(path.c_str(), W_OK) != 0)
      fail<IoError>(path.string(), "cannot write file: {}", std::strerror(errno));
    return;
  }
  // The folder, or the first one above it that exists, must take new files.
  fs::path folder = target_of(path).parent_path();
  if (folder.empty()) folder = ".";
  while (!fs::exists(fs::symlink_status(folder, code)) && folder.has_parent_path() &&
         folder.parent_path() != folder)
    folder = folder.parent_path();
  if (!fs::exists(fs::symlink_status(folder, code))) folder = ".";
  if (!fs::is_directory(folder, code))
    fail<IoError>(path.string(), "cannot write file: {} is no folder", folder.string());
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    fail<IoError>(path.string(), "cannot write into folder {}: {}", folder.string(), std::strerror(errno));
  }
}

}  // namespace hetermoe
