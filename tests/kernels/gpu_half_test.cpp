#include <gtest/gtest.h>

#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

// The half of the kernels' language that is for GPUs, on the host: each thread of a block is a thread here,
// and what CUDA gives to the threads of a warp is made of barriers. So shuffles, votes and matches of
// permute.cu and teams.h are run where no GPU is. This file is compiled by itself, with the kernels in a
// namespace of their own.

struct Place {
  unsigned x = 0;
};
struct uint4 {
  std::uint32_t x, y, z, w;
};
thread_local Place threadIdx, blockIdx;
Place blockDim, gridDim;

namespace stand_in {

constexpr unsigned kLanes = 32;

struct Warp {
  std::barrier<> barrier{kLanes};
  std::uint64_t values[kLanes] = {};
};
std::unique_ptr<std::barrier<>> block_barrier;
std::vector<std::unique_ptr<Warp>> warps;

unsigned lane() { return threadIdx.x % kLanes; }

/// f(what each lane gave).
template <class T, class F>
auto exchange(T own, F f) {
  Warp& warp = *warps[threadIdx.x / kLanes];
  std::memcpy(&warp.values[lane()], &own, sizeof own);
  warp.barrier.arrive_and_wait();
  const auto result = f([&](unsigned of) {
    T value;
    std::memcpy(&value, &warp.values[of], sizeof value);
    return value;
  });
  warp.barrier.arrive_and_wait();  // all have read
  return result;
}

}  // namespace stand_in

void __syncthreads() { stand_in::block_barrier->arrive_and_wait(); }
void __syncwarp() {
  stand_in::exchange(0, [](const auto&) { return 0; });
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int distance) {
  return stand_in::exchange(
      x, [&](const auto& of) { return of(stand_in::lane() ^ static_cast<unsigned>(distance)); });
}
template <class T>
T __shfl_up_sync(unsigned, T x, int distance) {
  const unsigned own = stand_in::lane(), by = static_cast<unsigned>(distance);
  return stand_in::exchange(x, [&](const auto& of) { return of(own >= by ? own - by : own); });
}
template <class F>
unsigned lanes_where(const F& f) {
  unsigned mask = 0;
  for (unsigned l = 0; l < stand_in::kLanes; ++l) mask |= f(l) ? 1u << l : 0u;
  return mask;
}
unsigned __ballot_sync(unsigned, bool vote) {
  return stand_in::exchange(vote, [](const auto& of) { return lanes_where(of); });
}
unsigned __match_any_sync(unsigned, int key) {
  return stand_in::exchange(
      key, [&](const auto& of) { return lanes_where([&](unsigned l) { return of(l) == key; }); });
}
int __popc(unsigned x) { return std::popcount(x); }
void atomicAdd(unsigned long long*, unsigned long long);
std::uint32_t __float_as_uint(float x) { return std::bit_cast<std::uint32_t>(x); }
float __uint_as_float(std::uint32_t x) { return std::bit_cast<float>(x); }
float __fdividef(float a, float b) { return a / b; }
double __dmul_rn(double a, double b) { return a * b; }
double __dadd_rn(double a, double b) { return a + b; }
int __double2loint(double x) { return static_cast<int>(std::bit_cast<std::uint64_t>(x)); }
int __double2hiint(double x) { return static_cast<int>(std::bit_cast<std::uint64_t>(x) >> 32); }
std::size_t __cvta_generic_to_global(const void* x) { return reinterpret_cast<std::size_t>(x); }

#define __CUDACC__
#define __CUDA_ARCH__ 900
#define __device__
#define __forceinline__ inline
#define __shared__
#define kernels kernels_on_warps
#include "hetermoe/kernels/permute.cu"
#undef __CUDACC__

