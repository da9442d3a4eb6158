#include "hetermoe/weights/disk_room.h"

#include <fmt/format.h>

#include "hetermoe/base/file_system.h"
#include "hetermoe/report/table.h"

namespace hetermoe {

std::string lack_of_room(const std::filesystem::path& folder, Bytes needed) {
  const std::optional<Bytes> free = free_space(folder);
  if (!free || *free >= needed) return "";
  return fmt::format("has room for {}, expected {}", format_bytes(*free), format_bytes(needed));
}

}  // namespace hetermoe
