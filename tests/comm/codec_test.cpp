#include "hetermoe/comm/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hetermoe {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

/// [1, D] in fp32.
at::Tensor row(const std::vector<double>& numbers) {
  return at::tensor(numbers, at::kDouble).to(at::kFloat).unsqueeze(0);
}
std::vector<double> numbers_of(const at::Tensor& x) {
  const at::Tensor whole = x.to(at::kDouble).contiguous();
  return {whole.const_data_ptr<double>(), whole.const_data_ptr<double>() + whole.numel()};
}
at::Tensor codes_of(const at::Tensor& message_RB) {
  return message_RB.narrow(1, 0, message_RB.size(1) - 4).view(at::kFloat8_e4m3fn).to(at::kFloat);
}
at::Tensor scales_of(const at::Tensor& message_RB) {
  return message_RB.narrow(1, message_RB.size(1) - 4, 4).clone(at::MemoryFormat::Contiguous).view(at::kFloat);
}
at::Tensor there_and_back(const at::Tensor& x_RD, at::ScalarType dtype = at::kFloat,
                          Wire wire = Wire::kFp8Row) {
  return decode(encode(x_RD, wire), wire, dtype);
}
/// What E4M3 makes of a number where 448 beside it sets the scale to 1.
double rounded(double x) { return numbers_of(there_and_back(row({448, x})))[1]; }

/// The error that the format allows, of each number of rows [R, D]: 1/17 of a number of the normal range, and
/// half the smallest step, 2^-10 of a scale, below it. A little more, for divisions and products in fp32.
at::Tensor bound_of(const at::Tensor& x_RD) {
  const at::Tensor scale = x_RD.abs().amax(1, true) / 448;
  return at::maximum(x_RD.abs() / 17, scale.clamp_min(std::ldexp(1, -126)) * std::ldexp(1, -10)) * (1 + 1e-6);
}
/// Faults must not pass: NaN is above every bound.
bool within_bound(const at::Tensor& got, const at::Tensor& x_RD) {
  return ((got.to(at::kDouble) - x_RD).abs() <= bound_of(x_RD)).all().item<bool>();
}

TEST(Codec, RoundsAsE4m3Does) {
  for (const auto& [x, expected] :
       std::vector<std::pair<double, double>>{{0.3, 0.3125},
                                              {17, 16},
                                              {18, 18},
                                              {19, 20},
                                              {std::ldexp(1, -9), std::ldexp(1, -9)},
                                              {std::ldexp(1, -10), 0},
                                              {1.01 / 1024, std::ldexp(1, -9)}}) {
    EXPECT_EQ(rounded(x), expected) << x;
    EXPECT_EQ(rounded(-x), -expected) << x;
  }
  EXPECT_EQ(codes_of(encode(row({449, 1}), Wire::kFp8Row)).max().item<double>(), 448);
}

TEST(Codec, ARowIsItsCodesAndItsScale) {
  const at::Tensor message = encode(row({1, -0.5, 0.1, 0.003}), Wire::kFp8Row);
  EXPECT_EQ(message.sizes(), at::IntArrayRef({1, 8}));
  EXPECT_EQ(numbers_of(codes_of(message)), (std::vector<double>{448, -224, 44, 1.375}));
  EXPECT_FLOAT_EQ(scales_of(message).item<float>(), 1.0F / 448);
  const std::vector<double> back = numbers_of(decode(message, Wire::kFp8Row, at::kFloat));
  EXPECT_NEAR(back[0], 1, 1e-7);
  EXPECT_NEAR(back[1], -0.5, 1e-7);
  EXPECT_NEAR(back[2], 0.0982143, 1e-7);
  EXPECT_NEAR(back[3], 0.0030692, 1e-7);
}

/// A number that a code stands for is encoded as that code.
TEST(Codec, AllCodesAreTheSameThereAndBack) {
  at::Tensor bytes = at::arange(256, at::kByte);
  const at::Tensor codes = bytes.view(at::kFloat8_e4m3fn).to(at::kFloat);
  const at::Tensor finite = codes.masked_select(codes.isfinite());
  EXPECT_EQ(finite.numel(), 254);  // two stand for NaN
  EXPECT_EQ(finite.max().item<double>(), 448);
  const at::Tensor message = encode(finite.unsqueeze(0), Wire::kFp8Row);
  EXPECT_EQ(scales_of(message).item<double>(), 1);
  EXPECT_TRUE(at::equal(message.narrow(1, 0, 254).squeeze(0), bytes.masked_select(codes.isfinite())));
}

