#pragma once
#include <vector>

#include "hetermoe/ops/op_row.h"
#include "hetermoe/placement/placement.h"

// Functions that dispatch and combine share.
namespace hetermoe {

struct ExchangeLoad;

/// Senders and receivers of rows in an op of an exchange. Ops use it, not the shares of a layer. Keeps a
/// reference to the placement.
class Exchange {
 public:
  Exchange(const Op& op, const Placement& placement)
      : op_(op), placement_(placement), to_owners_(goes_to_owners(op)), of_next_(is_of_next(op, placement)) {}

  /// A device sends, or receives, rows; perhaps none.
  bool sends(DeviceId device) const { return to_owners_ ? is_source(device) : is_owner(device); }
  bool receives(DeviceId device) const { return to_owners_ ? is_owner(device) : is_source(device); }

  /// The tokens whose rows travel, by the devices that have them: in the order of ExchangeLoad::tokens, or
  /// where these are devices of the next layer (of_next) of ExchangeLoad::next_tokens.
  TokenRanges sources() const {
    return placement_.ranges(op_.group, op_.layer + (of_next_ ? 1 : 0), op_.microbatch, op_.phase);
  }
  /// Devices that compute their experts, ascending: in the order of ExchangeLoad::rows_per_token.
  const std::vector<DeviceId>& owners() const { return placement_.owners(op_); }
  std::size_t owner_index(DeviceId owner) const { return position(owners(), owner); }
  bool is_source(DeviceId device) const {
    return placement_.has_range(op_.group, op_.layer + (of_next_ ? 1 : 0), op_.microbatch, device, op_.phase);
  }
  bool is_owner(DeviceId device) const { return placement_.is_owner(op_, device); }
  bool to_owners() const { return to_owners_; }
  /// Devices of the next layer are in the place of the sources: CombineTo::kNext.
  bool of_next() const { return of_next_; }
  /// All with a lane in the op, ascending.
  const std::vector<DeviceId>& participants() const {
    return of_next_ ? placement_.in_next_exchange(op_) : placement_.in_exchange(op_);
  }
  /// [sources] tokens.
  const std::vector<double>& tokens(const ExchangeLoad& load) const;
  double rows_between(const ExchangeLoad& load, std::size_t source, std::size_t owner) const;

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
  static bool is_of_next(const Op& op, const Placement& placement) {
    return needs_load(op.kind) && !row_of(op.kind).carries_routing_weights && op.phase != Phase::kRecompute &&
           placement.joins_at(op.group, op.layer + 1, op.microbatch);
  }

  bool to_owners_, of_next_;
};

/// Tokens [begin, end) of a microbatch that a source has in a chunk, and a receiver in the next layer: places
/// in the rows of shares. Those of a source follow one another.
struct NextSegment {
  std::size_t source = 0, receiver = 0;
  i64 begin = 0, end = 0;
  i64 tokens() const { return end - begin; }
};
/// All of a layer and microbatch, ascending by token; perhaps empty in this chunk. None where the layer after
/// `layer` does not join results (Placement::joins_at).
std::vector<NextSegment> next_segments(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                                       i32 chunk);
/// The move carries the residual stream of the layer before, or in backward the gradient of its output: its
/// results go to `move.layer` by themselves (Placement::joins_at).
bool carries_residual(const Op& move, const Placement& placement);
/// With the residual stream travel the owners of each token's choices.
bool carries_owners(const Op& move, const Placement& placement);
/// A device of the next layer takes no part in the dispatches of the layer before: the move of the residual
/// stream tells it the counts (Buffer::kLoad).
bool told_by_move(const Op& move, const Placement& placement, DeviceId receiver);
/// Tells a load who receives what of such a layer, unless it says so itself as loads of traces and of runs
/// do: tokens, and in the recorded form the rows of a source in proportion to the tokens of its segments.
void add_next(ExchangeLoad& load, std::size_t receivers, const std::vector<NextSegment>& segments);

/// Rows travel in two exchanges, because some go to a node once (NodeRows): between nodes, and inside them to
/// the other owners; back to sources the other way round, with sums between nodes.
bool goes_by_node(const Op& op, const Placement& placement);

class BufferSizes;
class WorkModel;
struct PortBytes;

/// Rows go from sources to owners in dispatch.F and combine.B, back in the other two.
std::vector<PortBytes> exchange_bytes(const WorkModel& model, const Op& op,
                                      std::span<const PlaceId> participants, const ExchangeLoad* load);
/// Messages that are no buffers themselves. A sender gathers rows, or converts them when the wire has another
/// type; a receiver joins the messages of several sources.
Bytes exchange_workspace(BufferSizes& sizes, const Op& op, DeviceId device);

/// Bytes of a row on the wire, in the op's direction.
Bytes wire_row(const BufferSizes& sizes, const Op& op);

/// In each round of a layer with experts: forward, backward, and where backward resends rows.
bool is_in_exchange_rounds(const Op& op, const Placement& placement);

}  // namespace hetermoe
