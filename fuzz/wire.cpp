#include "hetermoe/comm/wire.h"

#include <cstring>

#include "fuzz/messages.h"
#include "fuzz/target.h"

// A message as bytes. Its checksum is made right, unless the first byte of the input is odd.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  if (input.empty()) return;
  std::vector<char> bytes(input.begin() + 1, input.end());
  if (input[0] % 2 == 0) seal(bytes);
  const Message message = from_bytes(bytes, kStamp, "peer");
  if (to_bytes(kStamp, message) != bytes)
    throw std::logic_error("a message that was read is written as another");
}

std::vector<std::string> seeds() {
  std::vector<std::string> texts;
  for (const Message& message : seed_messages()) {
    const std::vector<char> bytes = to_bytes(kStamp, message);
    for (const char first : {'\0', '\1'}) texts.push_back(first + std::string(bytes.begin(), bytes.end()));
  }
  return texts;
}

}  // namespace

extern const Target kWire{"wire", run, seeds};

}  // namespace hetermoe::fuzz
