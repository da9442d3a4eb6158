#include "hetermoe/base/paths.h"

#include <algorithm>
#include <cctype>

#include "hetermoe/base/error.h"
#include "hetermoe/base/suggest.h"

namespace hetermoe {
namespace fs = std::filesystem;

fs::path configs_folder() {
  std::error_code code;
  const fs::path program = fs::read_symlink("/proc/self/exe", code).parent_path();
  const std::vector<fs::path> places = {program / "../configs", program / "../share/hetermoe/configs",
                                        fs::path(HM_CONFIGS_DIR)};
  for (const fs::path& place : places) {
    if (fs::is_directory(place / "devices", code)) return fs::weakly_canonical(place);
  }
  fail<IoError>("configs", "no folder of named configurations: looked at {}, {} and {}", places[0].string(),
                places[1].string(), places[2].string());
}

std::vector<std::string> config_names(const std::string& kind, const std::string& extension) {
  std::vector<std::string> names;
  std::error_code code;
  for (const fs::directory_entry& entry : fs::directory_iterator(configs_folder() / kind, code)) {
    if (entry.path().extension() == "." + extension) names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string near_file(const fs::path& path) {
  constexpr std::size_t kMostEntries = 10'000;
  std::vector<std::string> names;
  std::error_code code;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, code)) {
    if (entry.path().stem() == path.filename())
      return (path.parent_path() / entry.path().filename()).string();
    names.push_back(entry.path().filename().string());
    if (names.size() == kMostEntries) break;
  }
  const std::string near = nearest_name(path.filename().string(), names);
  return near.empty() ? "" : (path.parent_path() / near).string();
}

fs::path find_config(const std::string& name_or_path, const std::string& kind, const std::string& extension) {
  std::error_code code;
  const fs::path path = name_or_path;
  // A folder that happens to have a known name is meant only where it holds a model.
  const bool is_folder = fs::is_directory(path, code);
  const bool meant = !is_folder || path.has_parent_path() || fs::exists(path / "config.json", code);
  if (meant && fs::exists(path, code)) return path;
  std::string name = name_or_path;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const fs::path named = configs_folder() / kind / (name + "." + extension);
  if (fs::exists(named, code)) return named;
  if (is_folder) return path;  // who reads it says what is wrong
  if (path.has_parent_path()) {
    const std::string near = near_file(path);
    fail<ConfigError>(name_or_path, "no such file or folder, expected one or a name of configs/{}.{}", kind,
                      near.empty() ? "" : fmt::format(" Did you mean \"{}\"?", near));
  }
  const bool looks_like_path = name_or_path.find('.') != std::string::npos;
  const std::string near = looks_like_path ? near_file(path) : "";
  fail<ConfigError>(name_or_path, "{} in configs/{}: expected an existing file or a known name.{}",
                    looks_like_path ? "no such file, and no such name" : "no such name", kind,
                    near.empty() ? known_names_hint(name_or_path, config_names(kind, extension))
                                 : fmt::format(" Did you mean \"{}\"?", near));
}

}  // namespace hetermoe
