#include "hetermoe/comm/wire.h"

#include <algorithm>
#include <cstring>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

constexpr i64 kMagic = 0x484d4f45'00000002;  // "HMOE", version 2

class Writer {
 public:
  template <class T>
  void put(T value) {
    append(&value, sizeof value);
  }
  template <class T>
  void put_all(const std::vector<T>& values) {
    put<i64>(static_cast<i64>(values.size()));
    append(values.data(), values.size() * sizeof(T));
  }
  void append(const void* data, std::size_t size) {
    const std::size_t at = bytes.size();
    bytes.resize(at + size);
    if (size > 0) std::memcpy(bytes.data() + at, data, size);
  }
  std::vector<char> bytes;
};

class Reader {
 public:
  Reader(const std::vector<char>& bytes, const std::string& where) : bytes_(bytes), where_(where) {}
  template <class T>
  T get() {
    T value;
    take(&value, sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> get_all() {
    const i64 count = get<i64>();
    if (count < 0 || idx(count) > left() / sizeof(T)) broken();
    std::vector<T> values(idx(count));
    take(values.data(), values.size() * sizeof(T));
    return values;
  }
  void take(void* out, std::size_t size) {
    if (size > left()) broken();
    if (size > 0) std::memcpy(out, bytes_.data() + at_, size);
    at_ += size;
  }
  std::size_t left() const { return bytes_.size() - at_; }
  [[noreturn]] void broken() const {
    fail<TransportError>(where_, "a message of {} bytes is cut or corrupted", bytes_.size());
  }

 private:
  const std::vector<char>& bytes_;
  const std::string& where_;
  std::size_t at_ = 0;
};

/// Whether a tensor of these sizes fits into so many bytes. Sizes of which one is 0 need none, but their
/// product must be a number.
bool holds(std::size_t bytes, const std::vector<i64>& sizes, std::size_t element) {
  if (std::any_of(sizes.begin(), sizes.end(), [](i64 size) { return size < 0; })) return false;
  const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  std::size_t room = empty ? std::size_t{1} << 40 : bytes / element;
  for (const i64 size : sizes) room /= std::max<std::size_t>(idx(size), 1);
  return room > 0;
}

at::Tensor read_tensor(Reader& in) {
  const i64 dtype = in.get<i64>();
  if (dtype < 0 || dtype >= static_cast<i64>(at::ScalarType::Undefined)) in.broken();
  const auto type = static_cast<at::ScalarType>(dtype);
  if (!at::isFloatingType(type) && !at::isIntegralType(type, true)) in.broken();
  const std::vector<i64> sizes = in.get_all<i64>();
  if (!holds(in.left(), sizes, c10::elementSize(type))) in.broken();
  at::Tensor tensor = at::empty(sizes, type);
  in.take(tensor.mutable_data_ptr(), tensor.nbytes());
  return tensor;
}

}  // namespace

i64 exchange_number(const Stamp& stamp) { return stamp.op | stamp.round << 32; }

Stamp stamp_from(i64 step, i64 exchange_number) {
  return {.step = step, .op = exchange_number & 0xffffffff, .round = exchange_number >> 32};
}

void check_stamp(const Stamp& got, const Stamp& expected, const std::string& where) {
  if (got == expected) return;
  const auto text = [](const Stamp& stamp) {
    const std::string round = stamp.round > 0 ? fmt::format(" (exchange {})", stamp.round + 1) : "";
    return fmt::format("op {}{} of step {}", stamp.op, round, stamp.step);
  };
  fail<TransportError>(where,
                       "sent {}, expected {}: the processes are not at the same step, or do not run the same "
                       "schedule in the same order",
                       text(got), text(expected));
}

MessageShape shape_of(const Message& message) {
  MessageShape shape{.numbers = message.numbers.size(), .values = message.values.size(), .tensors = {}};
  for (const at::Tensor& tensor : message.tensors)
    shape.tensors.push_back({tensor.scalar_type(), tensor.sizes().vec()});
  return shape;
}

std::vector<char> to_bytes(const Stamp& stamp, const Message& message) {
  Writer out;
  out.bytes.reserve(idx(wire_bytes(shape_of(message))));
  out.put<i64>(kMagic);
  out.put<u64>(0);  // checksum of what follows
  out.put<i64>(stamp.step);
  out.put<i64>(exchange_number(stamp));
  out.put<double>(message.ready);
  out.put_all(message.numbers);
  out.put_all(message.values);
  out.put<i64>(static_cast<i64>(message.tensors.size()));
  for (const at::Tensor& tensor : message.tensors) {
    const at::Tensor whole = tensor.contiguous();
    out.put<i64>(static_cast<i64>(whole.scalar_type()));
    out.put_all(whole.sizes().vec());
    out.append(whole.const_data_ptr(), whole.nbytes());
  }
  const u64 sum = checksum(out.bytes.data() + 16, out.bytes.size() - 16);
  std::memcpy(out.bytes.data() + 8, &sum, 8);
  return std::move(out.bytes);
}

i64 wire_bytes(const MessageShape& shape) {
  constexpr std::size_t kWord = 8;
  std::size_t words = 8 + shape.numbers + shape.values;  // magic, checksum, stamp, ready, three counts
  std::size_t bytes = 0;
  for (const MessageShape::Part& part : shape.tensors) {
    words += 2 + part.sizes.size();
    bytes += c10::elementSize(part.dtype) * idx(c10::multiply_integers(part.sizes));
  }
  return static_cast<i64>(words * kWord + bytes);
}

Message from_bytes(const std::vector<char>& bytes, const Stamp& expected, const std::string& where) {
  Reader in(bytes, where);
  if (in.get<i64>() != kMagic) in.broken();
  const u64 sum = in.get<u64>();
  if (sum != checksum(bytes.data() + 16, bytes.size() - 16)) in.broken();
  const i64 step = in.get<i64>();
  check_stamp(stamp_from(step, in.get<i64>()), expected, where);
  Message message;
  message.ready = in.get<double>();
  message.numbers = in.get_all<i64>();
  message.values = in.get_all<double>();
  const i64 num_tensors = in.get<i64>();
  for (i64 t = 0; t < num_tensors; ++t) message.tensors.push_back(read_tensor(in));
  if (num_tensors < 0 || in.left() > 0) in.broken();
  return message;
}

}  // namespace hetermoe
