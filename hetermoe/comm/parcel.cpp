#include "hetermoe/comm/parcel.h"

#include <algorithm>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/device/host_copy.h"

namespace hetermoe {
namespace {

bool has_content(const MessageShape& shape) {
  return is_for_host(shape) ||
         std::any_of(shape.tensors.begin(), shape.tensors.end(),
                     [](const MessageShape::Part& part) { return c10::multiply_integers(part.sizes) > 0; });
}

bool travels(const MessageShape& shape, Travel travel) {
  return travel == Travel::kAll || has_content(shape);
}

/// uint8 [bytes]
at::Tensor bytes_on(c10::Device device, i64 bytes) {
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
}

}  // namespace

Parcels make_parcels(const ExchangeCall& call, std::vector<Message> messages, Travel travel,
                     c10::Device device) {
  Parcels out;
  std::vector<char> rests;
  for (Message& message : messages) {
    const bool goes = travels(shape_of(message), travel);
    std::vector<at::Tensor>& tensors = out.tensors.emplace_back();
    for (const at::Tensor& tensor : std::exchange(message.tensors, {}))
      tensors.push_back(to_device(tensor, device).contiguous());
    if (goes) {
      const std::vector<char> bytes = to_bytes(stamp_of(call), message);
      rests.insert(rests.end(), bytes.begin(), bytes.end());
    }
    out.rests.ends.push_back(static_cast<i64>(rests.size()));
  }
  out.rests.bytes = bytes_on(c10::DeviceType::CPU, static_cast<i64>(rests.size()));
  std::copy(rests.begin(), rests.end(), static_cast<char*>(out.rests.bytes.mutable_data_ptr()));
  return out;
}

Parcels room_for(std::span<const MessageShape> expected, Travel travel, c10::Device device) {
  Parcels out;
  i64 end = 0;
  for (const MessageShape& shape : expected) {
    std::vector<at::Tensor>& tensors = out.tensors.emplace_back();
    for (const MessageShape::Part& part : shape.tensors)
      tensors.push_back(at::empty(part.sizes, at::TensorOptions().dtype(part.dtype).device(device)));
    if (travels(shape, travel))
      end += wire_bytes({.numbers = shape.numbers, .values = shape.values, .tensors = {}});
    out.rests.ends.push_back(end);
  }
  out.rests.bytes = bytes_on(device, end);
  return out;
}

bool is_for_host(const MessageShape& shape) { return shape.numbers > 0 || shape.values > 0; }

Message message_of(const Stamp& stamp, const Rests& rests, std::size_t peer, const std::string& where) {
  if (rests.size(peer) == 0) return {};
  const char* const bytes = rests.data(peer);
  return from_bytes({bytes, bytes + rests.size(peer)}, stamp, where);
}

}  // namespace hetermoe
