#pragma once
#include <string>
#include <vector>

#include "hetermoe/comm/transport.h"

// A Message as bytes, for transports between processes.
namespace hetermoe {

std::vector<char> to_bytes(const Message& message);
/// Throws TransportError when the bytes are no message (cut or corrupted). `where` names the peer.
Message from_bytes(const std::vector<char>& bytes, const std::string& where);

}  // namespace hetermoe
