#pragma once
#include <array>
#include <string>
#include <vector>

#include "hetermoe/comm/transport.h"

// A Message in the form in which it travels between GPUs: floating-point tensors as they are, so that they
// need no copy on the host, and all else as the bytes of comm/wire.h. Where a call says what it expects,
// neither a header nor descriptions of tensors travel.
namespace hetermoe {

inline constexpr std::size_t kParcelHeader = 64;                      ///< numbers of a header
inline constexpr std::size_t kMostParcelTensors = kParcelHeader - 4;  ///< floating-point tensors of a message

struct Parcel {
  /// [0] op and round, [1] step, [2] bytes of the rest, [3] number of tensors, then their bytes. It arrives
  /// first, where it is needed.
  std::array<i64, kParcelHeader> header{};
  at::Tensor rest;                  ///< uint8 [bytes]
  std::vector<at::Tensor> tensors;  ///< contiguous; where a header announced them uint8 [bytes]
};

/// Tensors on `device`. May be called by any thread, as all here.
Parcel make_parcel(const ExchangeCall& call, Message message, c10::Device device);

/// Memory on `device` for what the header of a parcel announces. `where` names the peer. Throws
/// TransportError when no sender makes such a header, and when it is of another op or step.
void make_room(const ExchangeCall& call, Parcel& parcel, c10::Device device, const std::string& where);

/// The same for a message of a shape that is known.
Parcel room_for(const MessageShape& expected, c10::Device device);

/// The message of a parcel that has arrived in the memory of make_room(), or, with `expected`, of room_for().
/// Throws TransportError when the parts do not belong together.
Message message_of(const ExchangeCall& call, const Parcel& parcel, const std::string& where,
                   const MessageShape* expected = nullptr);

}  // namespace hetermoe
