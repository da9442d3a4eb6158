#include "hetermoe/kernels/router.h"

#include "hetermoe/kernels/teams.h"

namespace hetermoe::kernels {

/// The largest of `count` values that are not taken, the first among equals; a NaN counts as the largest.
/// Marks it.
template <class Number>
HM_DEVICE i32 take_best(const WarpTeam& team, const Number* values, i32* taken, i32 count) {
  const Number lowest = Number(-3.4e38f);
  Number best = lowest;
  i32 best_index = count;
  for (i32 i = team.rank(); i < count; i += team.size()) {
    const bool nan = values[i] != values[i];
    const bool better = best_index == count || values[i] > best || (nan && best == best);
    if (!taken[i] && better) {
      best = values[i];
      best_index = i;
    }
  }
  const Number most = team.max(best);
  const bool mine = best_index < count && (best == most || (best != best && most != most));
  const i32 chosen = -team.max(mine ? -best_index : -count);
  if (team.rank() == 0 && chosen < count) taken[chosen] = 1;
  team.meet();
  return chosen;
}

/// What a group counts: its best, or the sum of its two best.
template <class Number>
HM_DEVICE Number group_value(const Number* values, i32 count, bool two_best) {
  Number first = values[0], second = 0;
  for (i32 i = 1; i < count; ++i) {
    if (values[i] > first || i == 1) {
      second = smaller(first, values[i]);
      first = larger(first, values[i]);
    } else if (values[i] > second) {
      second = values[i];
    }
  }
  return two_best && count > 1 ? first + second : first;
}

/// Experts of groups that are not kept are never chosen: the kept ones have at least top_k.
template <class Number>
HM_DEVICE void drop_groups(const WarpTeam& team, const RouterShape& s, Number* choice, Number* values,
                           i32* kept) {
  const i32 size = i32(s.experts / s.groups);
  for (i32 g = team.rank(); g < s.groups; g += team.size()) {
    values[g] = group_value(choice + g * size, size, s.two_best != 0);
    kept[g] = 0;
  }
  team.meet();
  for (i64 k = 0; k < s.kept_groups; ++k) take_best(team, values, kept, i32(s.groups));
  for (i32 e = team.rank(); e < s.experts; e += team.size()) {
    if (!kept[e / size]) choice[e] = Number(-3.4e38f);
  }
  team.meet();
}

/// The scores of a token, also into `out`.
template <class Number>
HM_DEVICE void score_token(const WarpTeam& team, const RouterShape& s, const Number* logits, Number* scores,
                           Number* out) {
  Number most = Number(-3.4e38f), sum = 0;
  for (i32 e = team.rank(); e < s.experts; e += team.size()) most = larger(most, logits[e]);
  if (!s.sigmoid) most = team.max(most);
  for (i32 e = team.rank(); e < s.experts; e += team.size()) {
    scores[e] = s.sigmoid ? reciprocal(Number(1) + exponential(-logits[e])) : exponential(logits[e] - most);
    sum += scores[e];
  }
  const Number factor = s.sigmoid ? Number(1) : reciprocal(team.sum(sum));
  for (i32 e = team.rank(); e < s.experts; e += team.size()) {
    scores[e] *= factor;
    out[e] = scores[e];
  }
  team.meet();
}

template <class Number>
HM_DEVICE void choose(const WarpTeam& team, const Route& a, i64 token, Number* choice, Number* groups,
                      i32* taken, i32* kept) {
  const RouterShape& s = a.shape;
  const auto* const bias = static_cast<const Number*>(a.bias);
  for (i32 e = team.rank(); e < s.experts; e += team.size()) {
    if (bias != nullptr) choice[e] += bias[e];
    taken[e] = 0;
  }
  team.meet();
  if (s.kept_groups > 0) drop_groups(team, s, choice, groups, kept);
  i64* const topk = a.topk + token * s.top_k;
  i64* const counts = a.counts + token / a.length * s.experts;
  for (i64 k = 0; k < s.top_k; ++k) {
    const i32 expert = take_best(team, choice, taken, i32(s.experts));
    if (team.rank() != 0) continue;
    topk[k] = expert;
    add_atomically(counts + expert, 1);
  }
  team.meet();
}

template <class Number>
HM_DEVICE void route(const Route& a) {
  const WarpTeam team;
  const RouterShape& s = a.shape;
  Number* const choice = reinterpret_cast<Number*>(shared<char>() + team.in_block() * a.team_bytes);
  Number* const groups = choice + s.experts;
  i32* const taken = reinterpret_cast<i32*>(groups + s.groups);
  i32* const kept = taken + s.experts;
  for (i64 token = team_index(team); token < a.tokens; token += num_teams(team)) {
    Number* const scores = static_cast<Number*>(a.scores) + token * s.experts;
    score_token(team, s, static_cast<const Number*>(a.logits) + token * s.experts, choice, scores);
    if (a.counts != nullptr) choose(team, a, token, choice, groups, taken, kept);
    const i64* const topk = a.topk + token * s.top_k;
    Number sum = 0;
    for (i64 k = 0; k < s.top_k; ++k) sum += scores[topk[k]];  // every thread in the same order
    const Number factor = Number(s.scale) * (s.normalizes ? reciprocal(sum + Number(s.floor)) : Number(1));
    for (i64 k = team.rank(); k < s.top_k; k += team.size())
      static_cast<Number*>(a.weights)[token * s.top_k + k] = scores[topk[k]] * factor;
    team.meet();
  }
}

/// Gradient of the score of the k-th choice by the weights.
template <class Number>
struct WeightGradient {
  Number factor = 0, common = 0;

