#pragma once
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// CRC-32C (Castagnoli) of bytes.
std::uint32_t crc32c(std::string_view bytes);

/// Scalars by step in a file that TensorBoard reads.
class EventFile {
 public:
  /// Begins FOLDER/events.out.tfevents.1.hetermoe anew. Throws IoError.
  explicit EventFile(const std::filesystem::path& folder);
  /// time_s: since 1970. On disk when it returns, so that a run can be watched. Throws WriteError.
  void add(i64 step, double time_s, const std::vector<std::pair<std::string, double>>& scalars);

 private:
  void write(const std::string& event);
  std::filesystem::path path_;
  std::ofstream out_;
};

}  // namespace hetermoe
