#include "hetermoe/kernels/swiglu.h"

#include "hetermoe/kernels/teams.h"

namespace hetermoe::kernels {

template <class Number>
HM_DEVICE Number sigmoid(Number x) {
  return reciprocal(Number(1) + exponential(-x));
}

template <int N, class Element>
HM_DEVICE void swiglu_row(const Element* gate, const Element* up, Wide<Element> weight, Element* act,
                          i64 width) {
  for (i64 i = i64(thread()) * N; i < width; i += i64(num_threads()) * N) {
    Wide<Element> g[N], u[N];
    load<N>(g, gate + i);
    load<N>(u, up + i);
    for (int j = 0; j < N; ++j) g[j] = weight * (g[j] * sigmoid(g[j])) * u[j];
    store<N>(act + i, g);
  }
}

template <class Element>
HM_DEVICE void swiglu_forward(const SwigluForward& a) {
  const auto* gate_up = static_cast<const Element*>(a.gate_up);
  const auto* weights = static_cast<const Wide<Element>*>(a.weights);
  auto* act = static_cast<Element*>(a.act);
  for (i64 c = block(); c < a.copies; c += num_blocks()) {
    const Element* const gate = gate_up + 2 * c * a.width;
    const Wide<Element> weight = weights != nullptr ? weights[c] : Wide<Element>(1);
    if (a.packed)
      swiglu_row<kPack<Element>>(gate, gate + a.width, weight, act + c * a.width, a.width);
    else
      swiglu_row<1>(gate, gate + a.width, weight, act + c * a.width, a.width);
  }
}

/// Returns this thread's part of dact . silu(gate) * up. No __restrict: outputs may be the inputs of the same
/// index, which are read before.
template <int N, class Element>
HM_DEVICE Wide<Element> swiglu_gradient_row(const Element* gate, const Element* dact, Wide<Element> weight,
                                            Element* dgate, Element* act, i64 width) {
  Wide<Element> dweight = 0;
  for (i64 i = i64(thread()) * N; i < width; i += i64(num_threads()) * N) {
    Wide<Element> g[N], u[N], d[N];
    load<N>(g, gate + i);
    load<N>(u, gate + width + i);
    load<N>(d, dact + i);
    for (int j = 0; j < N; ++j) {
      const Wide<Element> s = sigmoid(g[j]), silu = g[j] * s, plain = silu * u[j];
      dweight += d[j] * plain;
      const Wide<Element> dplain = weight * d[j];
      g[j] = dplain * u[j] * (s + silu * (Wide<Element>(1) - s));
      u[j] = dplain * silu;
      d[j] = weight * plain;
    }
    store<N>(dgate + i, g);
    store<N>(dgate + width + i, u);
    if (act != nullptr) store<N>(act + i, d);
  }
  return dweight;
}

template <class Element>
HM_DEVICE void swiglu_backward(const SwigluBackward& a) {
  const auto* gate_up = static_cast<const Element*>(a.gate_up);
  const auto* weights = static_cast<const Wide<Element>*>(a.weights);
  const auto* dact = static_cast<const Element*>(a.dact);
  auto* dgate_up = static_cast<Element*>(a.dgate_up);
  auto* act = static_cast<Element*>(a.act);
  auto* dweights = static_cast<Wide<Element>*>(a.dweights);
  const BlockTeam team;
  for (i64 c = block(); c < a.copies; c += num_blocks()) {
    const i64 row = c * a.width;
    const Wide<Element> weight = weights != nullptr ? weights[c] : Wide<Element>(1);
    Element* const act_row = act != nullptr ? act + row : nullptr;
    const Wide<Element> part =
        a.packed ? swiglu_gradient_row<kPack<Element>>(gate_up + 2 * row, dact + row, weight,
                                                       dgate_up + 2 * row, act_row, a.width)
                 : swiglu_gradient_row<1>(gate_up + 2 * row, dact + row, weight, dgate_up + 2 * row, act_row,
                                          a.width);
    if (dweights == nullptr) continue;
    const Wide<Element> sum = team.sum(part);
    if (team.rank() == 0) dweights[c] = sum;
  }
}

}  // namespace hetermoe::kernels