TEST(Codec, RandomRowsStayWithinTheBoundOfTheFormat) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  double worst = 0;
  for (int batch = 0; batch < 10; ++batch) {
    // Rows of all magnitudes, and in them numbers of all magnitudes.
    const at::TensorOptions fp64 = at::kDouble;
    const at::Tensor rows = at::randn({10000, 24}, generator, fp64) *
                            at::pow(2, at::randint(-30, 30, {10000, 1}, generator, fp64)) *
                            at::pow(2, at::randint(-8, 1, {10000, 24}, generator, fp64));
    const at::Tensor x = rows.to(at::kFloat).to(at::kDouble);
    const at::Tensor got = there_and_back(x.to(at::kFloat)).to(at::kDouble);
    EXPECT_TRUE(within_bound(got, x)) << batch;
    const at::Tensor normal = x.abs() >= x.abs().amax(1, true) / 448 * std::ldexp(1, -6);
    worst = std::max(worst, ((got - x).abs() / x.abs()).masked_select(normal).max().item<double>());
  }
  EXPECT_GT(worst, 0.99 / 17);  // the bound is that of the format, not just some bound
}

TEST(Codec, KeepsRowsOfZerosAndTheSmallest) {
  const at::Tensor zeros = encode(row({0, -0.0, 0}), Wire::kFp8Row);
  EXPECT_EQ(scales_of(zeros).item<double>(), 1);
  EXPECT_EQ(numbers_of(decode(zeros, Wire::kFp8Row, at::kFloat)), (std::vector<double>{0, 0, 0}));
  // Below 2^-126 a scale would itself be rounded.
  for (const int exponent : {-149, -140, -127, -126, -120}) {
    const at::Tensor x = row({std::ldexp(1, exponent), -std::ldexp(0.3, exponent), 0}).to(at::kDouble);
    EXPECT_TRUE(within_bound(there_and_back(x.to(at::kFloat)), x)) << exponent;
    EXPECT_GE(scales_of(encode(x.to(at::kFloat), Wire::kFp8Row)).item<double>(), std::ldexp(1, -126));
  }
  EXPECT_EQ(encode(at::empty({0, 6}), Wire::kFp8Row).sizes(), at::IntArrayRef({0, 10}));
  EXPECT_EQ(there_and_back(at::empty({0, 6})).sizes(), at::IntArrayRef({0, 6}));
}

TEST(Codec, ARowThatIsNotFiniteIsNanAndNoOther) {
  for (const double bad : {kInf, -kInf, kNan}) {
    const at::Tensor got = there_and_back(at::cat({row({1, 2, 3}), row({1, bad, 3}), row({4, 5, 6})}));
    EXPECT_TRUE(got[1].isnan().all().item<bool>()) << bad;
    EXPECT_TRUE(got[0].isfinite().all().item<bool>() && got[2].isfinite().all().item<bool>()) << bad;
  }
  const at::Tensor beyond_fp32 = at::tensor({1e300, 1.0}, at::kDouble).unsqueeze(0);
  EXPECT_TRUE(there_and_back(beyond_fp32).isnan().all().item<bool>());
}

TEST(Codec, TakesAndGivesEveryDtype) {
  const std::vector<double> numbers = {448, -224, 112, 384};
  for (const at::ScalarType from : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const at::ScalarType to : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor got = there_and_back(row(numbers).to(from), to);
      EXPECT_EQ(got.scalar_type(), to);
      EXPECT_TRUE(at::allclose(got.to(at::kFloat), row(numbers), 1e-6)) << from << to;
    }
  }
  // The largest number of fp16 does not become infinite.
  EXPECT_EQ(there_and_back(row({65504, 1}).to(at::kHalf), at::kHalf).max().item<double>(), 65504);
}

