#include "hetermoe/plan/wire.h"

#include <cmath>

#include "hetermoe/base/enum_count.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<Wire>::names() {
  static const std::vector<std::string> all =
      names_of_all<Wire>({"fp64", "fp32", "bf16", "fp16", "fp8_row", "fp8_group"});
  return all;
}

Wire wire_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp64:
      return Wire::kFp64;
    case Dtype::kFp32:
      return Wire::kFp32;
    case Dtype::kBf16:
      return Wire::kBf16;
    case Dtype::kFp16:
      return Wire::kFp16;
  }
  HM_CHECK(false, "dtype {}", static_cast<int>(dtype));
  return Wire::kFp32;
}

std::optional<Dtype> dtype_of(Wire wire) {
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
    if (wire_of(dtype) == wire) return dtype;
  }
  return {};
}

Wire without_scales(Wire wire) { return has_scales(wire) ? Wire::kBf16 : wire; }

namespace {

constexpr Bytes kCode = 1, kScale = 4;

}  // namespace

Bytes row_bytes(Wire wire, double width) {
  if (has_groups(wire)) return width * (kCode + kScale / static_cast<double>(kRowsOfGroup));
  const std::optional<Dtype> dtype = dtype_of(wire);
  return dtype ? width * bytes_of(*dtype) : width * kCode + kScale;
}

Bytes rows_bytes(Wire wire, double rows, double width) {
  if (!has_groups(wire)) return rows * row_bytes(wire, width);
  return width * (rows * kCode + std::ceil(rows / static_cast<double>(kRowsOfGroup)) * kScale);
}

}  // namespace hetermoe
