#include "hetermoe/model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "hetermoe/base/index.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<RopeKind>::names() {
  static const std::vector<std::string> all = {"default", "linear", "dynamic", "yarn", "llama3"};
  return all;
}

namespace {

/// The element pair that turns so often over the context of pre-training; between two of them in general.
double pair_of_turns(double turns, const RopeScaling& scaling, i64 dim, double theta) {
  const double wave = real(scaling.original_positions) / (turns * 2 * std::numbers::pi);
  return real(dim) * std::log(wave) / (2 * std::log(theta));
}

void scale_by_yarn(const RopeScaling& scaling, i64 dim, double theta, RopeAngles& out) {
  double first = pair_of_turns(scaling.beta_fast, scaling, dim, theta);
  double last = pair_of_turns(scaling.beta_slow, scaling, dim, theta);
  if (scaling.truncate) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, real(dim - 1));
  if (first == last) last += 0.001;  // a step instead of a ramp
  for (std::size_t i = 0; i < out.frequencies.size(); ++i) {
    const double slow = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    out.frequencies[i] *= slow / scaling.factor + (1 - slow);
  }
  if (scaling.attention_factor > 0) {
    out.scale = scaling.attention_factor;
  } else if (scaling.mscale > 0 && scaling.mscale_all_dim > 0) {
    out.scale =
        yarn_mscale(scaling.factor, scaling.mscale) / yarn_mscale(scaling.factor, scaling.mscale_all_dim);
  } else {
    out.scale = yarn_mscale(scaling.factor, 1);
  }
}

void scale_by_wavelength(const RopeScaling& scaling, RopeAngles& out) {
  for (double& frequency : out.frequencies) {
    const double turns = real(scaling.original_positions) * frequency / (2 * std::numbers::pi);
    const double fast = std::clamp(
        (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0, 1.0);
    frequency *= fast + (1 - fast) / scaling.factor;
  }
}

}  // namespace

RopeAngles plain_rope(i64 dim, double theta) {
  RopeAngles out;
  for (i64 i = 0; i < dim; i += 2) out.frequencies.push_back(std::pow(theta, -real(i) / real(dim)));
  return out;
}

RopeAngles scaled_rope(const RopeScaling& scaling, i64 dim, double theta, i64 seq_len, i64 max_positions) {
  if (scaling.kind == RopeKind::kDynamic) {
    const double longer = real(std::max(seq_len, max_positions)) / real(max_positions);
    const double stretch = scaling.factor * longer - (scaling.factor - 1);
    return plain_rope(dim, theta * std::pow(stretch, real(dim) / real(dim - 2)));
  }
  RopeAngles out = plain_rope(dim, theta);
  if (scaling.kind == RopeKind::kLinear) {
    for (double& frequency : out.frequencies) frequency /= scaling.factor;
  } else if (scaling.kind == RopeKind::kYarn) {
    scale_by_yarn(scaling, dim, theta, out);
  } else if (scaling.kind == RopeKind::kLlama3) {
    scale_by_wavelength(scaling, out);
  }
  return out;
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

}  // namespace hetermoe
