#pragma once
#include <algorithm>

#include "hetermoe/nn/reference.h"

namespace hetermoe {

inline double worst_difference(const TensorsByName& a, const TensorsByName& b) {
  double worst = 0;
  for (const auto& [name, tensor] : a) {
    worst = std::max(worst, (tensor - b.at(name)).abs().max().item<double>());
  }
  return worst;
}

}  // namespace hetermoe
