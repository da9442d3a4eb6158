#include "hetermoe/comm/parcel.h"

#include <cstring>
#include <utility>

#include "hetermoe/device/host_copy.h"

namespace hetermoe {
namespace {

at::Tensor to_tensor(const std::vector<char>& bytes) {
  at::Tensor tensor = at::empty({static_cast<i64>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace

Parcel make_parcel(const ExchangeCall& call, Message message, c10::Device device) {
  Parcel parcel;
  for (const at::Tensor& tensor : std::exchange(message.tensors, {}))
    parcel.tensors.push_back(to_device(tensor, device).contiguous());
  parcel.rest = to_device(to_tensor(to_bytes(stamp_of(call), message)), device);
  return parcel;
}

Parcel room_for(const MessageShape& expected, c10::Device device) {
  Parcel parcel;
  for (const MessageShape::Part& part : expected.tensors)
    parcel.tensors.push_back(at::empty(part.sizes, at::TensorOptions().dtype(part.dtype).device(device)));
  const i64 bytes = wire_bytes({.numbers = expected.numbers, .values = expected.values, .tensors = {}});
  parcel.rest = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  return parcel;
}

bool is_for_host(const MessageShape& shape) { return shape.numbers > 0 || shape.values > 0; }

Message message_of(const Stamp& stamp, const at::Tensor& rest, std::vector<at::Tensor> tensors,
                   const std::string& where) {
  const char* bytes = static_cast<const char*>(rest.const_data_ptr());
  Message message = from_bytes({bytes, bytes + rest.numel()}, stamp, where);
  message.tensors = std::move(tensors);
  return message;
}

}  // namespace hetermoe
