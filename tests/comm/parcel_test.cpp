#include "hetermoe/comm/parcel.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

const c10::Device kCpu(at::kCPU);
const ExchangeCall kCall{.step = 7, .op = 3, .name = "test", .participants = {}};

Message mixed_message() {
  Message message;
  message.numbers = {5, -1};
  message.values = {2.5};
  message.tensors = {at::arange(6).to(at::kFloat).view({2, 3}).t(), at::arange(4),
                     at::ones({0, 5}, at::kDouble), at::ones({}, at::kBFloat16)};
  message.ready = 0.5;
  return message;
}

MessageShape mixed_shape() {
  const Message message = mixed_message();
  MessageShape shape = {.numbers = message.numbers.size(), .values = message.values.size(), .tensors = {}};
  for (const at::Tensor& tensor : message.tensors)
    shape.tensors.push_back({tensor.scalar_type(), tensor.sizes().vec()});
  return shape;
}

TEST(Parcel, ComesBackAsItWasSent) {
  const Message sent = mixed_message();
  const Parcel out = make_parcel(kCall, sent, kCpu);
  Parcel in = room_for(mixed_shape(), kCpu);
  ASSERT_EQ(in.rest.sizes(), out.rest.sizes());
  ASSERT_EQ(in.tensors.size(), out.tensors.size());
  in.rest.copy_(out.rest);
  for (std::size_t t = 0; t < in.tensors.size(); ++t) {
    EXPECT_TRUE(out.tensors[t].is_contiguous());
    in.tensors[t].copy_(out.tensors[t]);
  }
  const Message got = message_of(stamp_of(kCall), in.rest, in.tensors, "peer");
  EXPECT_EQ(got.numbers, sent.numbers);
  EXPECT_EQ(got.values, sent.values);
  EXPECT_EQ(got.ready, sent.ready);
  for (std::size_t t = 0; t < sent.tensors.size(); ++t) {
    EXPECT_EQ(got.tensors[t].scalar_type(), sent.tensors[t].scalar_type());
    EXPECT_TRUE(at::equal(got.tensors[t], sent.tensors[t])) << t;
  }
}

TEST(Parcel, OneOfAnotherOpIsAnError) {
  ExchangeCall other = kCall;
  other.op = 4;
  const Parcel out = make_parcel(other, mixed_message(), kCpu);
  const std::string error =
      error_of<TransportError>([&] { message_of(stamp_of(kCall), out.rest, {}, "peer"); });
  EXPECT_NE(error.find("[peer] "), std::string::npos);
  EXPECT_NE(error.find("op 4 of step 7, expected op 3 of step 7"), std::string::npos) << error;
}

TEST(Parcel, TheHostReadsNumbersAndValuesAlone) {
  EXPECT_TRUE(is_for_host(mixed_shape()));
  EXPECT_FALSE(is_for_host({.numbers = 0, .values = 0, .tensors = mixed_shape().tensors}));
}

}  // namespace
}  // namespace hetermoe
