#pragma once
#include <filesystem>
#include <memory>
#include <string_view>

namespace hetermoe {

/// A whole file in memory, read as it is touched.
class MappedFile {
 public:
  /// Throws IoError when the file cannot be read or is no regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::string_view bytes() const { return {static_cast<const char*>(start_), size_}; }

 private:
  void* start_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace hetermoe