TEST(Codec, MessagesHaveTheShapeThatIsExpectedAndTheBytesThatArePriced) {
  const at::Tensor x = at::randn({5, 12});
  for (const Wire wire : {Wire::kFp64, Wire::kFp32, Wire::kBf16, Wire::kFp16, Wire::kFp8Row}) {
    EXPECT_EQ(num_rows(encode(x, wire), wire), 5);
    const at::Tensor message = encode(x, wire);
    const MessageShape::Part expected = encoded_part(wire, 5, 12);
    EXPECT_EQ(message.scalar_type(), expected.dtype) << name_of(wire);
    EXPECT_EQ(message.sizes(), at::IntArrayRef(expected.sizes)) << name_of(wire);
    EXPECT_EQ(static_cast<double>(message.nbytes()), 5 * row_bytes(wire, 12)) << name_of(wire);
    // A part of the rows is the message of these rows.
    EXPECT_TRUE(at::equal(message.narrow(0, 2, 2), encode(x.narrow(0, 2, 2), wire))) << name_of(wire);
  }
}

TEST(Codec, OtherWiresRoundToNearest) {
  const auto bf16 = [](double x) { return numbers_of(encode(row({x}), Wire::kBf16))[0]; };
  EXPECT_EQ(bf16(1 + std::ldexp(1, -8)), 1);
  EXPECT_EQ(bf16(1 + 3 * std::ldexp(1, -8)), 1.015625);
  EXPECT_NEAR(bf16(3e38), 3.00405527047391e38, 1e24);
  EXPECT_TRUE(std::signbit(bf16(-0.0)));
  EXPECT_EQ(numbers_of(encode(row({70000}), Wire::kFp16))[0], kInf);
  const at::Tensor as_it_came = encode(row({1, 2}), Wire::kBf16);
  EXPECT_TRUE(decode(as_it_came, Wire::kBf16, at::kFloat).is_same(as_it_came));
}

// --- a scale for each column of a group of rows ---

at::Tensor grouped(const at::Tensor& x_RD) { return there_and_back(x_RD, at::kFloat, Wire::kFp8Group); }
/// Of the last groups a message has; their scales in fp32 [G, D].
at::Tensor scales_of_groups(const at::Tensor& message) {
  const i64 rows = num_rows(message, Wire::kFp8Group);
  return message.narrow(0, rows, message.size(0) - rows)
      .clone(at::MemoryFormat::Contiguous)
      .view({-1, 4 * message.size(1)})
      .view(at::kFloat);
}
/// As within_bound(), of groups.
bool groups_within_bound(const at::Tensor& got, const at::Tensor& x_RD) {
  for (i64 first = 0; first < x_RD.size(0); first += kRowsOfGroup) {
    const i64 rows = std::min(kRowsOfGroup, x_RD.size(0) - first);
    if (!within_bound(got.narrow(0, first, rows).t(), x_RD.narrow(0, first, rows).t())) return false;
  }
  return true;
}

TEST(CodecGroups, AColumnHasTheCodesAndTheScaleOfARow) {
  const std::vector<double> numbers = {1, -0.5, 0.1, 0.003};
  const at::Tensor column = row(numbers).t(), message = encode(column, Wire::kFp8Group);
  EXPECT_EQ(message.sizes(), at::IntArrayRef({8, 1}));
  const at::Tensor codes = message.narrow(0, 0, 4).contiguous().view(at::kFloat8_e4m3fn).to(at::kFloat);
  EXPECT_EQ(numbers_of(codes), (std::vector<double>{448, -224, 44, 1.375}));
  EXPECT_FLOAT_EQ(scales_of_groups(message).item<float>(), 1.0F / 448);
  EXPECT_TRUE(at::equal(grouped(column).t(), there_and_back(row(numbers))));
}

/// As many of either kind as a test of seconds allows: full groups, one that is not full, less than a group.
TEST(CodecGroups, RandomRowsStayWithinTheBoundOfTheFormat) {
  at::Generator generator = at::detail::createCPUGenerator(8);
  const at::TensorOptions fp64 = at::kDouble;
  i64 all = 0;
  for (const i64 rows : {1, 5, 127, 128, 129, 256, 300, 20000, 40000, 40128}) {
    const at::Tensor x =
        (at::randn({rows, 24}, generator, fp64) * at::pow(2, at::randint(-30, 30, {1, 24}, generator, fp64)) *
         at::pow(2, at::randint(-8, 1, {rows, 24}, generator, fp64)))
            .to(at::kFloat)
            .to(at::kDouble);
    EXPECT_TRUE(groups_within_bound(grouped(x.to(at::kFloat)), x)) << rows;
    all += rows;
  }
  EXPECT_GT(all, 100000);
}

