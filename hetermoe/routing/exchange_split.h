#pragma once
#include <span>
#include <vector>

#include "hetermoe/base/fields.h"
#include "hetermoe/routing/copy_split.h"
#include "hetermoe/routing/guests.h"

// Which instance of an expert computes how many copies of one exchange, decided from the counts of that
// exchange. Executor and simulator ask the same functions.
namespace hetermoe {

/// How copies are divided within a step: by the shares of the plan; exactly over an expert's owners; over
/// these and guests; or, as a bound and in simulation only, at will over all owners of the layer.
enum class CopySplit { kShares, kExact, kGuests, kOracle };
template <>
struct EnumNames<CopySplit> {
  static const std::vector<std::string>& names();
};

/// Settings of all exchanges of a layer. Devices are numbered as destinations: positions in
/// Placement::owners().
struct SplitLayer {
  CopySplit kind = CopySplit::kShares;
  OwnerTable owners;
  std::vector<i64> speeds;          ///< [owners] at expert work
  GuestRoom room;                   ///< of the owners
  std::vector<i32> source_owner;    ///< [sources] which owner a source is, -1 = none
  std::vector<NodeId> source_node;  ///< [sources]
};

/// kind: not kOracle. Speeds, guest_slots and guest_cost are those of the plan.
SplitLayer split_layer(const Placement& placement, const Cluster& cluster, i32 group, i32 layer,
                       i32 microbatch, CopySplit kind);
/// How a plan divides copies.
CopySplit copy_split_of(const Plan& plan);
/// [owners] plan.split_speeds of a layer's owners.
std::vector<i64> owner_speeds(const Placement& placement, i32 group, i32 layer);

/// Copies of one exchange: [sources][experts].
using SourceCopies = std::vector<std::vector<i64>>;

/// The number of copies of each expert that each device computes.
struct ExchangeSplit {
  /// [sources] shares that give whole copies, see copy_destinations(). All owners are in it, also those
  /// without copies.
  std::vector<OwnerTable> of_source;
  std::vector<Guest> guests;
};
/// Writes the experts that the devices of a layer run to the fields `instances` and `guests` of a load;
/// nothing without guests.
void add_guests(ExchangeLoad& load, const SplitLayer& layer, const std::vector<Guest>& guests);
/// Counts how many copies of each owner in a chunk go to its guests. of_source: as in ExchangeSplit.
void count_guest_copies(ExchangeLoad& load, const SourceCopies& copies,
                        const std::vector<OwnerTable>& of_source);
/// chunks: [chunks] copies of a layer and microbatch. Guests are chosen for all chunks together; copies are
/// divided in each. Out: [chunks]; guests are those of the microbatch, the same in each.
std::vector<ExchangeSplit> split_exchange(const SplitLayer& layer, const std::vector<SourceCopies>& chunks);

/// Whose copies go where: [sources][instances] of one expert. copies: [sources]; instances: ascending, with
/// as many copies as the sources have. First what a source can keep on itself, then within nodes, then the
/// rest, each in ascending order.
std::vector<std::vector<i64>> source_quotas(const SplitLayer& layer, std::span<const i64> copies,
                                            std::span<const i32> instances, std::span<const i64> quotas);

/// [experts] copies of each expert among ids, which may hold ids that are no expert.
template <class Id>
std::vector<i64> count_copies(std::span<const Id> ids, i64 num_experts) {
  std::vector<i64> counts(static_cast<std::size_t>(num_experts), 0);
  for (const Id id : ids) {
    if (static_cast<std::size_t>(id) < counts.size()) ++counts[static_cast<std::size_t>(id)];
  }
  return counts;
}

}  // namespace hetermoe
