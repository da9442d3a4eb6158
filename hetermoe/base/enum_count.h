#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace hetermoe {
namespace detail {

/// gcc and clang write an enumerator as its name, and any other value of an enum as a cast: "(Phase)3".
template <auto kValue>
constexpr bool is_enumerator() {
  const std::string_view function = __PRETTY_FUNCTION__;
  return function[function.rfind("kValue = ") + 9] != '(';
}

template <class E, int kNext>
constexpr int count_from() {
  if constexpr (is_enumerator<static_cast<E>(kNext)>()) {
    return count_from<E, kNext + 1>();
  } else {
    return kNext;
  }
}

}  // namespace detail

/// Number of values of an enum whose values are 0, 1, 2... It needs no last value in the enum that stands for
/// nothing and that every switch would have to name.
template <class E>
inline constexpr int kEnumCount = detail::count_from<E, 0>();

/// The names of all values of E, for EnumNames. A name that is missing does not compile.
template <class E, std::size_t kNumNames>
std::vector<std::string> names_of_all(const char* const (&names)[kNumNames]) {
  static_assert(kNumNames == kEnumCount<E>, "the enum and its names differ in number");
  return {names, names + kNumNames};
}

}  // namespace hetermoe
