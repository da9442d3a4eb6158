#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "hetermoe/base/json.h"

namespace hetermoe {

/// Whether a text begins as an array of objects does.
bool begins_as_json_array(std::string_view text);

/// Hands every object to `take`, with its place for errors, until that returns false. Objects are the
/// elements of an array where the text begins as one, else its lines, of which those of blanks are passed
/// over. Returns the bytes before the object that was not taken. One object at a time is in memory. Throws
/// InputError with `where` and the number of the line or element for one that is no JSON object.
i64 for_each_json_object(std::string_view bytes, const std::string& where,
                         const std::function<bool(const Json& object, const std::string& place)>& take);

/// The same with the text under `field` of every object. Throws InputError for one that has no such field, or
/// another value there than a text.
i64 for_each_json_text(std::string_view bytes, const std::string& field, const std::string& where,
                       const std::function<bool(const std::string&)>& take);

/// "the keys a, b", "no keys".
std::string keys_of(const Json& object);

}  // namespace hetermoe
