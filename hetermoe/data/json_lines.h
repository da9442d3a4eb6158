#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "hetermoe/base/json.h"

namespace hetermoe {

/// Hands every line to `take` as an object, with its place for errors, until that returns false. Returns the
/// bytes before the line that was not taken. Lines of blanks are passed over. Throws InputError with `where`
/// and the line's number for a line that is no JSON object.
i64 for_each_json_line(std::string_view bytes, const std::string& where,
                       const std::function<bool(const Json& line, const std::string& place)>& take);

/// The same with the text under `field` of every line. Throws InputError for a line that has no such field,
/// or another value there than a text.
i64 for_each_json_text(std::string_view bytes, const std::string& field, const std::string& where,
                       const std::function<bool(const std::string&)>& take);

/// "the keys a, b", "no keys".
std::string keys_of(const Json& object);

}  // namespace hetermoe
