#pragma once
#include <concepts>
#include <string>
#include <string_view>
#include <vector>

#include "hetermoe/base/types.h"

// Numbers in sentences, and lists that people write.
namespace hetermoe {

/// "device" -> "devices", "process" -> "processes", "entry" -> "entries".
std::string plural_of(std::string_view noun);

/// "1 device", "0 devices", "-2 devices".
std::string counted(i64 count, std::string_view noun);
template <std::integral T>
std::string counted(T count, std::string_view noun) {
  return counted(static_cast<i64>(count), noun);
}

/// The form of a verb (or of anything else) that goes with a number: agree(n, "stays", "stay").
template <std::integral T>
std::string_view agree(T count, std::string_view singular, std::string_view plural) {
  return count == 1 ? singular : plural;
}

/// "a,b" -> "a", "b". Text after a last comma counts only if it is not empty.
std::vector<std::string> cut_at_commas(std::string_view text);

}  // namespace hetermoe
