#pragma once
#include "hetermoe/base/json.h"

namespace hetermoe {

/// JSON that finds names in large objects quickly, and forgets their order.
using SortedJson = nlohmann::json;

/// As parse_json; a name that stands twice in one object is an error, too.
SortedJson parse_sorted_json(const std::string& text, const std::string& where);

}  // namespace hetermoe
