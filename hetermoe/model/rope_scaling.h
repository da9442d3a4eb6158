#pragma once
#include <vector>

#include "hetermoe/base/enum_count.h"
#include "hetermoe/base/fields.h"
#include "hetermoe/base/types.h"

// Rotary embedding of contexts that are longer than those of pre-training.
namespace hetermoe {

enum class RopeKind {
  kDefault,
  kLinear,   ///< positions divided by `factor`
  kDynamic,  ///< theta grows with the sequence where it is longer than max_positions (NTK)
  kYarn,     ///< slow turns divided by `factor`, fast ones kept, a ramp between (arXiv 2309.00071)
  kLlama3    ///< the same with bounds by wavelength
};
template <>
struct EnumNames<RopeKind> {
  static const std::vector<std::string>& names();  // default linear dynamic yarn llama3
};

/// The numbers of a kind. Numbers that the kind does not use have their default.
struct RopeScaling {
  RopeKind kind = RopeKind::kDefault;
  double factor = 1;
  i64 original_positions = 0;             ///< yarn, llama3: longest sequence of pre-training
  double beta_fast = 32, beta_slow = 1;   ///< yarn: turns over original_positions at both ends of the ramp
  bool truncate = true;                   ///< yarn: the ends of the ramp are whole elements
  double attention_factor = 0;            ///< yarn: on cosines and sines; 0 = follows from the next two
  double mscale = 0, mscale_all_dim = 0;  ///< yarn: 0 = not given
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3: original_positions / longest, shortest wave

  bool operator==(const RopeScaling&) const = default;
};

/// Element pair i at position p turns by p * frequencies[i]; cosines and sines are multiplied by `scale`.
struct RopeAngles {
  std::vector<double> frequencies;  ///< [dim / 2] radians per position
  double scale = 1;
  auto operator<=>(const RopeAngles&) const = default;
};
/// Without scaling: theta^(-2i/dim).
RopeAngles plain_rope(i64 dim, double theta);
RopeAngles scaled_rope(const RopeScaling& scaling, i64 dim, double theta, i64 seq_len, i64 max_positions);

/// 0.1 * mscale * ln(factor) + 1, by which yarn makes up for flatter scores. 1 for factors up to 1.
double yarn_mscale(double factor, double mscale);

}  // namespace hetermoe
