#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// Deals things of these sizes to `count` pieces of nearly equal sums: the largest first, each to the piece
/// that has least, of equals to the first. The largest piece is at most 4/3 - 1/(3 count) of the least
/// possible. Returns [piece] indices into `sizes`, in the order in which they were dealt.
inline std::vector<std::vector<std::size_t>> deal_pieces(const std::vector<Bytes>& sizes, std::size_t count) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  std::vector<std::vector<std::size_t>> pieces(count);
  std::vector<Bytes> sums(count, 0);
  for (const std::size_t i : order) {
    const auto least = std::min_element(sums.begin(), sums.end());
    *least += sizes[i];
    pieces[static_cast<std::size_t>(least - sums.begin())].push_back(i);
  }
  return pieces;
}

}  // namespace hetermoe
