#include "hetermoe/comm/wire.h"

#include "fuzz/target.h"
#include "hetermoe/base/checksum.h"

// A message between processes as bytes. Its checksum (bytes 8 to 15, over all that follow) is made to fit
// unless the last byte is odd: else no mutation would get past it.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  std::vector<char> bytes(input.begin(), input.end());
  if (bytes.size() > 16 && bytes.back() % 2 == 0) {
    const u64 sum = checksum(bytes.data() + 16, bytes.size() - 16);
    std::memcpy(bytes.data() + 8, &sum, 8);
  }
  const Message message = from_bytes(bytes, "peer");
  to_bytes(message);
}

std::vector<std::string> seeds() {
  Message full;
  full.numbers = {1, -2, 3};
  full.values = {0.5};
  full.tensors = {at::ones({3, 4}), at::zeros({5}, at::kBFloat16), at::empty({0, 8})};
  std::vector<std::string> texts;
  for (const Message& message : {full, Message()}) {
    const std::vector<char> bytes = to_bytes(message);
    texts.emplace_back(bytes.begin(), bytes.end());
  }
  return texts;
}

}  // namespace

extern const Target kWire{"wire", run, seeds};

}  // namespace hetermoe::fuzz
