#include "hetermoe/nn/reference_rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace hetermoe {
namespace {

/// Radians per position of pair i: theta^(-2i/d), changed as the model scales it.
double frequency(const ModelConfig& model, double i, double dim, i64 seq_len) {
  const RopeScaling& how = model.rope_scaling;
  const auto original = static_cast<double>(how.original_positions);
  const double plain = std::pow(model.rope_theta, -2 * i / dim), slow = plain / how.factor;
  // The pair that turns so often over the original positions.
  const auto pair = [&](double turns) {
    return dim * std::log(original / (2 * std::numbers::pi * turns)) / (2 * std::log(model.rope_theta));
  };
  switch (how.kind) {
    case RopeKind::kDefault:
      return plain;
    case RopeKind::kLinear:
      return slow;
    case RopeKind::kDynamic: {
      const auto longest = static_cast<double>(model.max_positions);
      const double length = std::max(static_cast<double>(seq_len), longest);
      const double stretch = how.factor * length / longest - (how.factor - 1);
      return std::pow(model.rope_theta * std::pow(stretch, dim / (dim - 2)), -2 * i / dim);
    }
    case RopeKind::kYarn: {
      double low = pair(how.beta_fast), high = pair(how.beta_slow);
      if (how.truncate) low = std::floor(low), high = std::ceil(high);
      low = std::max(low, 0.0), high = std::min(high, dim - 1);
      const double ramp = (i - low) / (high == low ? 0.001 : high - low);
      return ramp <= 0 ? plain : ramp >= 1 ? slow : plain * (1 - ramp) + slow * ramp;
    }
    case RopeKind::kLlama3: {
      const double wave = 2 * std::numbers::pi / plain;
      if (wave > original / how.low_freq_factor) return slow;
      if (wave < original / how.high_freq_factor) return plain;
      const double smooth =
          (original / wave - how.low_freq_factor) / (how.high_freq_factor - how.low_freq_factor);
      return (1 - smooth) * slow + smooth * plain;
    }
  }
  return plain;
}

/// By which turned rows grow: yarn makes up for flatter scores.
double turned_length(const ModelConfig& model) {
  const RopeScaling& how = model.rope_scaling;
  if (how.kind != RopeKind::kYarn) return 1;
  if (how.attention_factor > 0) return how.attention_factor;
  const double log = how.factor > 1 ? 0.1 * std::log(how.factor) : 0;
  if (how.mscale > 0 && how.mscale_all_dim > 0)
    return (1 + log * how.mscale) / (1 + log * how.mscale_all_dim);
  return 1 + log;
}

}  // namespace

at::Tensor reference_turn(const ModelConfig& model, const at::Tensor& x) {
  const i64 seq_len = x.size(2);
  const i64 dim = model.rotary_dim > 0 ? model.rotary_dim : x.size(-1);  // the rest stays
  const double length = turned_length(model);
  std::vector<at::Tensor> columns = at::unbind(x, -1);
  const at::Tensor position = at::arange(seq_len, x.options().dtype(at::kDouble));
  for (i64 i = 0; i < dim / 2; ++i) {
    const double angle = frequency(model, static_cast<double>(i), static_cast<double>(dim), seq_len);
    const at::Tensor c = (length * at::cos(position * angle)).to(x.scalar_type());
    const at::Tensor s = (length * at::sin(position * angle)).to(x.scalar_type());
    const i64 first = model.rope_interleaved ? 2 * i : i;
    const i64 second = model.rope_interleaved ? 2 * i + 1 : i + dim / 2;
    const at::Tensor a = x.select(-1, first), b = x.select(-1, second);
    columns[static_cast<std::size_t>(first)] = a * c - b * s;
    columns[static_cast<std::size_t>(second)] = b * c + a * s;
  }
  return at::stack(columns, -1);
}

}  // namespace hetermoe
