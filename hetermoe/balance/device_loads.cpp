#include "hetermoe/balance/device_loads.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// Adds a microbatch. Copies by shares may be parts of copies here.
void add_microbatch(DeviceLoads& out, const TraceRouting& trace, const SplitRouting& routing,
                    const Placement& placement, i32 microbatch) {
  const auto layer = static_cast<i32>(out.layer);
  const std::vector<ExchangeSplit> splits = routing.split(placement, out.group, layer, microbatch);
  const OwnerTable owners = owner_table(placement, out.group, layer);
  for (i32 c = 0; c < placement.plan().chunks; ++c) {
    const SourceCopies copies = trace.copies(placement, out.group, layer, microbatch, c);
    for (std::size_t s = 0; s < copies.size(); ++s) {
      const std::vector<OwnerTable>& divided = splits[idx(c)].of_source;
      const OwnerTable& table = divided.empty() ? owners : divided[s];
      for (std::size_t e = 0; e < table.size(); ++e) {
        for (const ExpertShare& share : table[e]) {
          const double more = share.share * real(copies[s][e]);
          out.copies[idx(share.destination)][e] += more;
          const bool owns = std::any_of(owners[e].begin(), owners[e].end(), [&](const ExpertShare& owner) {
            return owner.destination == share.destination;
          });
          if (!owns) out.lent[idx(share.destination)][e] += more;
        }
      }
    }
  }
}

}  // namespace

std::vector<DeviceLoads> device_loads(const TraceRouting& trace, const SplitRouting& routing,
                                      const Placement& placement) {
  std::vector<DeviceLoads> out;
  for (const i64 layer : trace.header().layers) {
    for (i32 g = 0; g < placement.num_groups(); ++g) {
      DeviceLoads loads;
      loads.layer = layer;
      loads.group = g;
      loads.devices = placement.owners(g, static_cast<i32>(layer));
      loads.copies.assign(loads.devices.size(), std::vector<double>(idx(trace.header().num_experts), 0));
      loads.lent = loads.copies;
      for (i32 m = 0; m < placement.num_microbatches(g); ++m)
        add_microbatch(loads, trace, routing, placement, m);
      out.push_back(std::move(loads));
    }
  }
  return out;
}

std::vector<double> device_times(const DeviceLoads& loads) {
  std::vector<double> out;
  double all = 0;
  for (const std::vector<double>& copies : loads.copies) {
    out.push_back(std::accumulate(copies.begin(), copies.end(), 0.0));
    all += out.back();
  }
  const double balanced = all / std::accumulate(loads.speeds.begin(), loads.speeds.end(), 0.0);
  for (std::size_t d = 0; d < out.size(); ++d) out[d] = all > 0 ? out[d] / loads.speeds[d] / balanced : 0;
  return out;
}

}  // namespace hetermoe
