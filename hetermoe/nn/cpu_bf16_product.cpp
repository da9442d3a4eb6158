#include "hetermoe/nn/cpu_bf16_product.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>

#include "hetermoe/base/error.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

// gcc 12 takes the undefined values inside its own intrinsics for ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace hetermoe {
namespace {

#define HM_AMX [[gnu::target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")]]

using Number = std::uint16_t;  // the bits of a bf16

// A tile register: 16 lines of 64 bytes. Of the left operand a line is a row with 32 numbers of its depth, of
// the right one it is two numbers (a pair) of the depth of each of 16 columns, of the result 16 floats.
constexpr i64 kLines = 16, kDepth = 32, kTile = kLines * kDepth;
constexpr i64 kPanel = 2;                 // tiles of the result in a block of registers, each way
constexpr i64 kBlockNumbers = 384 << 10;  // packed numbers of an operand that stay in the cache
constexpr i64 kWorkPerThread = 4 << 20;   // multiplications that are worth another thread

i64 tiles_of(i64 count, i64 size) { return (count + size - 1) / size; }

/// One operand, seen alike from either side: "lines" are rows of a and columns of b.
struct Operand {
  const Number* data;
  i64 lines, depth;
  i64 line_stride, depth_stride;
  bool pairs_first;  ///< the layout of the right operand's tiles

  const Number* at(i64 line, i64 k) const { return data + line * line_stride + k * depth_stride; }
  Operand part(i64 first, i64 count) const {
    Operand out = *this;
    out.data = at(first, 0);
    out.lines = count;
    return out;
  }
};

/// Rows and columns of 16 x 16 words change places.
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void transpose(__m512i (&x)[kLines]) {
  __m512i y[kLines];
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    x[i + 4] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0x88);
    x[i + 12] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0xdd);
  }
}

/// One tile of an operand, zeros beyond its end.
[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void pack_tile(const Operand& x, i64 line, i64 k,
                                                                   Number* to) {
  const i64 lines = std::min(kLines, x.lines - line), depth = std::min(kDepth, x.depth - k);
  __m512i words[kLines];
  const bool along_depth = x.depth_stride == 1;
  if (along_depth) {
    const auto mask = static_cast<__mmask32>((std::uint64_t{1} << depth) - 1);
    for (i64 i = 0; i < kLines; ++i)
      words[i] = i < lines ? _mm512_maskz_loadu_epi16(mask, x.at(line + i, k)) : _mm512_setzero_si512();
  } else {
    const auto mask = static_cast<__mmask16>((std::uint32_t{1} << lines) - 1);
    for (i64 i = 0; i < kLines; ++i) {
      const auto numbers = [&](i64 j) __attribute__((target("avx512f,avx512bw,avx512vl"))) {
        return j < depth ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x.at(line, k + j)))
                         : _mm512_setzero_si512();
      };
      words[i] = _mm512_or_si512(numbers(2 * i), _mm512_slli_epi32(numbers(2 * i + 1), 16));
    }
  }
  if (along_depth == x.pairs_first) transpose(words);
  for (i64 i = 0; i < kLines; ++i) _mm512_storeu_si512(to + i * kDepth, words[i]);
}

/// All tiles of lines [line, line + 16) follow each other in `to`. The source is read in the order of memory.
HM_AMX void pack(const Operand& x, Number* to) {
  const i64 line_tiles = tiles_of(x.lines, kLines), depth_tiles = tiles_of(x.depth, kDepth);
  const auto run = [&](i64 line, i64 k) __attribute__((target("avx512f,avx512bw,avx512vl"))) {
    pack_tile(x, line * kLines, k * kDepth, to + (line * depth_tiles + k) * kTile);
  };
  if (x.depth_stride == 1) {
    for (i64 line = 0; line < line_tiles; ++line)
      for (i64 k = 0; k < depth_tiles; ++k) run(line, k);
  } else {
    for (i64 k = 0; k < depth_tiles; ++k)
      for (i64 line = 0; line < line_tiles; ++line) run(line, k);
  }
}

struct Output {
  char* data;
  i64 row_stride;
  ProductOutput kind;
  Bf16Unit unit;
};

/// Writes a tile of sums, or adds it.
HM_AMX inline void write_tile(const Output& out, const float* sums, i64 row, i64 col, i64 rows, i64 cols) {
  const auto mask = static_cast<__mmask16>((std::uint32_t{1} << std::min(cols, kLines)) - 1);
  for (i64 r = 0; r < std::min(rows, kLines); ++r) {
    const __m512 sum = _mm512_load_ps(sums + r * kLines);
    const i64 at = (row + r) * out.row_stride + col;
    if (out.kind == ProductOutput::kBf16) {
      Number* to = reinterpret_cast<Number*>(out.data) + at;
      _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(sum));
      continue;
    }
    float* to = reinterpret_cast<float*>(out.data) + at;
    const bool adds = out.kind == ProductOutput::kAddFloat;
    _mm512_mask_storeu_ps(to, mask, adds ? _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), sum) : sum);
  }
}

