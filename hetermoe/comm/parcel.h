#pragma once
#include <span>
#include <string>
#include <vector>

#include "hetermoe/comm/wire.h"

// Messages in the form in which they travel between GPUs. Tensors travel as they are, so that they need no
// copy on the host. The rest of each message (numbers, values and the stamp) travels as the bytes of
// comm/wire.h; the rests of one exchange share a tensor. Shapes do not travel: each side knows what the other
// sends. May be called by any thread, as all here.
namespace hetermoe {

/// The rests of the messages of one exchange, [peers].
struct Rests {
  at::Tensor bytes;       ///< uint8, those of all peers one after another
  std::vector<i64> ends;  ///< [peers] of each one's part of `bytes`

  i64 begin(std::size_t peer) const { return peer == 0 ? 0 : ends[peer - 1]; }
  /// Bytes of a peer's part. 0: its message does not travel.
  i64 size(std::size_t peer) const { return ends[peer] - begin(peer); }
  char* data(std::size_t peer) const { return static_cast<char*>(bytes.data_ptr()) + begin(peer); }
  bool empty() const { return bytes.numel() == 0; }
};

/// All that goes to the peers of one exchange, or comes from them.
struct Parcels {
  std::vector<std::vector<at::Tensor>> tensors;  ///< [peers] contiguous
  Rests rests;
};

/// Which messages travel.
enum class Travel {
  kContent,  ///< those with a number, a value or a tensor that is not empty
  kAll       ///< so that Message::ready comes from all
};

/// [peers] messages. Their tensors are on `device`, their rests still on the host. Does not wait for the
/// device.
Parcels make_parcels(const ExchangeCall& call, std::vector<Message> messages, Travel travel,
                     c10::Device device);

/// Memory on `device` for messages of these shapes, [peers].
Parcels room_for(std::span<const MessageShape> expected, Travel travel, c10::Device device);

/// Whether the host has to read a message of this shape before it can go on.
bool is_for_host(const MessageShape& shape);

/// The message of a peer, without its tensors, that has arrived in the memory of room_for(). The rests are on
/// the host. A message that does not travel is empty. Throws TransportError when the rest is no message, or
/// one with another stamp. `where` names the exchange and its peer.
Message message_of(const Stamp& stamp, const Rests& rests, std::size_t peer, const std::string& where);

}  // namespace hetermoe
