#pragma once
#include "hetermoe/routing/clusters.h"

// The choices of the sequences of a domain, estimated from earlier steps.
namespace hetermoe {

/// Means of steps. Empty: nothing is known.
struct DomainUse {
  Activations copies;             ///< [domains][layers * experts] of the sequences of a step together
  std::vector<double> sequences;  ///< [domains] in a step
  bool empty() const { return copies.empty(); }
  bool operator==(const DomainUse&) const = default;
};

/// The use of one step. Sequences without a domain are left out.
DomainUse domain_use(const TraceHeader& header, const TraceStep& step);

/// Moves a mean by `weight` (0 to 1) of the way to a newer step; an empty one becomes it.
void move_mean(DomainUse& mean, const DomainUse& newest, double weight);

/// [sequences][layers * experts] copies that a sequence of each of these domains has in the mean. Empty where
/// a domain has had no sequence yet, and for -1.
Activations expected_rows(const DomainUse& use, const std::vector<i32>& domains);

/// [sequences of the step] -1 = none
std::vector<i32> domains_of(const TraceStep& step);

}  // namespace hetermoe