/// Sums of 2 x 2 tiles over the whole depth. a and b: two times depth_tiles tiles.
HM_AMX inline void sum_tiles(const Number* a, const Number* b, i64 depth_tiles, float* sums) {
  constexpr int kLineBytes = 64;
  const Number *a1 = a + depth_tiles * kTile, *b1 = b + depth_tiles * kTile;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (i64 at = 0; at < depth_tiles * kTile; at += kTile) {
    _tile_loadd(4, a + at, kLineBytes);
    _tile_loadd(6, b + at, kLineBytes);
    _tile_loadd(7, b1 + at, kLineBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a1 + at, kLineBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  constexpr i64 kSums = kLines * kLines;
  _tile_stored(0, sums, kLineBytes);
  _tile_stored(1, sums + kSums, kLineBytes);
  _tile_stored(2, sums + 2 * kSums, kLineBytes);
  _tile_stored(3, sums + 3 * kSums, kLineBytes);
}

/// The same by vector instructions, eight rows by two tiles of columns at a time.
HM_AMX inline void sum_vectors(const Number* a, const Number* b, i64 depth_tiles, float* sums) {
  constexpr i64 kRows = 8;
  const i64 numbers = depth_tiles * kTile;
  for (i64 row = 0; row < kPanel * kLines; row += kRows) {
    const Number* left = a + row / kLines * numbers + row % kLines * kDepth;
    __m512 sum[kRows][kPanel] = {};
    for (i64 at = 0; at < numbers; at += kTile) {
      for (i64 pair = 0; pair < kLines; ++pair) {
        const auto right0 = (__m512bh)_mm512_load_si512(b + at + pair * kDepth);
        const auto right1 = (__m512bh)_mm512_load_si512(b + numbers + at + pair * kDepth);
#pragma GCC unroll 8
        for (i64 r = 0; r < kRows; ++r) {
          int word = 0;
          std::memcpy(&word, left + at + r * kDepth + 2 * pair, sizeof word);
          const auto both = (__m512bh)_mm512_set1_epi32(word);
          sum[r][0] = _mm512_dpbf16_ps(sum[r][0], both, right0);
          sum[r][1] = _mm512_dpbf16_ps(sum[r][1], both, right1);
        }
      }
    }
    float* to = sums + row / kLines * kPanel * kLines * kLines + row % kLines * kLines;
#pragma GCC unroll 8
    for (i64 r = 0; r < kRows; ++r) {
      _mm512_store_ps(to + r * kLines, sum[r][0]);
      _mm512_store_ps(to + kLines * kLines + r * kLines, sum[r][1]);
    }
  }
}

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t line_bytes[16] = {};
  std::uint8_t lines[16] = {};
};

/// Memory of one thread that grows and stays: packed operands.
Number* scratch(int which, i64 numbers) {
  struct Buffer {
    std::unique_ptr<Number[]> data;
    i64 size = 0;
  };
  thread_local Buffer buffers[2];
  Buffer& buffer = buffers[which];
  if (buffer.size < numbers) {
    buffer.data = std::make_unique_for_overwrite<Number[]>(static_cast<std::size_t>(numbers + kDepth));
    buffer.size = numbers;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.data.get());
  return buffer.data.get() + ((64 - address % 64) % 64) / sizeof(Number);
}

/// Lines of a block, a multiple of what the registers take at once.
i64 block_lines(i64 depth) {
  constexpr i64 kStep = kPanel * kLines;
  return std::max(kStep, kBlockNumbers / std::max<i64>(1, depth) / kStep * kStep);
}

/// Packed blocks of both, at (row, col) of the result.
HM_AMX void multiply_blocks(const Operand& a, const Number* packed_a, const Operand& b,
                            const Number* packed_b, const Output& out, i64 row, i64 col) {
  constexpr i64 kStep = kPanel * kLines;
  const i64 depth_tiles = tiles_of(a.depth, kDepth);
  alignas(64) float sums[kPanel * kPanel * kLines * kLines];
  for (i64 r = 0; r < a.lines; r += kStep) {
    for (i64 c = 0; c < b.lines; c += kStep) {
      const Number* left = packed_a + r * depth_tiles * kDepth;
      const Number* right = packed_b + c * depth_tiles * kDepth;
      if (out.unit == Bf16Unit::kTiles)
        sum_tiles(left, right, depth_tiles, sums);
      else
        sum_vectors(left, right, depth_tiles, sums);
      for (i64 t = 0; t < kPanel * kPanel; ++t) {
        const i64 down = r + t / kPanel * kLines, right = c + t % kPanel * kLines;
        if (down < a.lines && right < b.lines) {
          write_tile(out, sums + t * kLines * kLines, row + down, col + right, a.lines - down,
                     b.lines - right);
        }
      }
    }
  }
}

/// In the calling thread.
HM_AMX void multiply(const Operand& a, const Operand& b, const Output& out, i64 row, i64 col) {
  const bool tiles = out.unit == Bf16Unit::kTiles;
  if (tiles) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.line_bytes[tile] = 64, config.lines[tile] = kLines;
    _tile_loadconfig(&config);
  }
  const i64 step = block_lines(a.depth), padded = tiles_of(a.depth, kDepth) * kDepth;
  const auto room = [&](i64 lines) {
    return tiles_of(std::min(step, lines), kPanel * kLines) * kPanel * kLines * padded;
  };
  Number *packed_a = scratch(0, room(a.lines)), *packed_b = scratch(1, room(b.lines));
  for (i64 r = 0; r < a.lines; r += step) {
    const Operand left = a.part(r, std::min(step, a.lines - r));
    pack(left, packed_a);
    for (i64 c = 0; c < b.lines; c += step) {
      const Operand right = b.part(c, std::min(step, b.lines - c));
      pack(right, packed_b);
      multiply_blocks(left, packed_a, right, packed_b, out, row + r, col + c);
    }
  }
  if (tiles) _tile_release();
}

