#include "hetermoe/comm/parcel.h"

#include <gtest/gtest.h>

#include "hetermoe/comm/wire.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

const c10::Device kCpu(at::kCPU);
const ExchangeCall kCall{.step = 7, .op = 3, .name = "test", .participants = {}};

Message mixed_message() {
  Message message;
  message.numbers = {5, -1};
  message.values = {2.5};
  message.tensors = {at::arange(6).to(at::kFloat).view({2, 3}), at::arange(4), at::ones({0, 5}, at::kDouble),
                     at::ones({}, at::kBFloat16)};
  message.ready = 0.5;
  return message;
}

/// The parcel as its receiver has it: tensors as bytes.
Parcel arrived(const Parcel& sent) {
  Parcel parcel;
  parcel.header = sent.header;
  make_room(kCall, parcel, kCpu, "peer");
  parcel.rest.copy_(sent.rest);
  for (std::size_t t = 0; t < sent.tensors.size(); ++t) {
    if (sent.tensors[t].numel() == 0) continue;
    std::memcpy(parcel.tensors[t].mutable_data_ptr(), sent.tensors[t].const_data_ptr(),
                sent.tensors[t].nbytes());
  }
  return parcel;
}

/// A parcel with one tensor of 8 bytes that is described by these numbers.
std::string described_error(const std::vector<i64>& numbers) {
  Parcel parcel;
  Message rest;
  rest.numbers = numbers;
  rest.numbers.push_back(1);
  const std::vector<char> bytes = to_bytes(stamp_of(kCall), rest);
  parcel.rest = at::empty({static_cast<i64>(bytes.size())}, at::kByte);
  std::memcpy(parcel.rest.mutable_data_ptr(), bytes.data(), bytes.size());
  parcel.tensors = {at::zeros({8}, at::kByte)};
  return error_of<TransportError>([&] { message_of(kCall, parcel, "peer"); });
}

constexpr i64 kFloatType = static_cast<i64>(at::kFloat);

TEST(Parcel, ComesBackAsItWasSent) {
  const Message sent = mixed_message();
  const Message got = message_of(kCall, arrived(make_parcel(kCall, sent, kCpu)), "peer");
  EXPECT_EQ(got.numbers, sent.numbers);
  EXPECT_EQ(got.values, sent.values);
  EXPECT_EQ(got.ready, sent.ready);
  ASSERT_EQ(got.tensors.size(), sent.tensors.size());
  for (std::size_t t = 0; t < sent.tensors.size(); ++t) {
    EXPECT_EQ(got.tensors[t].scalar_type(), sent.tensors[t].scalar_type());
    EXPECT_TRUE(at::equal(got.tensors[t], sent.tensors[t])) << t;
  }
}

TEST(Parcel, WhatIsExpectedNeedsNeitherHeaderNorDescriptions) {
  const Message sent = mixed_message();
  MessageShape shape = {.numbers = sent.numbers.size(), .values = sent.values.size(), .tensors = {}};
  for (const at::Tensor& tensor : sent.tensors)
    shape.tensors.push_back({tensor.scalar_type(), tensor.sizes().vec()});
  ExchangeCall call = kCall;
  call.expected = {&shape, 1};
  const Parcel out = make_parcel(call, sent, kCpu);
  Parcel in = room_for(shape, kCpu);
  EXPECT_EQ(in.rest.sizes(), out.rest.sizes());
  in.rest.copy_(out.rest);
  for (std::size_t t = 0; t < in.tensors.size(); ++t) in.tensors[t].copy_(out.tensors[t]);
  const Message got = message_of(call, in, "peer", &shape);
  EXPECT_EQ(got.numbers, sent.numbers);
  ASSERT_EQ(got.tensors.size(), sent.tensors.size());
  for (std::size_t t = 0; t < sent.tensors.size(); ++t)
    EXPECT_TRUE(at::equal(got.tensors[t], sent.tensors[t]));
  shape.tensors.pop_back();
  EXPECT_EQ(error_of<TransportError>([&] { message_of(call, in, "peer", &shape); }),
            "[peer] 4 tensors came, 3 were expected");
}

TEST(Parcel, AHeaderThatNobodySendsIsAnError) {
  const Parcel sent = make_parcel(kCall, mixed_message(), kCpu);
  for (const auto& [place, value] : std::vector<std::pair<std::size_t, i64>>{
           {2, -1}, {2, i64{1} << 62}, {3, -1}, {3, 61}, {4, -8}, {6, i64{1} << 50}}) {
    Parcel parcel;
    parcel.header = sent.header;
    parcel.header[place] = value;
    EXPECT_NE(error_of<TransportError>([&] { make_room(kCall, parcel, kCpu, "peer"); }).find("is corrupted"),
              std::string::npos)
        << place << " " << value;
  }
}

TEST(Parcel, ADescriptionThatDoesNotFitWhatCameIsAnError) {
  EXPECT_EQ(described_error({2, 1, kFloatType, 0}), "no error");
  EXPECT_EQ(described_error({3, 1, kFloatType, 0}), "[peer] a tensor of 8 bytes came, 12 are described");
  EXPECT_EQ(described_error({-2, 1, kFloatType, 0}), "[peer] a tensor is described by a size of -2");
  EXPECT_EQ(described_error({i64{1} << 40, i64{1} << 40, 2, kFloatType, 0}),
            "[peer] a tensor is described by a size of 1099511627776");
  EXPECT_EQ(described_error({2, 5, kFloatType, 0}),
            fmt::format("[peer] a tensor is described by dtype {} and 5 sizes", kFloatType));
  EXPECT_EQ(described_error({2, 1, 999, 0}), "[peer] a tensor is described by dtype 999 and 1 sizes");
  EXPECT_EQ(described_error({2, 1, kFloatType, 1}), "[peer] a tensor is described as number 1 of 1");
  EXPECT_EQ(described_error({}), "[peer] a message lacks the shapes of its tensors");
}

}  // namespace
}  // namespace hetermoe
