#pragma once
#include <span>
#include <vector>

#include "hetermoe/exec/device_state.h"
#include "hetermoe/schedule/migration_schedule.h"

// How a device's parameters change their places between two steps, one layer after another: storages for
// what it will hold, filled with what it has and with what arrives, take the place of the old ones.
namespace hetermoe {

/// Data of migrate ops beyond the new placement.
struct MigrationRun {
  const Migration& migration;
  std::span<const State> before;  ///< states of the plan that was in force
  i32 num_layers = 0;
  i64 updates = 0;  ///< of the optimizer so far, as far as this process knows
};

/// Makes the new storages of the parts of a layer (-1 the embedding, num_layers the head) that lie otherwise
/// under `after` on this device. To be followed by adopt_layer() with the same arguments.
void prepare_layer(const MigrationRun& run, std::span<const State> after, i32 layer, DeviceState& device);
void adopt_layer(const MigrationRun& run, std::span<const State> after, i32 layer, DeviceState& device);

/// Does so for all layers in which this device neither gives nor takes.
void rearrange_alone(const MigrationRun& run, std::span<const State> after, DeviceState& device);

}  // namespace hetermoe