/// Parts of the result's rows and columns for the threads: as few operands as can be are packed twice.
struct Grid {
  i64 down = 1, across = 1;
};

Grid make_grid(i64 rows, i64 cols, i64 threads) {
  Grid best{threads, 1};
  for (i64 across = 1; across <= threads; ++across) {
    if (threads % across != 0) continue;
    const i64 down = threads / across;
    if (rows / down + cols / across < rows / best.down + cols / best.across) best = {down, across};
  }
  return best;
}

/// Begin of a part, a multiple of a tile's lines.
i64 part_begin(i64 count, i64 part, i64 parts) {
  return std::min(count, tiles_of(count * part / parts, kLines) * kLines);
}

Operand operand(const void* data, i64 lines, i64 depth, i64 line_stride, i64 depth_stride, bool pairs_first) {
  // A stride along one line or one number means nothing.
  if (depth <= 1) depth_stride = 1;
  if (depth_stride != 1 && lines <= 1) line_stride = 1;
  HM_CHECK(line_stride == 1 || depth_stride == 1, "strides {} and {} of a product's operand", line_stride,
           depth_stride);
  return {static_cast<const Number*>(data), lines, depth, line_stride, depth_stride, pairs_first};
}

Bf16Unit find_unit() {
  const bool vectors = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl");
  if (!vectors) return Bf16Unit::kNone;
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  constexpr unsigned kAmx = 1U << 22 | 1U << 24;  // bf16, tiles
  const bool tiles = (edx & kAmx) == kAmx && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return tiles ? Bf16Unit::kTiles : Bf16Unit::kVectors;
}

}  // namespace

Bf16Unit bf16_unit() {
  static const Bf16Unit unit = find_unit();
  return unit;
}

bool has_fast_bf16_unit() {
  return bf16_unit() == Bf16Unit::kTiles || (bf16_unit() == Bf16Unit::kVectors && __builtin_cpu_is("amd"));
}

void bf16_product(const Bf16Matrix& a, const Bf16Matrix& b, void* c, i64 c_row, ProductOutput output,
                  Bf16Unit unit) {
  HM_CHECK(unit != Bf16Unit::kNone, "a bf16 product on a processor without {} for it", "instructions");
  HM_CHECK(a.cols == b.rows, "a product of depths {} and {}", a.cols, b.rows);
  if (a.rows == 0 || b.cols == 0) return;
  const Operand left = operand(a.data, a.rows, a.cols, a.row_stride, a.col_stride, /*pairs_first=*/false);
  const Operand right = operand(b.data, b.cols, b.rows, b.col_stride, b.row_stride, /*pairs_first=*/true);
  const Output out{static_cast<char*>(c), c_row, output, unit};
  const i64 most = at::in_parallel_region() ? 1 : at::get_num_threads();
  const i64 threads = std::clamp<i64>(a.rows * a.cols * b.cols / kWorkPerThread, 1, most);
  const Grid grid = make_grid(a.rows, b.cols, threads);
  const auto run = [&](i64 task) {
    const i64 i = task / grid.across, j = task % grid.across;
    const i64 row = part_begin(a.rows, i, grid.down), col = part_begin(b.cols, j, grid.across);
    const i64 rows = part_begin(a.rows, i + 1, grid.down) - row;
    const i64 cols = part_begin(b.cols, j + 1, grid.across) - col;
    if (rows > 0 && cols > 0) multiply(left.part(row, rows), right.part(col, cols), out, row, col);
  };
  if (threads == 1) return run(0);
  at::parallel_for(0, threads, 1, [&](i64 begin, i64 end) {
    for (i64 task = begin; task < end; ++task) run(task);
  });
}

}  // namespace hetermoe

#else

namespace hetermoe {

Bf16Unit bf16_unit() { return Bf16Unit::kNone; }

bool has_fast_bf16_unit() { return false; }

void bf16_product(const Bf16Matrix&, const Bf16Matrix&, void*, i64, ProductOutput, Bf16Unit) {
  HM_CHECK(false, "a bf16 product on a processor without {} for it", "instructions");
}

}  // namespace hetermoe

#endif
