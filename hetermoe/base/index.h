#pragma once
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>

#include "hetermoe/base/types.h"

// Ids and counts are signed here, containers are indexed by std::size_t. These helpers convert in one place.
namespace hetermoe {

/// An id, a value of an enum or a number that is never negative, as an index of a container.
template <class T>
requires(std::integral<T> || std::is_enum_v<T>) constexpr std::size_t idx(T number) {
  return static_cast<std::size_t>(number);
}

/// A count as a number that can be divided. Exact below 2^53.
constexpr double real(std::integral auto number) { return static_cast<double>(number); }

/// Where `value` stands in an ascending list that holds it.
template <class T>
std::size_t position(std::span<const T> ascending, const T& value) {
  return static_cast<std::size_t>(std::lower_bound(ascending.begin(), ascending.end(), value) -
                                  ascending.begin());
}
inline std::size_t position(std::span<const DeviceId> ascending, DeviceId device) {
  return position<DeviceId>(ascending, device);
}

}  // namespace hetermoe
