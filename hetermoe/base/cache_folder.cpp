#include "hetermoe/base/cache_folder.h"

#include <cstdlib>

namespace hetermoe {

std::filesystem::path cache_folder(const std::string& kind) {
  const auto value = [](const char* name) {
    const char* found = std::getenv(name);
    return std::filesystem::path(found == nullptr ? "" : found);
  };
  if (const std::filesystem::path all = value("XDG_CACHE_HOME"); !all.empty()) return all / "hetermoe" / kind;
  const std::filesystem::path home = value("HOME");
  return home.empty() ? home : home / ".cache/hetermoe" / kind;
}

}  // namespace hetermoe
