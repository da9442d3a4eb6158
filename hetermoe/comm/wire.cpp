#include "hetermoe/comm/wire.h"

#include <cstring>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/error.h"

namespace hetermoe {
namespace {

constexpr i64 kMagic = 0x484d4f45'00000001;  // "HMOE", version 1

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
    if (count < 0 || static_cast<std::size_t>(count) > (bytes_.size() - at_) / sizeof(T)) broken();
    std::vector<T> values(static_cast<std::size_t>(count));
    take(values.data(), values.size() * sizeof(T));
    return values;
  }
  void take(void* out, std::size_t size) {
    if (size > bytes_.size() - at_) broken();
    if (size > 0) std::memcpy(out, bytes_.data() + at_, size);
    at_ += size;
  }
  [[noreturn]] void broken() const {
    fail<TransportError>(where_, "a message of {} bytes is cut or corrupted", bytes_.size());
  }

 private:
  const std::vector<char>& bytes_;
  const std::string& where_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<char> to_bytes(const Message& message) {
  Writer out;
  out.put<i64>(kMagic);
  out.put<u64>(0);  // checksum of what follows
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

Message from_bytes(const std::vector<char>& bytes, const std::string& where) {
  Reader in(bytes, where);
  if (in.get<i64>() != kMagic) in.broken();
  const u64 sum = in.get<u64>();
  if (sum != checksum(bytes.data() + 16, bytes.size() - 16)) in.broken();
  Message message;
  message.ready = in.get<double>();
  message.numbers = in.get_all<i64>();
  message.values = in.get_all<double>();
  const i64 num_tensors = in.get<i64>();
  for (i64 t = 0; t < num_tensors; ++t) {
    const auto dtype = static_cast<at::ScalarType>(in.get<i64>());
    const std::vector<i64> sizes = in.get_all<i64>();
    at::Tensor tensor = at::empty(sizes, dtype);
    in.take(tensor.mutable_data_ptr(), tensor.nbytes());
    message.tensors.push_back(std::move(tensor));
  }
  return message;
}

}  // namespace hetermoe
