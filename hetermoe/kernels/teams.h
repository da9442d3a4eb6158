#pragma once
#include "hetermoe/kernels/numbers.h"

// Threads that work at one row: a block, or a warp where rows are short. On the host a warp has one thread.
// The order of a sum depends on the size of the team alone, so results repeat to the bit.
namespace hetermoe::kernels {

struct Plus {
  template <class T>
  HM_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct Larger {
  template <class T>
  HM_DEVICE T operator()(T a, T b) const {
    return a > b || a != a ? a : b;  // a NaN wins
  }
};

#ifdef __CUDACC__
constexpr i32 kWarpSize = 32;
HM_DEVICE void meet_warp() { __syncwarp(); }
template <class T, class Combine>
HM_DEVICE T combine_warp(T x, Combine combine) {
  for (int distance = 16; distance > 0; distance /= 2)
    x = combine(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}
template <class T, class Combine>
HM_DEVICE T combine_block(T x, Combine combine) {
  __shared__ T of_warps[32];
  x = combine_warp(x, combine);
  if (num_threads() <= 32) return x;
  meet();  // what an earlier call left has been read
  if (thread() % 32 == 0) of_warps[thread() / 32] = x;
  meet();
  T total = of_warps[0];
  for (i32 warp = 1; warp < num_threads() / 32; ++warp) total = combine(total, of_warps[warp]);
  return total;
}
#else
constexpr i32 kWarpSize = 1;
inline void meet_warp() {}
template <class T, class Combine>
T combine_warp(T x, Combine) {
  return x;
}
template <class T, class Combine>
T combine_block(T x, Combine combine) {
  static_assert(sizeof(T) <= sizeof(double));
  const HostBlock& own = host_block();
  own.meet();  // what an earlier call left has been read
  std::memcpy(own.exchange + own.thread, &x, sizeof x);
  own.meet();
  T total, other;
  std::memcpy(&total, own.exchange, sizeof total);
  for (i32 i = 1; i < own.num_threads; ++i) {
    std::memcpy(&other, own.exchange + i, sizeof other);
    total = combine(total, other);
  }
  return total;
}
#endif

/// All threads of a block.
struct BlockTeam {
  HM_DEVICE static i32 per_block() { return 1; }
  HM_DEVICE i32 in_block() const { return 0; }
  HM_DEVICE i32 rank() const { return thread(); }
  HM_DEVICE i32 size() const { return num_threads(); }
  template <class T>
  HM_DEVICE T sum(T x) const {
    return combine_block(x, Plus());
  }
  template <class T>
  HM_DEVICE T max(T x) const {
    return combine_block(x, Larger());
  }
};

/// Those of a warp.
struct WarpTeam {
  HM_DEVICE static i32 per_block() { return num_threads() / kWarpSize; }
  HM_DEVICE i32 in_block() const { return thread() / kWarpSize; }
  HM_DEVICE i32 rank() const { return thread() % kWarpSize; }
  HM_DEVICE i32 size() const { return kWarpSize; }
  /// Returns once all threads of the team are here, with what they wrote.
  HM_DEVICE void meet() const { meet_warp(); }
  template <class T>
  HM_DEVICE T sum(T x) const {
    return combine_warp(x, Plus());
  }
  template <class T>
  HM_DEVICE T max(T x) const {
    return combine_warp(x, Larger());
  }
};

/// Which of all teams of the launch a thread belongs to, and how many there are.
template <class Team>
HM_DEVICE i64 team_index(Team team) {
  return block() * Team::per_block() + team.in_block();
}
template <class Team>
HM_DEVICE i64 num_teams(Team) {
  return num_blocks() * Team::per_block();
}

}  // namespace hetermoe::kernels
