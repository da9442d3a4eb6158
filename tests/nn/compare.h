#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

namespace hetermoe::testing {

/// max |a - b| / max(max |b|, floor).
inline double deviation(const at::Tensor& a, const at::Tensor& b, double floor = 1e-30) {
  EXPECT_EQ(a.sizes(), b.sizes());
  if (a.numel() == 0) return 0;
  const at::Tensor wide = b.to(at::kDouble);
  return (a.to(at::kDouble) - wide).abs().max().item<double>() /
         std::max(wide.abs().max().item<double>(), floor);
}

/// The worst deviation over tensors by name; a tensor that should be almost zero is measured against the
/// largest.
inline double worst_deviation(const std::map<std::string, at::Tensor>& got,
                              const std::map<std::string, at::Tensor>& expected,
                              std::string* worst_name = nullptr) {
  double largest = 0, worst = 0;
  for (const auto& [name, value] : expected) largest = std::max(largest, value.abs().max().item<double>());
  EXPECT_EQ(got.size(), expected.size());
  for (const auto& [name, value] : expected) {
    if (!got.contains(name)) {
      ADD_FAILURE() << "no gradient of " << name;
      continue;
    }
    const double d = deviation(got.at(name), value, 1e-6 * largest);
    if (d > worst || !(d == d)) {
      worst = d;
      if (worst_name != nullptr) *worst_name = name;
    }
  }
  return worst;
}

}  // namespace hetermoe::testing
