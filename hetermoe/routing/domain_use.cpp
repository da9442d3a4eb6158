#include "hetermoe/routing/domain_use.h"

#include "hetermoe/base/index.h"
#include "hetermoe/base/rows.h"

namespace hetermoe {

DomainUse domain_use(const TraceHeader& header, const TraceStep& step) {
  DomainUse out;
  const std::size_t domains = header.domains.size();
  out.copies.assign(domains, std::vector<double>(header.layers.size() * idx(header.num_experts), 0));
  out.sequences.assign(domains, 0);
  const Activations rows = activations(header, step, -1, 0, "routes");
  for (std::size_t s = 0; s < rows.size(); ++s) {
    const std::uint32_t domain = step.sequences[s].domain;
    if (domain >= domains) continue;
    out.sequences[domain] += 1;
    for (std::size_t i = 0; i < rows[s].size(); ++i) out.copies[domain][i] += rows[s][i];
  }
  return out;
}

void move_mean(DomainUse& mean, const DomainUse& newest, double weight) {
  if (mean.empty()) mean.sequences = newest.sequences;
  for (std::size_t d = 0; d < mean.sequences.size(); ++d)
    mean.sequences[d] += weight * (newest.sequences[d] - mean.sequences[d]);
  move_mean(mean.copies, newest.copies, weight);
}

Activations expected_rows(const DomainUse& use, const std::vector<i32>& domains) {
  Activations out;
  for (const i32 domain : domains) {
    if (domain < 0 || idx(domain) >= use.sequences.size() || use.sequences[idx(domain)] <= 0) return {};
    std::vector<double>& row = out.emplace_back(use.copies[idx(domain)]);
    for (double& copies : row) copies /= use.sequences[idx(domain)];
  }
  return out;
}

std::vector<i32> domains_of(const TraceStep& step) {
  std::vector<i32> out;
  for (const TraceSequence& sequence : step.sequences) out.push_back(static_cast<i32>(sequence.domain));
  return out;
}

}  // namespace hetermoe
