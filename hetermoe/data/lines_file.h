#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "hetermoe/data/mapped_file.h"

namespace hetermoe {

/// Whether a file is read by way of gzip, by its name: lines.jsonl.gz.
bool is_gzip(const std::filesystem::path& path);

/// The text of a file: mapped, or of a gzip file unpacked into memory, all of its members.
class LinesFile {
 public:
  /// Throws IoError for a file that cannot be read, InputError for a gzip file that is damaged or cut.
  explicit LinesFile(const std::filesystem::path& path);
  std::string_view bytes() const { return mapped_ ? mapped_->bytes() : std::string_view(unpacked_); }

 private:
  std::optional<MappedFile> mapped_;
  std::string unpacked_;
};

}  // namespace hetermoe
