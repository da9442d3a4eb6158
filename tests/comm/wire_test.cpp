#include "hetermoe/comm/wire.h"

#include <gtest/gtest.h>

#include <cstring>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/error.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

constexpr Stamp kStamp = {.step = 4, .op = 17};

Message sample_with_empty_tensor() {
  Message message;
  message.numbers = {3, -1};
  message.values = {0.5};
  message.tensors = {at::arange(6).to(at::kDouble).view({2, 3}), at::empty({0, 4})};
  message.ready = 0.25;
  return message;
}

TEST(Wire, AMessageReadsBackAsItWas) {
  const Message back = from_bytes(to_bytes(kStamp, sample_with_empty_tensor()), kStamp, "test");
  EXPECT_EQ(back.numbers, sample_with_empty_tensor().numbers);
  EXPECT_EQ(back.values, sample_with_empty_tensor().values);
  EXPECT_EQ(back.ready, 0.25);
  ASSERT_EQ(back.tensors.size(), 2U);
  EXPECT_TRUE(at::equal(back.tensors[0], sample_with_empty_tensor().tensors[0]));
  EXPECT_EQ(back.tensors[1].sizes(), sample_with_empty_tensor().tensors[1].sizes());
}

TEST(Wire, TheShapeOfAMessageTellsItsBytes) {
  const Message message = sample_with_empty_tensor();
  MessageShape shape = {.numbers = 2, .values = 1, .tensors = {{at::kDouble, {2, 3}}, {at::kFloat, {0, 4}}}};
  EXPECT_EQ(wire_bytes(shape), static_cast<i64>(to_bytes(kStamp, message).size()));
  EXPECT_EQ(wire_bytes({}), static_cast<i64>(to_bytes(kStamp, Message()).size()));
}

/// A message of gigabytes is copied once, and never into storage that grows.
TEST(Wire, BytesOfAMessageHaveNoMoreRoomThanTheyNeed) {
  Message message = sample_with_empty_tensor();
  message.tensors.push_back(at::ones({1000}));
  const std::vector<char> bytes = to_bytes(kStamp, message);
  EXPECT_EQ(bytes.capacity(), bytes.size());
}

TEST(Wire, EveryFlippedBitOfEveryByteIsFound) {
  const std::vector<char> whole = to_bytes(kStamp, sample_with_empty_tensor());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<char> bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      EXPECT_THROW(from_bytes(bytes, kStamp, "test"), TransportError) << at;
    }
  }
}

TEST(Wire, EveryCutIsFound) {
  const std::vector<char> whole = to_bytes(kStamp, sample_with_empty_tensor());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(
        from_bytes({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}, kStamp, "test"),
        TransportError)
        << size;
  }
}

TEST(Wire, AMessageOfAnotherStepOrOpIsNamedWithBothSides) {
  const std::vector<char> bytes = to_bytes(kStamp, sample_with_empty_tensor());
  const std::string text =
      ": the processes are not at the same step, or do not run the same schedule in the same order";
  EXPECT_EQ(error_of<TransportError>([&] { from_bytes(bytes, {.step = 5, .op = 17}, "device 1"); }),
            "[device 1] sent op 17 of step 4, expected op 17 of step 5" + text);
  EXPECT_EQ(error_of<TransportError>([&] { from_bytes(bytes, {.step = 4, .op = 18}, "device 1"); }),
            "[device 1] sent op 17 of step 4, expected op 18 of step 4" + text);
}

TEST(Wire, AMessageOfAnotherExchangeOfTheOpIsNamed) {
  const Stamp second = {.step = 4, .op = 17, .round = 1};
  const std::vector<char> bytes = to_bytes(second, sample_with_empty_tensor());
  EXPECT_EQ(from_bytes(bytes, second, "device 1").numbers, sample_with_empty_tensor().numbers);
  const std::string error = error_of<TransportError>([&] { from_bytes(bytes, kStamp, "device 1"); });
  EXPECT_TRUE(error.starts_with("[device 1] sent op 17 (exchange 2) of step 4, expected op 17 of step 4: "))
      << error;
}

/// A message whose `at`-th number of eight bytes is another, with a checksum that fits.
std::vector<char> with_number(std::size_t at, i64 value) {
  std::vector<char> bytes = to_bytes(kStamp, sample_with_empty_tensor());
  std::memcpy(bytes.data() + 8 * at, &value, 8);
  const u64 sum = checksum(bytes.data() + 16, bytes.size() - 16);
  std::memcpy(bytes.data() + 8, &sum, 8);
  return bytes;
}

TEST(Wire, NumbersThatNoMessageHasAreAnErrorEvenUnderARightChecksum) {
  // 0 magic, 1 sum, 2 step, 3 op, 4 ready, 5 to 7 numbers, 8 to 9 values, 10 tensors, 11 dtype, 12 to 14
  // sizes
  ASSERT_EQ(from_bytes(with_number(4, 0), kStamp, "test").ready, 0);
  const i64 huge = i64{1} << 62;
  for (const std::size_t at : {5, 8, 10, 11, 12, 13, 14}) {
    for (const i64 value : {i64{-1}, huge, i64{1000}})
      EXPECT_THROW(from_bytes(with_number(at, value), kStamp, "test"), TransportError) << at << " " << value;
  }
}

}  // namespace
}  // namespace hetermoe
