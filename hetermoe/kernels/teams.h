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

/// Threads of a warp with the same key of which some count.
struct Alike {
  i32 before;  ///< how many of lower rank count
  i32 all;     ///< how many count
  bool first;  ///< none of lower rank has the key
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
  static __shared__ T of_warps[32];
  x = combine_warp(x, combine);
  if (num_threads() <= 32) return x;
  meet();  // what an earlier call left has been read
  if (thread() % 32 == 0) of_warps[thread() / 32] = x;
  meet();
  T total = of_warps[0];
  for (i32 warp = 1; warp < num_threads() / 32; ++warp) total = combine(total, of_warps[warp]);
  return total;
}
HM_DEVICE Alike alike_in_warp(i32 key, bool counts) {
  const u32 before = (1u << (thread() % 32)) - 1, same = __match_any_sync(0xffffffffu, key),
            counted = same & __ballot_sync(0xffffffffu, counts);
  return {__popc(counted & before), __popc(counted), (same & before) == 0};
}
HM_DEVICE i32 sum_before_in_block(i32 x, i32& total) {
  static __shared__ i32 sums_of_warps[32];
  i32 sum = x;  // of this thread and those before it in its warp
  for (i32 distance = 1; distance < 32; distance *= 2) {
    const i32 other = __shfl_up_sync(0xffffffffu, sum, distance);
    if (thread() % 32 >= distance) sum += other;
  }
  meet();  // what an earlier call left has been read
  if (thread() % 32 == 31) sums_of_warps[thread() / 32] = sum;
  meet();
  i32 before = sum - x;
  total = 0;
  for (i32 warp = 0; warp < num_threads() / 32; ++warp) {
    if (warp == thread() / 32) before += total;
    total += sums_of_warps[warp];
  }
  return before;
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
inline Alike alike_in_warp(i32, bool counts) { return {0, counts ? 1 : 0, true}; }
inline i32 sum_before_in_block(i32 x, i32& total) {
  const HostBlock& own = host_block();
  own.meet();  // what an earlier call left has been read
  own.exchange[own.thread] = x;
  own.meet();
  i32 before = 0;
  total = 0;
  for (i32 i = 0; i < own.num_threads; ++i) {
    if (i == own.thread) before = total;
    total += static_cast<i32>(own.exchange[i]);
  }
  return before;
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
  /// The sum over the threads of lower rank; `total` becomes that over all.
  HM_DEVICE i32 sum_before(i32 x, i32& total) const { return sum_before_in_block(x, total); }
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
  /// Of the threads with this thread's key. All threads of the warp have to call it at once.
  HM_DEVICE Alike alike(i32 key, bool counts) const { return alike_in_warp(key, counts); }
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
