#include "hetermoe/kernels/norm.h"

#include "hetermoe/kernels/teams.h"

namespace hetermoe::kernels {

/// Calls f(first element) for this thread's packs of a row.
template <int N, class Team, class F>
HM_DEVICE void for_own_packs(const Team& team, i64 width, const F& f) {
  for (i64 c = i64(team.rank()) * N; c < width; c += i64(team.size()) * N) f(c);
}

HM_DEVICE float inverse_root(float x) { return reciprocal(root(x)); }
HM_DEVICE double inverse_root(double x) { return reciprocal(root(x)); }

template <int N, class Element, class Team>
HM_DEVICE void norm_row(const NormForward& a, const Team& team, i64 r) {
  using Number = Wide<Element>;
  const Element* x = static_cast<const Element*>(a.x) + r * a.width;
  const auto* const weight = static_cast<const Element*>(a.weight);
  auto* const out = static_cast<Element*>(a.out) + r * a.width;
  Number squares = 0;
  if (a.residual != nullptr) {
    const auto* const residual = static_cast<const Element*>(a.residual) + r * a.width;
    auto* const sum = static_cast<Element*>(a.sum) + r * a.width;
    for_own_packs<N>(team, a.width, [&](i64 c) {
      Number v[N], b[N];
      load<N>(v, x + c);
      load<N>(b, residual + c);
      for (int j = 0; j < N; ++j) {
        v[j] = rounded<Element>(v[j] + b[j]);
        squares += v[j] * v[j];
      }
      store<N>(sum + c, v);
    });
    x = sum;  // each thread reads what it wrote itself
  } else {
    for_own_packs<N>(team, a.width, [&](i64 c) {
      Number v[N];
      load<N>(v, x + c);
      for (int j = 0; j < N; ++j) squares += v[j] * v[j];
    });
  }
  const Number rstd = inverse_root(team.sum(squares) / Number(a.width) + Number(a.eps));
  for_own_packs<N>(team, a.width, [&](i64 c) {
    Number v[N], w[N];
    load<N>(v, x + c);
    load<N>(w, weight + c);
    for (int j = 0; j < N; ++j) v[j] = w[j] * rounded<Element>(v[j] * rstd);
    store<N>(out + c, v);
  });
  if (team.rank() == 0) static_cast<Number*>(a.rstd)[r] = rstd;
}

template <int N, class Element, class Team>
HM_DEVICE void norm_rows(const NormForward& a) {
  const Team team;
  for (i64 r = team_index(team); r < a.rows; r += num_teams(team)) norm_row<N, Element>(a, team, r);
}

template <class Element>
HM_DEVICE void norm_forward(const NormForward& a) {
  if (a.by_warp && a.packed)
    norm_rows<kPack<Element>, Element, WarpTeam>(a);
  else if (a.by_warp)
    norm_rows<1, Element, WarpTeam>(a);
  else if (a.packed)
    norm_rows<kPack<Element>, Element, BlockTeam>(a);
  else
    norm_rows<1, Element, BlockTeam>(a);
}

/// Sums by column. In shared memory the j-th columns of all packs are neighbours, so that the threads of a
/// warp meet different banks.
template <int N, class Number>
struct ColumnSums {
  Number* sums;
  i64 packs;  ///< of a row in shared memory, else 0
  HM_DEVICE Number& at(i64 c, int j) const { return sums[packs > 0 ? c / N + j * packs : c + j]; }
};

template <int N, class Element, class Team>
HM_DEVICE void norm_gradient_row(const NormBackward& a, const Team& team, i64 r,
                                 const ColumnSums<N, Wide<Element>>& dweight) {
  using Number = Wide<Element>;
  const auto* const x = static_cast<const Element*>(a.x) + r * a.width;
  const auto* const dout = static_cast<const Element*>(a.dout) + r * a.width;
  const auto* const weight = static_cast<const Element*>(a.weight);
  auto* const dx = static_cast<Element*>(a.dx) + r * a.width;
  const Number rstd = static_cast<const Number*>(a.rstd)[r];
  Number product = 0;
  for_own_packs<N>(team, a.width, [&](i64 c) {
    Number v[N], d[N], w[N];
    load<N>(v, x + c);
    load<N>(d, dout + c);
    load<N>(w, weight + c);
    for (int j = 0; j < N; ++j) {
      const Number normed = v[j] * rstd;
      product += w[j] * d[j] * normed;
      dweight.at(c, j) += d[j] * normed;  // this thread's own columns
    }
  });
  const Number mean = team.sum(product) / Number(a.width);
  for_own_packs<N>(team, a.width, [&](i64 c) {
    Number v[N], d[N], w[N];
    load<N>(v, x + c);
    load<N>(d, dout + c);
    load<N>(w, weight + c);
    for (int j = 0; j < N; ++j) v[j] = rstd * (w[j] * d[j] - v[j] * rstd * mean);
    if (a.dresidual != nullptr) {
      load<N>(d, static_cast<const Element*>(a.dresidual) + r * a.width + c);
      for (int j = 0; j < N; ++j) v[j] += d[j];
    }
    store<N>(dx + c, v);
  });
}

template <int N, class Element, class Team>
HM_DEVICE void norm_gradient_rows(const NormBackward& a) {
  using Number = Wide<Element>;
  const Team team;
  const i64 own = team_index(team);
  if (own >= a.num_teams) return;  // whole warps: no thread waits for them
  Number* const partial = static_cast<Number*>(a.partial) + own * a.width;
  const ColumnSums<N, Number> dweight{a.in_shared ? shared<Number>() + team.in_block() * a.width : partial,
                                      a.in_shared ? a.width / N : 0};
  for_own_packs<N>(team, a.width, [&](i64 c) {
    for (int j = 0; j < N; ++j) dweight.at(c, j) = 0;
  });
  for (i64 r = own; r < a.rows; r += a.num_teams) norm_gradient_row<N, Element>(a, team, r, dweight);
  if (!a.in_shared) return;
  for_own_packs<N>(team, a.width, [&](i64 c) {
    for (int j = 0; j < N; ++j) partial[c + j] = dweight.at(c, j);
  });
}

template <class Element>
HM_DEVICE void norm_backward(const NormBackward& a) {
  if (a.by_warp && a.packed)
    norm_gradient_rows<kPack<Element>, Element, WarpTeam>(a);
  else if (a.by_warp)
    norm_gradient_rows<1, Element, WarpTeam>(a);
  else if (a.packed)
    norm_gradient_rows<kPack<Element>, Element, BlockTeam>(a);
  else
    norm_gradient_rows<1, Element, BlockTeam>(a);
}

/// Threads side by side have neighbouring columns; those above each other share a column's rows.
template <class Element>
HM_DEVICE void sum_columns(const SumColumns& a) {
  using Number = Wide<Element>;
  const auto* const partial = static_cast<const Number*>(a.partial);
  const i32 columns = smaller(num_threads(), 32), depth = num_threads() / columns;
  const i32 column = thread() % columns, part = thread() / columns;
  Number* const sums = shared<Number>();  // [depth, columns]
  for (i64 first = block() * columns; first < a.width; first += num_blocks() * columns) {
    const i64 c = first + column;
    if (part < depth) {
      Number sum = 0;
      for (i64 r = part; c < a.width && r < a.rows; r += depth) sum += partial[r * a.width + c];
      sums[part * columns + column] = sum;
    }
    meet();
    if (part == 0 && c < a.width) {
      Number total = sums[column];
      for (i32 other = 1; other < depth; ++other) total += sums[other * columns + column];
      narrow(total, static_cast<Element*>(a.out)[c]);
    }
    meet();
  }
}

}  // namespace hetermoe::kernels
