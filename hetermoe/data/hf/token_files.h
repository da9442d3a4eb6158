#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "hetermoe/base/json.h"

// The files beside a tokenizer.json that name special tokens.
namespace hetermoe::hf {

/// The object of a file; empty where the file is not there or holds something else. Throws ConfigError for a
/// file that is no JSON.
Json object_in(const std::filesystem::path& path);

/// A special token as these files have it: a text, or an object with it.
std::optional<std::string> token_text(const Json& token);

}  // namespace hetermoe::hf