namespace hetermoe::kernels_on_warps {

double dynamic_shared[6 << 10];

namespace {

/// Runs f in every thread of every block.
template <class F>
void run_as_on_a_gpu(unsigned blocks, unsigned threads, const F& f) {
  blockDim.x = threads, gridDim.x = blocks;
  for (unsigned b = 0; b < blocks; ++b) {
    std::memset(dynamic_shared, 0xff, sizeof dynamic_shared);
    stand_in::block_barrier = std::make_unique<std::barrier<>>(threads);
    stand_in::warps.clear();
    for (unsigned w = 0; w < threads / stand_in::kLanes; ++w)
      stand_in::warps.push_back(std::make_unique<stand_in::Warp>());
    std::vector<std::jthread> running;
    for (unsigned t = 0; t < threads; ++t)
      running.emplace_back([&, t] {
        threadIdx.x = t, blockIdx.x = b;
        f();
      });
  }
}

/// Between -1 and num_keys - 1; some often, some never.
std::vector<i32> some_keys(i64 count, i64 num_keys) {
  std::vector<i32> out;
  for (i64 i = 0; i < count; ++i)
    out.push_back(static_cast<i32>(i % 11 == 3 ? -1 : (i * i * 7 + i * 3) % num_keys));
  return out;
}

TEST(GpuHalf, AThreadFindsThoseOfItsWarpWithItsKey) {
  const unsigned threads = 96;
  const std::vector<i32> keys = some_keys(threads, 5);
  std::vector<Alike> got(threads);
  run_as_on_a_gpu(1, threads, [&] {
    const auto t = static_cast<std::size_t>(thread());
    got[t] = WarpTeam().alike(keys[t], t % 3 != 0);
  });
  for (std::size_t t = 0; t < threads; ++t) {
    Alike expected{0, 0, true};
    for (std::size_t other = t / 32 * 32; other < t / 32 * 32 + 32; ++other) {
      if (keys[other] != keys[t]) continue;
      expected.all += other % 3 != 0;
      if (other < t) expected.before += other % 3 != 0, expected.first = false;
    }
    EXPECT_EQ(got[t].before, expected.before) << t;
    EXPECT_EQ(got[t].all, expected.all) << t;
    EXPECT_EQ(got[t].first, expected.first) << t;
  }
}

TEST(GpuHalf, CountsAreAddedUpOverAnyNumberOfKeys) {
  for (const i64 num_keys : {0, 1, 31, 64, 65, 300}) {
    const std::vector<i32> counts = some_keys(num_keys + 1, 9);
    std::vector<i32> begin(static_cast<std::size_t>(num_keys + 1), -1);
    run_as_on_a_gpu(1, 64, [&] { add_up(counts.data(), num_keys, begin.data()); });
    i32 sum = 0;
    for (std::size_t k = 0; k < begin.size(); ++k) {
      EXPECT_EQ(begin[k], sum) << k << " of " << num_keys;
      sum += counts[k];
    }
  }
}

/// rank and counts of CountKeys by a loop over the copies.
struct Ranks {
  std::vector<i32> rank, counts;
};
Ranks expected_ranks(const std::vector<i32>& keys, i64 chunk, i64 num_keys) {
  const i64 copies = static_cast<i64>(keys.size()), chunks = (copies + chunk - 1) / chunk;
  Ranks out{std::vector<i32>(keys.size(), -7), std::vector<i32>(static_cast<std::size_t>(chunks * num_keys))};
  for (i64 i = 0; i < copies; ++i) {
    const i32 key = keys[static_cast<std::size_t>(i)];
    if (key < 0) continue;
    i32& count = out.counts[static_cast<std::size_t>(i / chunk * num_keys + key)];
    out.rank[static_cast<std::size_t>(i)] = count++;
  }
  return out;
}

TEST(GpuHalf, CopiesAreRankedByKeyAsALoopRanksThem) {
  for (const unsigned threads : {32u, 256u}) {
    for (const i64 num_keys : {1, 5, 64, 1500}) {
      const i64 chunk = 1000, copies = 2300;
      const std::vector<i32> keys = some_keys(copies, num_keys);
      const Ranks expected = expected_ranks(keys, chunk, num_keys);
      Ranks got{std::vector<i32>(keys.size(), -7), std::vector<i32>(expected.counts.size(), -7)};
      ASSERT_LE(bytes_for_ranks(chunk, num_keys, threads / 32), static_cast<i64>(sizeof dynamic_shared));
      run_as_on_a_gpu(3, threads, [&] {
        count_keys<i32>({keys.data(), nullptr, got.rank.data(), got.counts.data(), copies, chunk, num_keys});
      });
      EXPECT_EQ(got.rank, expected.rank) << num_keys;
      EXPECT_EQ(got.counts, expected.counts) << num_keys;
    }
  }
}

TEST(GpuHalf, CountsOfEarlierChunksAreAddedUp) {
  for (const i64 num_chunks : {0, 1, 7, 37}) {
    const i64 num_keys = 70;
    std::vector<i32> counts = some_keys(num_chunks * num_keys, 13), expected = counts;
    std::vector<i32> totals(70, -7), expected_totals(70, 0);
    for (i64 n = 0; n < num_chunks * num_keys; ++n) {
      i32 &count = expected[static_cast<std::size_t>(n)],
          &total = expected_totals[static_cast<std::size_t>(n % num_keys)];
      total += std::exchange(count, total);
    }
    run_as_on_a_gpu(3, 256, [&] { scan_counts({counts.data(), totals.data(), num_chunks, num_keys}); });
    EXPECT_EQ(counts, expected) << num_chunks;
    EXPECT_EQ(totals, expected_totals) << num_chunks;
  }
}

/// Rows of one chunk, where expert e belongs to destination e % num_destinations.
TEST(GpuHalf, RowsOfAChunkAreThoseOfALoop) {
  const i64 tokens = 150, top_k = 4, copies = tokens * top_k, num_experts = 12;
  for (const i64 num_destinations : {1, 3, 12}) {
    std::vector<i32> topk, owner_begin = {0}, destination, zeros(12, 0), rank(600, 0);
    for (i64 i = 0; i < copies; ++i)  // different experts for each token
      topk.push_back(i % 23 == 5 ? -1
                                 : static_cast<i32>((i / top_k * 5 + i % top_k * 3 + i % top_k / 2) % 12));
    const std::vector<double> share(12, 1.0);
    for (i32 e = 0; e < num_experts; ++e) {
      owner_begin.push_back(e + 1);
      destination.push_back(e % static_cast<i32>(num_destinations));
    }
    std::vector<i32> to(600, -7), place(600), row(600, -7), row_counts(12, -7), expert(600), flat(600);
    const Owners owners{owner_begin.data(), share.data(), destination.data(), zeros.data(),
                        num_experts,        num_experts,  num_destinations};
    run_as_on_a_gpu(1, 256, [&] {
      split_copies<i32>({owners, topk.data(), rank.data(), zeros.data(), zeros.data(), zeros.data(),
                         to.data(), place.data(), row.data(), row_counts.data(), expert.data(), flat.data(),
                         copies, 600, top_k, 1});
    });
    std::vector<i32> rows(12, 0), last_token(12, -1);
    for (i64 i = 0; i < copies; ++i) {
      const i32 e = topk[static_cast<std::size_t>(i)];
      if (e < 0) continue;
      const auto d = static_cast<std::size_t>(e % num_destinations);
      const auto token = static_cast<i32>(i / top_k);
      const bool first = token != std::exchange(last_token[d], token);
      if (first) ++rows[d];
      EXPECT_EQ(row[static_cast<std::size_t>(i)], first ? rows[d] - 1 : -rows[d]) << i;
      EXPECT_EQ(to[static_cast<std::size_t>(i)], static_cast<i32>(d)) << i;
    }
    for (std::size_t d = 0; d < static_cast<std::size_t>(num_destinations); ++d)
      EXPECT_EQ(row_counts[d], rows[d]) << d;
  }
}

}  // namespace
}  // namespace hetermoe::kernels_on_warps
