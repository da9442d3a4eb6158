#include "hetermoe/kernels/jitter.h"

#include "hetermoe/kernels/numbers.h"

namespace hetermoe::kernels {

HM_DEVICE double jitter_factor(u64 bits, double size) {
  const double uniform = plain_product(plain_sum(double(bits >> 11), 0.5), 0x1p-53);
  return plain_sum(plain_product(plain_sum(plain_product(uniform, 2), -1), size), 1);
}

/// A block has a row.
template <class In, class Out>
HM_DEVICE void jitter(const Jitter& a) {
  using Number = decltype(Wide<In>() * Wide<Out>());
  for (i64 r = block(); r < a.rows; r += num_blocks()) {
    const i64 token = a.first_token + r, sequence = a.first_sequence + token / a.seq_len;
    const u64 first = splitmix64(a.key ^ u64(sequence)) + u64(token % a.seq_len * a.width);
    const auto* const x = static_cast<const In*>(a.x) + r * a.width;
    auto* const out = static_cast<Out*>(a.out) + r * a.width;
    for (i64 c = thread(); c < a.width; c += num_threads()) {
      const double factor = jitter_factor(splitmix64(first + u64(c)), a.size);
      narrow(Wide<Out>(Number(widen(x[c])) * Number(factor)), out[c]);
    }
  }
}

}  // namespace hetermoe::kernels
