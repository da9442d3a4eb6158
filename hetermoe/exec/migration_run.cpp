#include "hetermoe/exec/migration_run.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/device/accelerator.h"

namespace hetermoe {
namespace {

/// The states of one part of a layer that a device holds: how its units lie there follows from them.
std::vector<State> states_on(std::span<const State> states, UnitPart part, i32 layer, DeviceId device) {
  const bool by_layer = part == UnitPart::kAttention || part == UnitPart::kExperts;
  std::vector<State> found;
  for (const State& state : states) {
    if (state.part != part || (by_layer && state.layer != layer)) continue;
    if (std::binary_search(state.devices.begin(), state.devices.end(), device)) found.push_back(state);
  }
  return found;
}

/// Parts of a layer that lie otherwise on the device from now on.
std::vector<UnitPart> changed_parts(const MigrationRun& run, std::span<const State> after, i32 layer,
                                    const DeviceState& device) {
  std::vector<UnitPart> parts = {UnitPart::kAttention, UnitPart::kExperts};
  if (layer < 0) parts = {UnitPart::kEmbed};
  if (layer == run.num_layers) parts = {UnitPart::kHead};
  std::erase_if(parts, [&](UnitPart part) {
    return states_on(run.before, part, layer, device.device()) ==
           states_on(after, part, layer, device.device());
  });
  return parts;
}

}  // namespace

void prepare_layer(const MigrationRun& run, std::span<const State> after, i32 layer, DeviceState& device) {
  for (const UnitPart part : changed_parts(run, after, layer, device))
    device.store().prepare(after, part, layer);
}

/// On a GPU the storages that are replaced may still be read: copied to the new ones, or sent.
void adopt_layer(const MigrationRun& run, std::span<const State> after, i32 layer, DeviceState& device) {
  const std::vector<UnitPart> parts = changed_parts(run, after, layer, device);
  if (!parts.empty()) finish_stream(device.where());
  for (const UnitPart part : parts) device.store().adopt(part, layer);
}

void rearrange_alone(const MigrationRun& run, std::span<const State> after, DeviceState& device) {
  const Schedule& schedule = run.migration.schedule;
  std::vector<bool> exchanges(idx(run.num_layers) + 2, false);
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    for (const LaneId lane : schedule.lanes_of(op)) {
      if (device_of(lane) == device.device()) exchanges[idx(schedule.ops[idx(op)].layer + 1)] = true;
    }
  }
  for (i32 layer = -1; layer <= run.num_layers; ++layer) {
    if (exchanges[idx(layer + 1)]) continue;
    prepare_layer(run, after, layer, device);
    adopt_layer(run, after, layer, device);
  }
}

}  // namespace hetermoe
