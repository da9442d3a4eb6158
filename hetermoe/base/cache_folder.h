#pragma once
#include <filesystem>
#include <string>

namespace hetermoe {

/// Where this program keeps what it can make again: hetermoe/<kind> in XDG_CACHE_HOME, else in ~/.cache.
/// Empty where neither is known. Not created.
std::filesystem::path cache_folder(const std::string& kind);

}  // namespace hetermoe
