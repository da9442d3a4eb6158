#include "hetermoe/routing/padded_routing.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {

ExchangeLoad PaddedRouting::exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                                     i32 chunk) const {
  ExchangeLoad load = inner_.exchange(placement, group, layer, microbatch, chunk);
  if (load.is_product()) return load;  // all send alike already
  const TokenRanges sources = placement.ranges(group, layer, microbatch);
  const std::vector<DeviceId>& owners = placement.owners(group, layer);
  const auto travels = [&](std::size_t s, std::size_t o) {
    return cluster_.node_of(sources.device(s)) != cluster_.node_of(owners[o]);
  };
  std::vector<double> sent(sources.size(), 0);
  for (std::size_t s = 0; s < sources.size(); ++s) {
    for (std::size_t o = 0; o < owners.size(); ++o) sent[s] += travels(s, o) ? load.rows_between(s, o) : 0;
  }
  const double most = sent.empty() ? 0 : *std::max_element(sent.begin(), sent.end());
  for (std::size_t s = 0; s < sources.size(); ++s) {
    for (std::size_t o = 0; o < owners.size(); ++o) {
      if (travels(s, o) && sent[s] > 0) load.rows[s * owners.size() + o] *= most / sent[s];
    }
    const std::size_t nodes =
        load.node_rows.size() / sources.size();  // those of its own node are not asked for
    for (std::size_t n = 0; n < nodes; ++n) load.node_rows[s * nodes + n] *= sent[s] > 0 ? most / sent[s] : 1;
  }
  return load;
}

}  // namespace hetermoe