  HM_DEVICE WeightGradient(const RouterShape& s, const Number* scores, const i64* topk,
                           const Number* dweights)
      : factor(Number(s.scale)) {
    if (!s.normalizes || dweights == nullptr) return;
    Number sum = Number(s.floor), product = 0;
    for (i64 k = 0; k < s.top_k; ++k) {
      sum += scores[topk[k]];
      product += dweights[k] * scores[topk[k]];
    }
    factor *= reciprocal(sum);
    common = product * reciprocal(sum);
  }
  HM_DEVICE Number of(Number dweight) const { return factor * (dweight - common); }
};

template <class Number>
HM_DEVICE void route_backward(const RouteBackward& a) {
  const WarpTeam team;
  const RouterShape& s = a.shape;
  for (i64 token = team_index(team); token < a.tokens; token += num_teams(team)) {
    const auto* const scores = static_cast<const Number*>(a.scores) + token * s.experts;
    const i64* const topk = a.topk + token * s.top_k;
    const auto* const dscores = static_cast<const Number*>(a.dscores);
    const auto* const all_dweights = static_cast<const Number*>(a.dweights);
    const Number* const dweights = all_dweights != nullptr ? all_dweights + token * s.top_k : nullptr;
    auto* const dlogits = static_cast<Number*>(a.dlogits) + token * s.experts;
    const WeightGradient<Number> by_weight(s, scores, topk, dweights);
    Number product = 0;
    for (i32 e = team.rank(); e < s.experts; e += team.size()) {
      Number d = dscores != nullptr ? dscores[token * s.experts + e] : Number(0);
      for (i64 k = 0; dweights != nullptr && k < s.top_k; ++k) {
        if (topk[k] == e) d += by_weight.of(dweights[k]);
      }
      dlogits[e] = d;
      product += d * scores[e];
    }
    product = team.sum(product);
    for (i32 e = team.rank(); e < s.experts; e += team.size()) {
      const Number d = dlogits[e];
      dlogits[e] = scores[e] * (s.sigmoid ? d * (Number(1) - scores[e]) : d - product);
    }
  }
}

}  // namespace hetermoe::kernels
