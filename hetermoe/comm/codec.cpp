#include "hetermoe/comm/codec.h"

#include <limits>

#include "hetermoe/base/error.h"

namespace hetermoe {
namespace {

constexpr double kLargestCode = 448;
constexpr i64 kScaleBytes = 4;

/// [R, 1] in fp32. A scale below 2^-126 would itself have lost digits.
at::Tensor scales_of(const at::Tensor& x_RD) {
  const at::Tensor largest = x_RD.abs().amax(1, /*keepdim=*/true).to(at::kFloat);
  at::Tensor scale = (largest / kLargestCode).clamp_min_(std::numeric_limits<float>::min());
  scale.masked_fill_(largest == 0, 1);
  return scale.masked_fill_(largest.isinf(), std::numeric_limits<float>::quiet_NaN());
}

at::Tensor encode_fp8_row(const at::Tensor& rows_RD) {
  const at::Tensor x_RD = rows_RD.scalar_type() == at::kDouble ? rows_RD.to(at::kFloat) : rows_RD;
  const i64 width = x_RD.size(1);
  // Of no or one row a result may have other strides than bytes can be read by.
  const at::Tensor scale_R1 = at::empty({x_RD.size(0), 1}, x_RD.options().dtype(at::kFloat));
  scale_R1.copy_(scales_of(x_RD));
  at::Tensor out_RB = at::empty({x_RD.size(0), width + kScaleBytes}, x_RD.options().dtype(at::kByte));
  out_RB.narrow(1, 0, width).view(at::kFloat8_e4m3fn).copy_(x_RD / scale_R1);
  out_RB.narrow(1, width, kScaleBytes).copy_(scale_R1.view(at::kByte));
  return out_RB;
}

at::Tensor decode_fp8_row(const at::Tensor& received_RB, at::ScalarType dtype) {
  const i64 width = received_RB.size(1) - kScaleBytes;
  // A copy, since fp32 is read at multiples of 4 bytes only.
  const at::Tensor scale_R1 =
      received_RB.narrow(1, width, kScaleBytes).clone(at::MemoryFormat::Contiguous).view(at::kFloat);
  at::Tensor x_RD = received_RB.narrow(1, 0, width).view(at::kFloat8_e4m3fn).to(at::kFloat);
  return x_RD.mul_(scale_R1).to(dtype);
}

}  // namespace

at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp64:
      return at::kDouble;
    case Dtype::kFp32:
      return at::kFloat;
    case Dtype::kBf16:
      return at::kBFloat16;
    case Dtype::kFp16:
      return at::kHalf;
  }
  HM_CHECK(false, "dtype of no name");
}

at::ScalarType scalar_type(Wire wire) {
  const std::optional<Dtype> dtype = dtype_of(wire);
  HM_CHECK(dtype, "{} has no type of its own", name_of(wire));
  return scalar_type(*dtype);
}

MessageShape::Part encoded_part(Wire wire, i64 rows, i64 width) {
  if (has_scales(wire)) return {at::kByte, {rows, width + kScaleBytes}};
  return {scalar_type(wire), {rows, width}};
}

at::Tensor encode(const at::Tensor& x_RD, Wire wire) {
  return has_scales(wire) ? encode_fp8_row(x_RD) : x_RD.to(scalar_type(wire));
}

at::Tensor decode(const at::Tensor& received, Wire wire, at::ScalarType dtype) {
  return has_scales(wire) ? decode_fp8_row(received, dtype) : received;
}

at::Tensor encode_with_feedback(at::Tensor exact, at::Tensor lost, Wire wire) {
  at::Tensor out = encode(exact.add_(lost), wire);
  lost.copy_(exact).sub_(decode(out, wire, exact.scalar_type())).nan_to_num_(0, 0, 0);
  return out;
}

at::Tensor wire_loss(const at::Tensor& exact, const at::Tensor& decoded) {
  const at::Tensor all = exact.to(at::kDouble);
  return at::stack({(all - decoded.to(at::kDouble)).square_().sum(), all.square().sum()});
}

}  // namespace hetermoe
