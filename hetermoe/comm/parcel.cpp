#include "hetermoe/comm/parcel.h"

#include <cstring>
#include <map>
#include <utility>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/comm/wire.h"

namespace hetermoe {
namespace {

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

/// Gives the floating-point tensors that have come as bytes the dtypes and sizes that the numbers tell, and
/// takes these off. The key is the place in the message.
std::map<std::size_t, at::Tensor> take_described(std::vector<i64>& numbers,
                                                 const std::vector<at::Tensor>& bytes,
                                                 const std::string& where) {
  const i64 count = take_last(numbers, where);
  if (count != static_cast<i64>(bytes.size()))
    fail<TransportError>(where, "{} tensors came, {} are described", bytes.size(), count);
  std::map<std::size_t, at::Tensor> placed;
  for (i64 t = count - 1; t >= 0; --t) {
    const i64 place = take_last(numbers, where);
    const auto dtype = static_cast<at::ScalarType>(take_last(numbers, where));
    std::vector<i64> sizes(idx(take_last(numbers, where)));
    for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) *size = take_last(numbers, where);
    placed[idx(place)] = bytes[idx(t)].view(dtype).view(sizes);
  }
  return placed;
}

std::map<std::size_t, at::Tensor> take_expected(const MessageShape& shape,
                                                const std::vector<at::Tensor>& tensors) {
  std::map<std::size_t, at::Tensor> placed;
  std::size_t next = 0;
  for (std::size_t t = 0; t < shape.tensors.size(); ++t) {
    if (at::isFloatingType(shape.tensors[t].dtype)) placed[t] = tensors[next++];
  }
  return placed;
}

}  // namespace

Parcel wrap(const ExchangeCall& call, Message message, c10::Device device) {
  Parcel parcel;
  Message rest;
  rest.ready = message.ready;
  rest.values = std::move(message.values);
  rest.numbers = std::move(message.numbers);
  const bool described = call.expected.empty();
  for (std::size_t t = 0; t < message.tensors.size(); ++t) {
    const at::Tensor& tensor = message.tensors[t];
    if (!tensor.is_floating_point()) {
      rest.tensors.push_back(tensor.to(at::kCPU));
      continue;
    }
    parcel.tensors.push_back(tensor.to(device).contiguous());
    if (described) describe(tensor, t, rest.numbers);
  }
  if (described) rest.numbers.push_back(static_cast<i64>(parcel.tensors.size()));
  parcel.rest = to_tensor(to_bytes(stamp_of(call), rest), device);
  return parcel;
}

Parcel room_for(const MessageShape& shape, c10::Device device) {
  Parcel parcel;
  MessageShape rest = {.numbers = shape.numbers, .values = shape.values, .tensors = {}};
  for (const MessageShape::Part& part : shape.tensors) {
    if (at::isFloatingType(part.dtype))
      parcel.tensors.push_back(at::empty(part.sizes, at::TensorOptions().dtype(part.dtype).device(device)));
    else
      rest.tensors.push_back(part);
  }
  parcel.rest = at::empty({wire_bytes(rest)}, at::TensorOptions().dtype(at::kByte).device(device));
  return parcel;
}

Message unwrap(const ExchangeCall& call, const Parcel& parcel, const MessageShape* shape,
               const std::string& where) {
  const at::Tensor host = parcel.rest.to(at::kCPU);
  const char* bytes = static_cast<const char*>(host.const_data_ptr());
  Message message = from_bytes({bytes, bytes + host.numel()}, stamp_of(call), where);
  const std::vector<at::Tensor> others = std::move(message.tensors);
  const std::map<std::size_t, at::Tensor> placed =
      shape != nullptr ? take_expected(*shape, parcel.tensors)
                       : take_described(message.numbers, parcel.tensors, where);
  message.tensors.clear();
  std::size_t other = 0;
  for (std::size_t t = 0; t < others.size() + placed.size(); ++t) {
    const auto found = placed.find(t);
    message.tensors.push_back(found != placed.end() ? found->second : others.at(other++));
  }
  return message;
}

}  // namespace hetermoe