/// One column of its group, no more and no less.
TEST(CodecGroups, AColumnThatIsNotFiniteIsNanInItsGroup) {
  for (const double bad : {kInf, -kInf, kNan}) {
    at::Tensor x = at::ones({300, 3});
    x[200][1] = bad;
    const at::Tensor is_nan = grouped(x).isnan();
    EXPECT_TRUE(is_nan.narrow(0, 128, 128).select(1, 1).all().item<bool>()) << bad;
    EXPECT_EQ(is_nan.sum().item<i64>(), 128) << bad;
  }
  at::Tensor beyond_fp32 = at::ones({4, 2}, at::kDouble);
  beyond_fp32[3][0] = 1e300;
  EXPECT_EQ(grouped(beyond_fp32).isnan().sum().item<i64>(), 4);
  EXPECT_EQ(numbers_of(scales_of_groups(encode(at::zeros({5, 2}), Wire::kFp8Group))),
            (std::vector<double>{1, 1}));
}

TEST(CodecGroups, TakesAndGivesEveryDtypeAndAnyStrides) {
  const at::Tensor x = row({448, -224, 112, 384}).expand({3, 4});
  for (const at::ScalarType from : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const at::ScalarType to : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor got = there_and_back(x.to(from), to, Wire::kFp8Group);
      EXPECT_EQ(got.scalar_type(), to);
      EXPECT_TRUE(at::allclose(got.to(at::kFloat), x, 1e-6)) << from << to;
    }
  }
  const at::Tensor transposed = at::arange(600, at::kFloat).view({3, 200}).t();
  EXPECT_TRUE(at::equal(grouped(transposed), grouped(transposed.contiguous())));
}

/// A count of scales that does not go with the rows makes a message of a size that no rows have, or of other
/// rows: its receiver, who knows the rows, refuses either.
TEST(CodecGroups, MessagesTellTheirRowsAndNoOthersHaveTheirSize) {
  i64 last = -1;
  for (i64 rows = 0; rows < 700; ++rows) {
    const MessageShape::Part part = encoded_part(Wire::kFp8Group, rows, 3);
    const at::Tensor message = encode(at::ones({rows, 3}), Wire::kFp8Group);
    EXPECT_EQ(message.sizes(), at::IntArrayRef(part.sizes));
    EXPECT_EQ(message.scalar_type(), part.dtype);
    EXPECT_EQ(num_rows(message, Wire::kFp8Group), rows);
    EXPECT_EQ(static_cast<double>(message.nbytes()),
              rows_bytes(Wire::kFp8Group, static_cast<double>(rows), 3));
    EXPECT_GT(part.sizes[0], last);
    last = part.sizes[0];
  }
}

// --- sums of gradients ---

/// [D, N] gradients of D devices, and their sum in fp64.
struct Gradients {
  at::Tensor of_devices_DN, sum_N;
  explicit Gradients(i64 devices)
      : of_devices_DN(at::randn({devices, 1 << 14}, at::detail::createCPUGenerator(5),
                                at::TensorOptions().dtype(at::kFloat))),
        sum_N(of_devices_DN.to(at::kDouble).sum(0)) {}
  double error(const at::Tensor& sum) const {
    const std::vector<double> squares = numbers_of(wire_loss(sum_N, sum));
    return std::sqrt(squares[0] / squares[1]);
  }
};

/// All travel to the one that sums them, in fp32.
double error_of_wire(i64 devices) {
  const Gradients gradients(devices);
  at::Tensor sum = at::zeros_like(gradients.of_devices_DN[0]);
  for (i64 d = 0; d < devices; ++d) sum.add_(encode(gradients.of_devices_DN[d], Wire::kBf16));
  return gradients.error(sum);
}

/// A sum that goes from device to device is rounded by each.
double error_of_ring(i64 devices) {
  const Gradients gradients(devices);
  at::Tensor sum = encode(gradients.of_devices_DN[0], Wire::kBf16);
  for (i64 d = 1; d < devices; ++d)
    sum = encode(sum.to(at::kFloat) + gradients.of_devices_DN[d], Wire::kBf16);
  return gradients.error(sum);
}

