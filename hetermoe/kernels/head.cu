#include "hetermoe/kernels/head.h"

#include "hetermoe/kernels/teams.h"

namespace hetermoe::kernels {

/// The largest logit so far, and the sum of exp(logit - largest) over those so far.
template <class Number>
struct OnlineSum {
  Number largest = Number(-3e38f), sum = 0;  // finite: a logit may be minus infinity

  template <int N>
  HM_DEVICE void add(const Number (&x)[N]) {
    Number most = x[0];
    for (int j = 1; j < N; ++j) most = larger(most, x[j]);
    if (most > largest) {
      sum *= exponential(largest - most);
      largest = most;
    }
    for (int j = 0; j < N; ++j) sum += exponential(x[j] - largest);
  }
};

template <int N, class Element>
HM_DEVICE void cross_entropy_row(const CrossEntropy& a, i64 r) {
  using Number = Wide<Element>;
  const BlockTeam team;
  auto* const row = static_cast<Element*>(a.logits) + r * a.width;
  const i64 target = a.targets[r];
  const bool counts = target != a.ignored;
  if (!counts && a.scale == 0) {
    if (team.rank() == 0) a.losses[r] = 0;
    return;
  }
  OnlineSum<Number> own;
  for (i64 c = i64(thread()) * N; counts && c < a.width; c += i64(num_threads()) * N) {
    Number x[N];
    load<N>(x, row + c);
    own.template add<N>(x);
  }
  const Number largest = team.max(own.largest);
  const Number sum = team.sum(own.sum * exponential(own.largest - largest));
  const Number factor = Number(a.scale) * reciprocal(sum);
  const Number target_logit = counts ? widen(row[target]) : Number(0);
  meet();  // all have read the target's logit
  if (team.rank() == 0) a.losses[r] = counts ? double(largest - target_logit + logarithm(sum)) : 0;
  if (a.scale == 0) return;
  for (i64 c = i64(thread()) * N; c < a.width; c += i64(num_threads()) * N) {
    Number x[N] = {};
    if (counts) {
      load<N>(x, row + c);
      for (int j = 0; j < N; ++j)
        x[j] = factor * exponential(x[j] - largest) - (c + j == target ? Number(a.scale) : Number(0));
    }
    store<N>(row + c, x);
  }
}

template <class Element>
HM_DEVICE void cross_entropy(const CrossEntropy& a) {
  for (i64 r = block(); r < a.rows; r += num_blocks()) {
    if (a.packed)
      cross_entropy_row<kPack<Element>, Element>(a, r);
    else
      cross_entropy_row<1, Element>(a, r);
  }
}

}  // namespace hetermoe::kernels
