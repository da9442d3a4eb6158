#include "hetermoe/base/numbers.h"

#include <charconv>

namespace hetermoe {

std::optional<i64> whole_number(std::string_view text) {
  i64 number = 0;
  const auto [rest, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || rest != text.data() + text.size()) return {};
  return number;
}

}  // namespace hetermoe
