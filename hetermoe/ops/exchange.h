#pragma once
#include <vector>

#include "hetermoe/ops/op_row.h"
#include "hetermoe/placement/placement.h"

// What dispatch and combine have in common.
namespace hetermoe {

/// Who sends rows to whom in an op of an exchange. Ops ask it, not the shares of a layer. Keeps a reference
/// to the placement.
class Exchange {
 public:
  Exchange(const Op& op, const Placement& placement)
      : op_(op), placement_(placement), to_owners_(goes_to_owners(op)) {}

  /// A device sends, or receives, rows; perhaps none.
  bool sends(DeviceId device) const { return to_owners_ ? is_source(device) : is_owner(device); }
  bool receives(DeviceId device) const { return to_owners_ ? is_owner(device) : is_source(device); }

  /// The tokens whose rows travel, by the devices that have them: in the order of ExchangeLoad::tokens.
  TokenRanges sources() const { return placement_.ranges(op_); }
  /// Devices that compute their experts, ascending: in the order of ExchangeLoad::rows_per_token.
  const std::vector<DeviceId>& owners() const { return placement_.owners(op_); }
  std::size_t owner_index(DeviceId owner) const { return position(owners(), owner); }
  bool is_source(DeviceId device) const { return placement_.is_source(op_, device); }
  bool is_owner(DeviceId device) const { return placement_.is_owner(op_, device); }
  bool to_owners() const { return to_owners_; }

  /// The rows that one device sends to another: those of the tokens of a source for the experts of an owner,
  /// as indices of an ExchangeLoad.
  struct Segment {
    DeviceId from = 0, to = 0;
    std::size_t source = 0, owner = 0;
  };
  Segment segment(std::size_t source, std::size_t owner) const {
    const DeviceId s = sources().device(source), o = owners()[owner];
    return to_owners_ ? Segment{s, o, source, owner} : Segment{o, s, source, owner};
  }
  /// None = nothing travels between them.
  std::optional<Segment> segment_between(DeviceId from, DeviceId to) const;

 private:
  Op op_;
  const Placement& placement_;
  bool to_owners_;
};

class BufferSizes;
class WorkModel;
struct ExchangeLoad;
struct PortBytes;

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
