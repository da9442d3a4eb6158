#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace hetermoe {

/// Hands the text under `field` of every line to `take`, until that returns false. Lines of blanks are passed
/// over. Throws InputError with `where` and the line's number for a line that is no JSON object, has no such
/// field, or another value there than a text.
void for_each_json_text(std::string_view bytes, const std::string& field, const std::string& where,
                        const std::function<bool(const std::string&)>& take);

}  // namespace hetermoe