TEST(CodecSums, TheErrorOfRoundedGradientsDoesNotGrowWithTheDevices) {
  for (const i64 devices : {2, 4, 8, 16, 32, 64}) {
    EXPECT_GT(error_of_wire(devices), 1.6e-3) << devices;
    EXPECT_LT(error_of_wire(devices), 1.7e-3) << devices;
  }
  EXPECT_GT(error_of_ring(8), 2 * error_of_wire(8));
  EXPECT_GT(error_of_ring(64), 4 * error_of_wire(64));
}

TEST(CodecSums, WhatIsLostIsSentLater) {
  at::Tensor lost = at::zeros({1});
  double plain = 0, kept = 0;
  for (int i = 0; i < 256; ++i) {
    plain += numbers_of(encode(at::full({1}, 1.001F), Wire::kBf16))[0];
    kept += numbers_of(encode_with_feedback(at::full({1}, 1.001F), lost, Wire::kBf16))[0];
  }
  EXPECT_EQ(plain, 256);
  EXPECT_EQ(kept, 256.25390625);
  EXPECT_NEAR(kept + numbers_of(lost)[0], 256.256, 1e-4);
}

TEST(CodecSums, NothingThatIsNotFiniteIsKept) {
  at::Tensor lost = at::full({4}, 0.5F);
  const at::Tensor sent = encode_with_feedback(
      at::tensor({kInf, kNan, 3.4e38, 1.0}, at::kDouble).to(at::kFloat), lost, Wire::kBf16);
  const std::vector<double> got = numbers_of(sent);
  EXPECT_EQ(got[0], kInf);
  EXPECT_TRUE(std::isnan(got[1]));
  EXPECT_EQ(got[2], kInf);  // beyond bf16
  EXPECT_EQ(numbers_of(lost), (std::vector<double>{0, 0, 0, 0}));
}

// --- planted faults: what the tests above compare finds them ---

TEST(CodecFaults, TheScaleOfTheNeighbouringRowIsFound) {
  const at::Tensor x = at::randn({6, 16}, at::kDouble);
  at::Tensor message = encode(x.to(at::kFloat), Wire::kFp8Row).clone();
  EXPECT_TRUE(within_bound(decode(message, Wire::kFp8Row, at::kFloat), x));
  message.narrow(1, 16, 4).copy_(message.narrow(1, 16, 4).roll(1, 0));
  EXPECT_FALSE(within_bound(decode(message, Wire::kFp8Row, at::kFloat), x));
}

TEST(CodecFaults, TheScalesOfTheNeighbouringColumnAndGroupAreFound) {
  const at::Tensor x = at::randn({300, 16}, at::kDouble);
  const at::Tensor message = encode(x.to(at::kFloat), Wire::kFp8Group);
  EXPECT_TRUE(groups_within_bound(decode(message, Wire::kFp8Group, at::kFloat), x));
  for (const auto& [shift, dim] : {std::pair{4, 1}, std::pair{1, 0}}) {
    at::Tensor wrong = message.clone();
    wrong.narrow(0, 300, 12).view({3, 64}).copy_(message.narrow(0, 300, 12).view({3, 64}).roll(shift, dim));
    EXPECT_FALSE(groups_within_bound(decode(wrong, Wire::kFp8Group, at::kFloat), x)) << dim;
  }
}

TEST(CodecFaults, ANumberThatIsClippedIsFound) {
  const at::Tensor x = row({1, kInf, 2});
  const at::Tensor clipped = x.clamp(-1e30, 1e30);  // an encoder that saturates
  EXPECT_TRUE(there_and_back(x).isnan().all().item<bool>());
  EXPECT_FALSE(there_and_back(clipped).isnan().any().item<bool>());
}

/// Of decoded rows in fp32 a sum is exact; in E4M3 it stops at 16, for 17 is halfway to 18 and goes back.
TEST(CodecFaults, ASumInTheTypeOfTheWireIsFound) {
  const at::Tensor x = there_and_back(row({1, 448}));
  at::Tensor sum = at::zeros({1, 2}), in_wire_type = at::zeros({1, 2});
  for (int i = 0; i < 100; ++i) {
    sum += x;
    in_wire_type = (in_wire_type + x).to(at::kFloat8_e4m3fn).to(at::kFloat);
  }
  EXPECT_EQ(numbers_of(sum)[0], 100);
  EXPECT_EQ(numbers_of(in_wire_type)[0], 16);
}

}  // namespace
}  // namespace hetermoe
