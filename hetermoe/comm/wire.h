#pragma once
#include <string>
#include <vector>

#include "hetermoe/comm/transport.h"

// A Message as bytes, for transports between processes.
namespace hetermoe {

/// Which transfer a message belongs to. It travels with the message, so that a process which is at another
/// step or runs another schedule is found, where shapes alone would fit.
struct Stamp {
  i64 step = 0, op = 0, round = 0;
  bool operator==(const Stamp&) const = default;
};
inline Stamp stamp_of(const ExchangeCall& call) {
  return {.step = call.step, .op = call.op, .round = call.round};
}
/// Op and round as one number, and back.
i64 exchange_number(const Stamp& stamp);
Stamp stamp_from(i64 step, i64 exchange_number);

/// Throws TransportError with both stamps when they differ. `where` names the peer.
void check_stamp(const Stamp& got, const Stamp& expected, const std::string& where);

MessageShape shape_of(const Message& message);

std::vector<char> to_bytes(const Stamp& stamp, const Message& message);
/// How many bytes to_bytes() makes of a message of this shape.
i64 wire_bytes(const MessageShape& shape);
/// Throws TransportError when the bytes are no message (cut or corrupted), or one of another op or step.
Message from_bytes(const std::vector<char>& bytes, const Stamp& expected, const std::string& where);

}  // namespace hetermoe
