#pragma once
#include <filesystem>
#include <string>

// Files in memory, for readers that take a path.
namespace hetermoe::fuzz {

/// A file without a name, with whatever was written last.
class ScratchFile {
 public:
  ScratchFile();
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  void write(const std::string& bytes);
  /// Valid in this process.
  const std::filesystem::path& path() const { return path_; }

 private:
  int file_;
  std::filesystem::path path_;
};

/// A folder of this process in /dev/shm, or where temporary files are; removed at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace hetermoe::fuzz
