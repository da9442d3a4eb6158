#include "hetermoe/kernels/rope.h"

#include "hetermoe/kernels/numbers.h"

namespace hetermoe::kernels {

/// A block has a position of a sequence, its threads the pairs of all heads.
template <class Element>
HM_DEVICE void rotate(const Rotate& a) {
  using Number = Wide<Element>;
  const i64 half = a.dim / 2, pairs_of_all = a.heads * half;
  for (i64 place = block(); place < a.sequences * a.length; place += num_blocks()) {
    const i64 sequence = place / a.length, position = place % a.length;
    const auto* const x =
        static_cast<const Element*>(a.x) + sequence * a.x_strides.sequence + position * a.x_strides.position;
    auto* const out =
        static_cast<Element*>(a.out) + sequence * a.out_strides.sequence + position * a.out_strides.position;
    const auto* const cos = static_cast<const Number*>(a.cos) + position * half;
    const auto* const sin = static_cast<const Number*>(a.sin) + position * half;
    for (i32 n = thread(); n < pairs_of_all; n += num_threads()) {
      const i32 head = n / i32(half), i = n % i32(half);
      const i64 first = a.pairs ? 2 * i : i, second = a.pairs ? 2 * i + 1 : i + half;
      const Number c = cos[i], s = a.backward ? -sin[i] : sin[i];
      const Number u = widen(x[head * a.x_strides.head + first]),
                   v = widen(x[head * a.x_strides.head + second]);
      narrow(u * c - v * s, out[head * a.out_strides.head + first]);
      narrow(v * c + u * s, out[head * a.out_strides.head + second]);
    }
  }
}

}  // namespace hetermoe::kernels
