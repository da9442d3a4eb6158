#pragma once
#include <ATen/ATen.h>

#include <type_traits>
#include <vector>

#include "hetermoe/base/types.h"

// Rows of 16-bit numbers as floats: the arithmetic of a row is written once, in fp32.
namespace hetermoe {

/// to[i] = from[i].
void widen(const at::BFloat16* from, float* to, i64 count);
void widen(const at::Half* from, float* to, i64 count);

/// to[i] = from[i], rounded to nearest even.
void narrow(const float* from, at::BFloat16* to, i64 count);
void narrow(const float* from, at::Half* to, i64 count);

/// Lets a row of T be read and written as floats: in its place where T is float, else in a buffer. One
/// thread's.
template <class T>
class FloatRow {
 public:
  explicit FloatRow(i64 width)
      : width_(width), buffer_(std::is_same_v<T, float> ? std::size_t{0} : static_cast<std::size_t>(width)) {}

  /// The floats of `row`, until the next call.
  const float* read(const T* row) { return read(row, width_); }
  /// Reads the first `count` values.
  const float* read(const T* row, [[maybe_unused]] i64 count) {
    if constexpr (std::is_same_v<T, float>) {
      return row;
    } else {
      widen(row, buffer_.data(), count);
      return buffer_.data();
    }
  }
  /// Where to write the floats of `row`; then write().
  float* place(T* row) {
    if constexpr (std::is_same_v<T, float>)
      return row;
    else
      return buffer_.data();
  }
  void write([[maybe_unused]] T* row) {
    if constexpr (!std::is_same_v<T, float>) narrow(buffer_.data(), row, width_);
  }

 private:
  i64 width_;
  std::vector<float> buffer_;
};

/// Calls f with a number of x's type: float, at::BFloat16 or at::Half.
template <class F>
void with_row_type(const at::Tensor& x, const F& f) {
  if (x.scalar_type() == at::kBFloat16)
    f(at::BFloat16());
  else if (x.scalar_type() == at::kHalf)
    f(at::Half());
  else
    f(0.0f);
}

}  // namespace hetermoe
