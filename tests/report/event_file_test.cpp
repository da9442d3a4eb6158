#include "hetermoe/report/event_file.h"

#include <gtest/gtest.h>

#include <cstring>

#include "hetermoe/base/json.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

// The check value of the algorithm's catalogue, and a value of RFC 3720 (iSCSI): 32 zeros.
TEST(Crc32c, IsThePublishedOne) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
}

template <class T>
T take(std::string& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.erase(0, sizeof(T));
  return value;
}

/// The next record's event, its checksums compared as TensorBoard's reader does: turned back.
std::string take_event(std::string& bytes) {
  const auto unmasked = [](std::uint32_t masked) {
    const std::uint32_t turned = masked - 0xa282ead8U;
    return turned >> 17 | turned << 15;
  };
  const std::string head = bytes.substr(0, 8);
  const u64 size = take<u64>(bytes);
  EXPECT_EQ(unmasked(take<std::uint32_t>(bytes)), crc32c(head));
  const std::string event = bytes.substr(0, size);
  bytes.erase(0, size);
  EXPECT_EQ(unmasked(take<std::uint32_t>(bytes)), crc32c(event));
  return event;
}

TEST(EventFile, HoldsAVersionAndThenAnEventOfEachStep) {
  const WorkFolder folder;
  EventFile file(folder / "tb");
  file.add(300, 1.5, {{"loss", 2.0}, {"lr", 0.5}});
  std::string bytes = read_text(folder / "tb/events.out.tfevents.1.hetermoe");  // while it is open
  EXPECT_EQ(take_event(bytes).substr(9),
            "\x1a\x0d"
            "brain.Event:2");
  std::string expected = "\x09";
  expected += std::string("\0\0\0\0\0\0\xf8\x3f", 8);                 // 1.5
  expected += "\x10\xac\x02";                                         // step 300
  expected += "\x2a\x18";                                             // summary of 24 bytes
  expected += std::string("\x0a\x0b\x0a\x04loss\x15\0\0\0\x40", 13);  // 2.0f
  expected += std::string("\x0a\x09\x0a\x02lr\x15\0\0\0\x3f", 11);    // 0.5f
  EXPECT_EQ(take_event(bytes), expected);
  EXPECT_TRUE(bytes.empty());
}

TEST(EventFile, AFolderThatCannotBeIsNamed) {
  const WorkFolder folder;
  folder.file("tb", "no folder");
  EXPECT_NE(error_of<IoError>([&] { EventFile(folder / "tb"); }).find("cannot create file"),
            std::string::npos);
}

}  // namespace
}  // namespace hetermoe
