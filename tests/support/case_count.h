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

/// Takes every n-th case of loops in loops; all of them in `./dev check-all`. An n that does not divide the
/// length of the inner loops meets each of their values.
class Turns {
 public:
  explicit Turns(int n) : n_(n) {}
  bool takes() { return at_++ % n_ == 0 || every_case(); }

 private:
  int n_, at_ = 0;
};

}  // namespace hetermoe::testing
