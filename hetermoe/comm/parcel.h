#pragma once
#include <string>
#include <vector>

#include "hetermoe/comm/wire.h"

// A Message in the form in which it travels between GPUs: tensors as they are, so that they need no copy on
// the host, and numbers, values and the stamp as the bytes of comm/wire.h. Shapes do not travel: each side
// knows what the other sends.
namespace hetermoe {

struct Parcel {
  at::Tensor rest;                  ///< uint8 [bytes]
  std::vector<at::Tensor> tensors;  ///< contiguous
};

/// Tensors on `device`. Does not wait for it. May be called by any thread, as all here.
Parcel make_parcel(const ExchangeCall& call, Message message, c10::Device device);

/// Memory on `device` for a message of this shape.
Parcel room_for(const MessageShape& expected, c10::Device device);

/// Whether the host has to read a message of this shape before it can go on.
bool is_for_host(const MessageShape& shape);

/// The message of a parcel that has arrived in the memory of room_for(); `rest` is on the host. Throws
/// TransportError when it is no message, or one with another stamp. `where` names the peer.
Message message_of(const Stamp& stamp, const at::Tensor& rest, std::vector<at::Tensor> tensors,
                   const std::string& where);

}  // namespace hetermoe
