#pragma once
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace hetermoe::fuzz {

/// A folder in memory for the files of an input. It stays until the process ends, and so does the name.
inline const std::filesystem::path& scratch_folder() {
  struct Folder {
    std::filesystem::path path =
        std::filesystem::path(std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp") /
        ("hetermoe-fuzz-" + std::to_string(getpid()));
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Folder folder;
  return folder.path;
}

/// Writes without the detours of write_text, which syncs and renames.
inline void put_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

}  // namespace hetermoe::fuzz
