#pragma once
#include <optional>
#include <string_view>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// The functions that read and free a value of JSON call themselves for each level: deeper texts must not be
/// parsed.
inline constexpr i64 kMaxJsonDepth = 200;
/// Where a text is nested deeper.
std::optional<std::size_t> json_too_deep(std::string_view text);

}  // namespace hetermoe
