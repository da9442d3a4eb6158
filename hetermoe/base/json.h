#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace hetermoe {

/// Keeps the order of keys as written, so that files we write read naturally and diffs stay small.
using Json = nlohmann::ordered_json;

/// Whole text of a file. Throws IoError that names the path and the reason.
std::string read_text(const std::filesystem::path& path);

/// Writes through a temporary file in the same folder and renames it: readers see the old or the new file,
/// never half. Creates missing parent folders. Throws IoError.
void write_text(const std::filesystem::path& path, const std::string& text);

/// Parses JSON; errors name `where`, line and column.
Json parse_json(const std::string& text, const std::string& where);
Json read_json(const std::filesystem::path& path);

/// Reads YAML as a JSON value: plain scalars become null, bool, integer, float or string as YAML 1.2 says,
/// quoted ones stay strings. A duplicate key is an error.
Json parse_yaml(const std::string& text, const std::string& where);
Json read_yaml(const std::filesystem::path& path);

/// "string", "integer", ... and a short rendering, for error texts: `string "abc"`.
std::string describe(const Json& value);

}  // namespace hetermoe
