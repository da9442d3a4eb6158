#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// Keeps the order of keys as written, so that files we write read naturally and diffs stay small.
using Json = nlohmann::ordered_json;

/// No honest file is as large. The limits keep a wrong name, such as that of a device or a pipe that never
/// ends, from taking all memory.
inline constexpr i64 kMostText = i64{1} << 30, kMostYaml = i64{1} << 26;  ///< bytes

/// Whole text of a file of at most `limit` bytes, at least 1. Throws IoError that names the path and the
/// reason.
std::string read_text(const std::filesystem::path& path, i64 limit = kMostText);

/// Writes to where the path points. A file is replaced through a temporary one beside it: readers see the old
/// or the new one, never half. Links stay, and behind them is written; a device, a pipe or an open file of
/// this process (/dev/stdout) takes the text as it is. Creates missing parent folders. Throws IoError, and
/// WriteError when the writing itself stops, as on a full disk.
void write_text(const std::filesystem::path& path, const std::string& text);

/// Throws IoError when write_text() to this path could not begin. Creates and changes nothing: to be called
/// before the work whose result is written.
void check_output_file(const std::filesystem::path& path);
/// The same for a folder into which files will be written, which need not exist.
void check_output_folder(const std::filesystem::path& path);

/// Parses JSON; errors name `where`, line and column.
Json parse_json(const std::string& text, const std::string& where);
Json read_json(const std::filesystem::path& path);

/// Reads YAML as a JSON value: plain scalars become null, bool, integer, float or string as YAML 1.2 says,
/// quoted ones stay strings. A duplicate key is an error.
Json parse_yaml(const std::string& text, const std::string& where);
Json read_yaml(const std::filesystem::path& path);

/// Checksum of the value as it is dumped: 16 hexadecimal digits.
std::string checksum_of(const Json& value);

/// "string", "integer", ... and a short rendering, for error texts: `string "abc"`.
std::string describe(const Json& value);

}  // namespace hetermoe
