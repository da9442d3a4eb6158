#include "hetermoe/routing/split_routing.h"

#include <numeric>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// Copies and rows of each source over all owners, in proportion to their speeds.
void divide_at_will(ExchangeLoad& load, const std::vector<i64>& speeds) {
  const double all_speeds = real(std::accumulate(speeds.begin(), speeds.end(), i64{0}));
  const std::size_t num_owners = load.num_owners();
  for (std::vector<double>* figures : {&load.rows, &load.copies}) {
    for (std::size_t s = 0; s < load.num_sources(); ++s) {
      double* const of_source = figures->data() + s * num_owners;
      const double sum = std::accumulate(of_source, of_source + num_owners, 0.0);
      for (std::size_t o = 0; o < num_owners; ++o) of_source[o] = sum * real(speeds[o]) / all_speeds;
    }
  }
}

}  // namespace

SplitRouting::SplitRouting(const TraceRouting& trace, const Cluster& cluster, CopySplit kind)
    : trace_(trace), cluster_(cluster), kind_(kind) {}

std::vector<SourceCopies> SplitRouting::copies(const Placement& placement, i32 group, i32 layer,
                                               i32 microbatch) const {
  std::vector<SourceCopies> chunks;
  for (i32 c = 0; c < placement.plan().chunks; ++c)
    chunks.push_back(trace_.copies(placement, group, layer, microbatch, c));
  return chunks;
}

std::vector<ExchangeSplit> SplitRouting::split(const Placement& placement, i32 group, i32 layer,
                                               i32 microbatch) const {
  if (kind_ == CopySplit::kShares || kind_ == CopySplit::kOracle)
    return std::vector<ExchangeSplit>(idx(placement.plan().chunks));
  return split_exchange(split_layer(placement, cluster_, group, layer, microbatch, kind_),
                        copies(placement, group, layer, microbatch));
}

ExchangeLoad SplitRouting::exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                                    i32 chunk) const {
  if (kind_ == CopySplit::kShares || placement.at_sources(group, layer))
    return trace_.exchange(placement, group, layer, microbatch, chunk);
  if (kind_ == CopySplit::kOracle) {
    ExchangeLoad load = trace_.exchange(placement, group, layer, microbatch, chunk);
    divide_at_will(load, owner_speeds(placement, group, layer));
    return load;
  }
  const std::vector<SourceCopies> all = copies(placement, group, layer, microbatch);
  const SplitLayer of_layer = split_layer(placement, cluster_, group, layer, microbatch, kind_);
  const std::vector<ExchangeSplit> chunks = split_exchange(of_layer, all);
  ExchangeLoad load =
      trace_.exchange_by(chunks[idx(chunk)].of_source, placement, group, layer, microbatch, chunk);
  add_guests(load, of_layer, chunks[idx(chunk)].guests);
  count_guest_copies(load, all[idx(chunk)], chunks[idx(chunk)].of_source);
  return load;
}

}  // namespace hetermoe
