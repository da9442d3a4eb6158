#pragma once
#include <filesystem>
#include <string>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// The lack of room on the disk of a folder, which need not exist, for so many bytes more: "has room for 1.20
/// GiB, expected 3.60 GiB". Empty when there is room, or when the system does not report it.
std::string lack_of_room(const std::filesystem::path& folder, Bytes needed);

}  // namespace hetermoe
