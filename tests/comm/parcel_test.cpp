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

/// Of three peers the second has nothing to say.
std::vector<Message> three_messages() {
  Message empty;
  empty.ready = 0.25;
  empty.tensors = {at::ones({0, 5})};
  return {mixed_message(), empty, mixed_message()};
}

std::vector<MessageShape> shapes_of(const std::vector<Message>& messages) {
  std::vector<MessageShape> shapes;
  for (const Message& message : messages) shapes.push_back(shape_of(message));
  return shapes;
}

void expect_equal(const Message& got, const Message& expected) {
  EXPECT_EQ(got.numbers, expected.numbers);
  EXPECT_EQ(got.values, expected.values);
  EXPECT_EQ(got.ready, expected.ready);
}

/// As NCCL moves them.
void move_parcels(const Parcels& out, Parcels& in) {
  ASSERT_EQ(in.rests.ends, out.rests.ends);
  in.rests.bytes.copy_(out.rests.bytes);
  ASSERT_EQ(in.tensors.size(), out.tensors.size());
  for (std::size_t p = 0; p < in.tensors.size(); ++p) {
    ASSERT_EQ(in.tensors[p].size(), out.tensors[p].size());
    for (std::size_t t = 0; t < in.tensors[p].size(); ++t) {
      EXPECT_TRUE(out.tensors[p][t].is_contiguous());
      in.tensors[p][t].copy_(out.tensors[p][t]);
    }
  }
}

TEST(Parcel, MessagesComeBackAsTheyWereSent) {
  const std::vector<Message> sent = three_messages();
  const Parcels out = make_parcels(kCall, sent, Travel::kAll, kCpu);
  Parcels in = room_for(shapes_of(sent), Travel::kAll, kCpu);
  move_parcels(out, in);
  for (std::size_t p = 0; p < sent.size(); ++p) {
    expect_equal(message_of(stamp_of(kCall), in.rests, p, "peer"), sent[p]);
    for (std::size_t t = 0; t < in.tensors[p].size(); ++t) {
      EXPECT_EQ(in.tensors[p][t].scalar_type(), sent[p].tensors[t].scalar_type());
      EXPECT_TRUE(at::equal(in.tensors[p][t], sent[p].tensors[t])) << t;
    }
  }
}

TEST(Parcel, AMessageWithoutContentDoesNotTravelUnlessAllDo) {
  const std::vector<Message> sent = three_messages();
  const Parcels out = make_parcels(kCall, sent, Travel::kContent, kCpu);
  Parcels in = room_for(shapes_of(sent), Travel::kContent, kCpu);
  EXPECT_EQ(out.rests.size(1), 0);
  EXPECT_EQ(out.rests.size(0), out.rests.size(2));
  move_parcels(out, in);
  expect_equal(message_of(stamp_of(kCall), in.rests, 1, "peer"), {});
  expect_equal(message_of(stamp_of(kCall), in.rests, 2, "peer"), sent[2]);
  EXPECT_EQ(make_parcels(kCall, {sent[1]}, Travel::kContent, kCpu).rests.bytes.numel(), 0);
}

TEST(Parcel, OneOfAnotherOpIsAnError) {
  ExchangeCall other = kCall;
  other.op = 4;
  const Parcels out = make_parcels(other, {mixed_message()}, Travel::kContent, kCpu);
  const std::string error =
      error_of<TransportError>([&] { message_of(stamp_of(kCall), out.rests, 0, "peer"); });
  EXPECT_NE(error.find("[peer] "), std::string::npos);
  EXPECT_NE(error.find("op 4 of step 7, expected op 3 of step 7"), std::string::npos) << error;
}

TEST(Parcel, TheHostReadsNumbersAndValuesAlone) {
  const MessageShape shape = shape_of(mixed_message());
  EXPECT_TRUE(is_for_host(shape));
  EXPECT_FALSE(is_for_host({.numbers = 0, .values = 0, .tensors = shape.tensors}));
}

}  // namespace
}  // namespace hetermoe
