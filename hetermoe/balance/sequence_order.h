#pragma once
#include <string>
#include <vector>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/balance/locality.h"
#include "hetermoe/routing/domain_use.h"
#include "hetermoe/routing/trace_routing.h"

// Which sequences of a step go to which device group.
namespace hetermoe {

/// Which kind of place each sequence of a step gets so that the sum of its values there is large: greedily,
/// then by swaps. values: [sequences][kinds]; room: [kinds] places, together as many as sequences.
std::vector<i32> order_sequences(const std::vector<std::vector<double>>& values,
                                 const std::vector<i64>& room);

/// The places of a plan's group for sequences, by the device group of the source.
struct PlacesOfGroup {
  i64 first = 0;                              ///< sequences of the step before this plan group
  std::vector<std::vector<DeviceId>> groups;  ///< device groups
  std::vector<i32> of_place;                  ///< [sequences of the plan group] device group
  std::vector<bool> mixed;                    ///< [device groups] has sources and owners of the layer
  std::vector<i64> of_microbatch;             ///< [microbatches] how many places
  i64 num_mixed() const;
};
/// text: see device_groups(). By the sources and owners of a layer.
PlacesOfGroup places_of_group(const std::string& text, const Cluster& cluster, const Placement& placement,
                              i32 group, i32 layer);

/// [layers][device groups][experts] copies that sequences of each device group would send if sequences that
/// use the same experts were together: clusters of as many kinds as mixed device groups. Empty where fewer
/// than two device groups are mixed, or there are fewer sequences.
std::vector<Usage> usage_by_clusters(const PlacesOfGroup& places, const TraceHeader& header,
                                     const TraceStep& step);
/// The same if sequences of the same domains were together.
std::vector<Usage> usage_by_domains(const PlacesOfGroup& places, const std::vector<i64>& layers,
                                    i64 num_experts, const DomainUse& use);

/// [sequences of the step][layers * experts] copies.
Activations chosen_rows(const TraceRouting& step);

/// Brings the sequences of a plan group to the places of the plan where most of their experts are. order: not
/// kAsTheyCome. layers: those with experts. rows: [sequences of the step][layers * experts] copies of each,
/// counted or expected. from: [places of the step] which sequence of it is at each place; those of other plan
/// groups stay. The order stays as it is where another keeps no more copies in their device group.
void order_places(const PlacesOfGroup& places, SequenceOrder order, const Placement& placement, i32 group,
                  const std::vector<i64>& layers, const Activations& rows, std::vector<i64>& from);

/// The step with its sequences at other places: [places] which of them is at each.
TraceStep permuted(const TraceStep& step, const TraceHeader& header, const std::vector<i64>& from);

}  // namespace hetermoe
