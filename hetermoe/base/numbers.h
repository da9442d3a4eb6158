#pragma once
#include <optional>
#include <string_view>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// A text that is a whole number and nothing else; "+1", " 1", "1x" and what is beyond 64 bits are none.
std::optional<i64> whole_number(std::string_view text);

}  // namespace hetermoe
