#include "hetermoe/comm/parcel.h"

#include <cstring>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/comm/wire.h"

namespace hetermoe {
namespace {

/// No message is as large: a header that announces more was never sent.
constexpr i64 kMostBytes = i64{1} << 40;

/// Puts the place, dtype and shape of a floating-point tensor into the numbers of the rest: its own count of
/// sizes last, so that they are taken off from behind.
void describe(const at::Tensor& tensor, std::size_t place, std::vector<i64>& numbers) {
  numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
  numbers.push_back(tensor.dim());
  numbers.push_back(static_cast<i64>(tensor.scalar_type()));
  numbers.push_back(static_cast<i64>(place));
}

at::Tensor to_tensor(const std::vector<char>& bytes, c10::Device device) {
  at::Tensor host = at::empty({static_cast<i64>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(host.mutable_data_ptr(), bytes.data(), bytes.size());
  return host.to(device);
}

i64 take_last(std::vector<i64>& numbers, const std::string& where) {
  if (numbers.empty()) fail<TransportError>(where, "a message lacks the shapes of its tensors");
  const i64 last = numbers.back();
  numbers.pop_back();
  return last;
}

struct Described {
  i64 place = 0;
  at::ScalarType dtype = at::kFloat;
  std::vector<i64> sizes;
};

/// Takes what describe() has put at the end of the numbers.
Described take_description(std::vector<i64>& numbers, const std::string& where) {
  Described out;
  out.place = take_last(numbers, where);
  const i64 dtype = take_last(numbers, where), dim = take_last(numbers, where);
  const bool known = dtype >= 0 && dtype < static_cast<i64>(at::ScalarType::NumOptions) &&
                     at::isFloatingType(static_cast<at::ScalarType>(dtype));
  if (!known || dim < 0 || dim > static_cast<i64>(numbers.size()))
    fail<TransportError>(where, "a tensor is described by dtype {} and {} sizes", dtype, dim);
  out.dtype = static_cast<at::ScalarType>(dtype);
  out.sizes.assign(numbers.end() - dim, numbers.end());
  numbers.resize(numbers.size() - idx(dim));
  return out;
}

/// Bytes that have arrived, as the tensor that was sent.
at::Tensor as_described(const at::Tensor& bytes, const Described& described, const std::string& where) {
  const i64 element = static_cast<i64>(c10::elementSize(described.dtype));
  i64 expected = element;
  for (const i64 size : described.sizes) {
    if (size < 0 || __builtin_mul_overflow(expected, size, &expected))
      fail<TransportError>(where, "a tensor is described by a size of {}", size);
  }
  if (expected != bytes.numel())
    fail<TransportError>(where, "a tensor of {} bytes came, {} are described", bytes.numel(), expected);
  return bytes.view(described.dtype).view(described.sizes);
}

void fill_header(const ExchangeCall& call, Parcel& parcel) {
  HM_CHECK(parcel.tensors.size() <= kMostParcelTensors, "{}: a message of {} tensors, at most {} travel",
           call.name, parcel.tensors.size(), kMostParcelTensors);
  parcel.header[0] = exchange_number(stamp_of(call));
  parcel.header[1] = call.step;
  parcel.header[2] = parcel.rest.numel();
  parcel.header[3] = static_cast<i64>(parcel.tensors.size());
  for (std::size_t t = 0; t < parcel.tensors.size(); ++t)
    parcel.header[4 + t] = static_cast<i64>(parcel.tensors[t].nbytes());
}

/// Puts the floating-point tensors where they were among all tensors of the message; the other places stay
/// undefined.
std::vector<at::Tensor> place_described(std::vector<i64>& numbers, const Parcel& parcel, std::size_t others,
                                        const std::string& where) {
  const i64 count = take_last(numbers, where);
  if (count != static_cast<i64>(parcel.tensors.size()))
    fail<TransportError>(where, "{} tensors came, {} are described", parcel.tensors.size(), count);
  std::vector<at::Tensor> placed(others + parcel.tensors.size());
  for (i64 t = count - 1; t >= 0; --t) {
    const Described described = take_description(numbers, where);
    const i64 places = static_cast<i64>(placed.size());
    if (described.place < 0 || described.place >= places || placed[idx(described.place)].defined())
      fail<TransportError>(where, "a tensor is described as number {} of {}", described.place, places);
    placed[idx(described.place)] = as_described(parcel.tensors[idx(t)], described, where);
  }
  return placed;
}

/// The same by the shape that was expected; the memory has it already.
std::vector<at::Tensor> place_expected(const MessageShape& expected, const Parcel& parcel, std::size_t others,
                                       const std::string& where) {
  if (others + parcel.tensors.size() != expected.tensors.size()) {
    fail<TransportError>(where, "{} tensors came, {} were expected", others + parcel.tensors.size(),
                         expected.tensors.size());
  }
  std::vector<at::Tensor> placed(expected.tensors.size());
  std::size_t next = 0;
  for (std::size_t t = 0; t < placed.size(); ++t) {
    if (at::isFloatingType(expected.tensors[t].dtype)) placed[t] = parcel.tensors[next++];
  }
  return placed;
}

}  // namespace

Parcel make_parcel(const ExchangeCall& call, Message message, c10::Device device) {
  const bool has_header = call.expected.empty();
  Parcel parcel;
  Message rest;
  rest.ready = message.ready;
  rest.values = std::move(message.values);
  rest.numbers = std::move(message.numbers);
  for (std::size_t t = 0; t < message.tensors.size(); ++t) {
    const at::Tensor& tensor = message.tensors[t];
    if (!tensor.is_floating_point()) {
      rest.tensors.push_back(tensor.to(at::kCPU));
      continue;
    }
    parcel.tensors.push_back(tensor.to(device).contiguous());
    if (has_header) describe(tensor, t, rest.numbers);
  }
  if (has_header) rest.numbers.push_back(static_cast<i64>(parcel.tensors.size()));
  parcel.rest = to_tensor(to_bytes(stamp_of(call), rest), device);
  if (has_header) fill_header(call, parcel);
  return parcel;
}

void make_room(const ExchangeCall& call, Parcel& parcel, c10::Device device, const std::string& where) {
  const std::array<i64, kParcelHeader>& header = parcel.header;
  check_stamp(stamp_from(header[1], header[0]), stamp_of(call), where);
  const i64 count = header[3];
  bool sound = count >= 0 && count <= static_cast<i64>(kMostParcelTensors);
  for (std::size_t i = 2; i < kParcelHeader; ++i) sound = sound && header[i] >= 0 && header[i] <= kMostBytes;
  if (!sound)
    fail<TransportError>(where, "a header of {} bytes and {} tensors is corrupted", header[2], count);
  const at::TensorOptions bytes = at::TensorOptions().dtype(at::kByte).device(device);
  parcel.rest = at::empty({header[2]}, bytes);
  for (i64 t = 0; t < count; ++t) parcel.tensors.push_back(at::empty({header[idx(4 + t)]}, bytes));
}

Parcel room_for(const MessageShape& expected, c10::Device device) {
  Parcel parcel;
  MessageShape rest = {.numbers = expected.numbers, .values = expected.values, .tensors = {}};
  for (const MessageShape::Part& part : expected.tensors) {
    if (at::isFloatingType(part.dtype))
      parcel.tensors.push_back(at::empty(part.sizes, at::TensorOptions().dtype(part.dtype).device(device)));
    else
      rest.tensors.push_back(part);
  }
  parcel.rest = at::empty({wire_bytes(rest)}, at::TensorOptions().dtype(at::kByte).device(device));
  return parcel;
}

Message message_of(const ExchangeCall& call, const Parcel& parcel, const std::string& where,
                   const MessageShape* expected) {
  const at::Tensor host = parcel.rest.to(at::kCPU);
  const char* bytes = static_cast<const char*>(host.const_data_ptr());
  Message message = from_bytes({bytes, bytes + host.numel()}, stamp_of(call), where);
  const std::vector<at::Tensor> others = std::move(message.tensors);
  message.tensors = expected != nullptr ? place_expected(*expected, parcel, others.size(), where)
                                        : place_described(message.numbers, parcel, others.size(), where);
  std::size_t other = 0;
  for (at::Tensor& tensor : message.tensors) {
    if (!tensor.defined()) tensor = others[other++];
  }
  return message;
}

}  // namespace hetermoe
