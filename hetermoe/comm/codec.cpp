#include "hetermoe/comm/codec.h"

#include <limits>

#include "hetermoe/base/error.h"

namespace hetermoe {
namespace {

constexpr double kLargestCode = 448;
constexpr i64 kScaleBytes = 4;

/// In fp32, of the numbers along `dim`, which stays with size 1. A scale below 2^-126 would itself have lost
/// digits.
at::Tensor scales_of(const at::Tensor& x, i64 dim) {
  const at::Tensor largest = x.abs().amax(dim, /*keepdim=*/true).to(at::kFloat);
  at::Tensor scale = (largest / kLargestCode).clamp_min_(std::numeric_limits<float>::min());
  scale.masked_fill_(largest == 0, 1);
  return scale.masked_fill_(largest.isinf(), std::numeric_limits<float>::quiet_NaN());
}

/// fp64 has no codes: what is beyond fp32 becomes infinite.
at::Tensor at_most_fp32(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? x.to(at::kFloat) : x; }

at::Tensor encode_fp8_row(const at::Tensor& rows_RD) {
  const at::Tensor x_RD = at_most_fp32(rows_RD);
  const i64 width = x_RD.size(1);
  // Of no or one row a result may have other strides than bytes can be read by.
  const at::Tensor scale_R1 = at::empty({x_RD.size(0), 1}, x_RD.options().dtype(at::kFloat));
  scale_R1.copy_(scales_of(x_RD, 1));
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

i64 num_groups(i64 rows) { return (rows + kRowsOfGroup - 1) / kRowsOfGroup; }

/// f(group [G, N, D], scales [G, 1, D]) for the full groups, then for the rest. x: [R, D], scales: [G, D].
template <class F>
void for_groups(const at::Tensor& x_RD, const at::Tensor& scale_GD, const F& f) {
  const i64 full = x_RD.size(0) / kRowsOfGroup, rest = x_RD.size(0) % kRowsOfGroup, width = x_RD.size(1);
  if (full > 0)
    f(x_RD.narrow(0, 0, full * kRowsOfGroup).view({full, kRowsOfGroup, width}),
      scale_GD.narrow(0, 0, full).unsqueeze(1));
  if (rest > 0)
    f(x_RD.narrow(0, full * kRowsOfGroup, rest).unsqueeze(0), scale_GD.narrow(0, full, 1).unsqueeze(1));
}

at::Tensor encode_fp8_group(const at::Tensor& rows_RD) {
  at::Tensor x_RD = at_most_fp32(rows_RD).contiguous();
  const i64 rows = x_RD.size(0), groups = num_groups(rows), width = x_RD.size(1);
  const at::Tensor scale_GD = at::empty({groups, width}, x_RD.options().dtype(at::kFloat)),
                   quotient_RD = at::empty({rows, width}, x_RD.options().dtype(at::kFloat));
  for_groups(x_RD, scale_GD, [](const at::Tensor& x_GND, const at::Tensor& scale_G1D) {
    scale_G1D.copy_(scales_of(x_GND, 1));
  });
  quotient_RD.copy_(x_RD);
  for_groups(quotient_RD, scale_GD,
             [](const at::Tensor& x_GND, const at::Tensor& scale_G1D) { x_GND.div_(scale_G1D); });
  at::Tensor out = at::empty({rows + kScaleBytes * groups, width}, x_RD.options().dtype(at::kByte));
  out.narrow(0, 0, rows).view(at::kFloat8_e4m3fn).copy_(quotient_RD);
  out.narrow(0, rows, kScaleBytes * groups)
      .copy_(scale_GD.view(at::kByte).view({kScaleBytes * groups, width}));
  return out;
}

at::Tensor decode_fp8_group(const at::Tensor& received, at::ScalarType dtype) {
  const i64 rows = num_rows(received, Wire::kFp8Group), groups = num_groups(rows), width = received.size(1);
  const at::Tensor scale_GD = received.narrow(0, rows, kScaleBytes * groups)
                                  .clone(at::MemoryFormat::Contiguous)
                                  .view({groups, kScaleBytes * width})
                                  .view(at::kFloat);
  const at::Tensor x_RD = received.narrow(0, 0, rows).view(at::kFloat8_e4m3fn).to(at::kFloat);
  for_groups(x_RD, scale_GD,
             [](const at::Tensor& x_GND, const at::Tensor& scale_G1D) { x_GND.mul_(scale_G1D); });
  return x_RD.to(dtype);
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
  if (has_groups(wire)) return {at::kByte, {rows + kScaleBytes * num_groups(rows), width}};
  if (has_scales(wire)) return {at::kByte, {rows, width + kScaleBytes}};
  return {scalar_type(wire), {rows, width}};
}

i64 num_rows(const at::Tensor& encoded, Wire wire) {
  const i64 all = encoded.size(0), group = kRowsOfGroup + kScaleBytes;
  return has_groups(wire) ? all - kScaleBytes * ((all + group - 1) / group) : all;
}

at::Tensor encode(const at::Tensor& x_RD, Wire wire) {
  if (has_groups(wire)) return encode_fp8_group(x_RD);
  return has_scales(wire) ? encode_fp8_row(x_RD) : x_RD.to(scalar_type(wire));
}

at::Tensor decode(const at::Tensor& received, Wire wire, at::ScalarType dtype) {
  if (has_groups(wire)) return decode_fp8_group(received, dtype);
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
