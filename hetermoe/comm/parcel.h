#pragma once
#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "hetermoe/comm/transport.h"

namespace hetermoe {

/// A message in the form in which it travels between GPUs: floating-point tensors from and to their own
/// memory, the rest as bytes. Where a call says what it expects, dtypes and sizes do not travel.
struct Parcel {
  at::Tensor rest;                  ///< uint8 [bytes]
  std::vector<at::Tensor> tensors;  ///< contiguous, on the transport's device
};

Parcel wrap(const ExchangeCall& call, Message message, c10::Device device);

/// Memory for a message of this shape.
Parcel room_for(const MessageShape& shape, c10::Device device);

/// The message of a parcel that has arrived, in the memory of room_for() `shape`, or, without one (null),
/// with its tensors as uint8 [bytes]. Throws TransportError when it is cut or another op's; `where` names the
/// peer.
Message unwrap(const ExchangeCall& call, const Parcel& parcel, const MessageShape* shape,
               const std::string& where);

}  // namespace hetermoe
