#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace hetermoe {

/// The folder of named configurations: configs/ beside the build folder, share/hetermoe/configs of an
/// installation, or the source tree this program was built from, whichever exists first. Throws IoError that
/// names all three.
std::filesystem::path configs_folder();

/// Names (file stems, sorted) of configs/<kind>/*.<extension>.
std::vector<std::string> config_names(const std::string& kind, const std::string& extension);

/// The file or folder beside `path`, which does not exist, whose name is nearest, or is the same but for its
/// extension; empty = none is near.
std::string near_file(const std::filesystem::path& path);

/// Resolves a name or a path: an existing path wins, else configs/<kind>/<name, lower case>.<extension>.
/// Throws ConfigError that names the nearest file or lists the known names.
std::filesystem::path find_config(const std::string& name_or_path, const std::string& kind,
                                  const std::string& extension);

}  // namespace hetermoe
