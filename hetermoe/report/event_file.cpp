#include "hetermoe/report/event_file.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "hetermoe/base/error.h"

// A record is its length, a checksum of that, the event, and a checksum of that (TFRecord). An event is a
// message of Protocol Buffers: fields with number and type in front. Of TensorBoard's messages three are
// needed, so they are written by hand: Event {1: double time, 2: int64 step, 3: string version, 5: Summary},
// Summary {1: repeated Value}, Value {1: string tag, 2: float}.
namespace hetermoe {
namespace {

enum class WireType { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

void add_varint(std::string& out, u64 value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void add_key(std::string& out, u64 field, WireType wire) {
  add_varint(out, field << 3 | static_cast<u64>(wire));
}

template <class T>
void add_fixed(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void add_bytes(std::string& out, u64 field, std::string_view bytes) {
  add_key(out, field, WireType::kLength);
  add_varint(out, bytes.size());
  out += bytes;
}

std::string event_at(double time_s) {
  std::string out;
  add_key(out, 1, WireType::kFixed64);
  add_fixed(out, time_s);
  return out;
}

/// Checksums in records are turned, so that records can hold records.
std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> out{};
    for (std::uint32_t i = 0; i < out.size(); ++i) {
      std::uint32_t rest = i;
      for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ ((rest & 1) != 0 ? 0x82f63b78U : 0);
      out[i] = rest;
    }
    return out;
  }();
  std::uint32_t crc = 0xffffffffU;
  for (const char c : bytes) crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ crc >> 8;
  return ~crc;
}

EventFile::EventFile(const std::filesystem::path& folder) : path_(folder / "events.out.tfevents.1.hetermoe") {
  std::error_code ignored;  // opening says what is wrong
  std::filesystem::create_directories(folder, ignored);
  out_.open(path_, std::ios::binary | std::ios::trunc);
  if (!out_) fail<IoError>(path_.string(), "cannot create file: {}", std::strerror(errno));
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event = event_at(now.count());
  add_bytes(event, 3, "brain.Event:2");
  write(event);
}

void EventFile::add(i64 step, double time_s, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [name, value] : scalars) {
    std::string one;
    add_bytes(one, 1, name);
    add_key(one, 2, WireType::kFixed32);
    add_fixed(one, static_cast<float>(value));
    add_bytes(summary, 1, one);
  }
  std::string event = event_at(time_s);
  add_key(event, 2, WireType::kVarint);
  add_varint(event, static_cast<u64>(step));
  add_bytes(event, 5, summary);
  write(event);
}

void EventFile::write(const std::string& event) {
  std::string head, record;
  add_fixed<u64>(head, event.size());
  record = head;
  add_fixed(record, masked_crc(head));
  record += event;
  add_fixed(record, masked_crc(event));
  out_.write(record.data(), static_cast<std::streamsize>(record.size()));
  out_.flush();
  if (!out_) fail<WriteError>(path_.string(), "cannot write: {}", std::strerror(errno));
}

}  // namespace hetermoe
