#pragma once
#include <cstdlib>
#include <string_view>

namespace hetermoe::testing {

/// Whether `./dev check-all` runs this test: then every case is taken.
inline bool every_case() {
  const char* const value = std::getenv("HETERMOE_TEST_EVERY_CASE");
  return value != nullptr && std::string_view(value) == "1";
}

/// How many cases of a pool a test takes: `few` in `./dev test` and `./dev check`, `all` in `./dev
/// check-all`.
template <typename Count>
Count case_count(Count few, Count all) {
  return every_case() ? all : few;
}

}  // namespace hetermoe::testing
