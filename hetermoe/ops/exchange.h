#pragma once
#include "hetermoe/ops/buffer_sizes.h"

// What dispatch and combine have in common.
namespace hetermoe {

/// Rows go from sources to owners in dispatch.F and combine.B, back in the other two.
std::vector<PortBytes> exchange_bytes(const WorkModel& model, const Op& op,
                                      std::span<const PlaceId> participants, const ExchangeLoad* load);
/// Messages that are no buffers themselves. A sender gathers rows, or converts them when the wire has another
/// type; a receiver joins the messages of several sources.
Bytes exchange_workspace(BufferSizes& sizes, const Op& op, DeviceId device);

/// Of a row on the wire, in the op's direction.
Bytes wire_row(const BufferSizes& sizes, const Op& op);

/// In each round of a layer with experts: forward, backward, and where backward resends rows.
bool is_in_exchange_rounds(const Op& op, const Placement& placement);

}  // namespace hetermoe
