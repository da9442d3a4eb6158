#include "hetermoe/comm/wire.h"

#include <gtest/gtest.h>

#include "hetermoe/base/error.h"

namespace hetermoe {
namespace {

Message sample() {
  Message message;
  message.numbers = {3, -1};
  message.values = {0.5};
  message.tensors = {at::arange(6).to(at::kDouble).view({2, 3}), at::empty({0, 4})};
  message.ready = 0.25;
  return message;
}

TEST(Wire, AMessageReadsBackAsItWas) {
  const Message back = from_bytes(to_bytes(sample()), "test");
  EXPECT_EQ(back.numbers, sample().numbers);
  EXPECT_EQ(back.values, sample().values);
  EXPECT_EQ(back.ready, 0.25);
  ASSERT_EQ(back.tensors.size(), 2U);
  EXPECT_TRUE(at::equal(back.tensors[0], sample().tensors[0]));
  EXPECT_EQ(back.tensors[1].sizes(), sample().tensors[1].sizes());
}

TEST(Wire, EveryFlippedBitOfEveryByteIsFound) {
  const std::vector<char> whole = to_bytes(sample());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<char> bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      EXPECT_THROW(from_bytes(bytes, "test"), TransportError) << at;
    }
  }
}

TEST(Wire, EveryCutIsFound) {
  const std::vector<char> whole = to_bytes(sample());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(from_bytes({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}, "test"),
                 TransportError)
        << size;
  }
}

}  // namespace
}  // namespace hetermoe
