#pragma once
#include <ATen/ATen.h>

#include "hetermoe/nn/routing.h"

// The index work of routing.h on the device that holds the choices: nothing is copied to the host, and no
// thread waits. The tables are those of routing.h to the number, in int32. The device must have kernels of
// our own (kernels::has_kernels).
namespace hetermoe {

/// An OwnerTable in the memory of a device; made once per layer.
struct DeviceOwners {
  at::Tensor begin_E1, share_O, destination_O, bin_O;  ///< as kernels::Owners
  at::Tensor bin_of_destination_D1;
  i64 num_experts = 0, num_bins = 0, num_destinations = 0;
};
DeviceOwners owners_on_device(const OwnerTable& owners, i64 num_destinations, c10::Device device);

/// The tables that one source sends to all destinations, one after another; int32.
struct DeviceSplit {
  at::Tensor token_R;                  ///< [copies]; rows of destination d: [row_begin[d], row_begin[d + 1])
  at::Tensor row_C, expert_C, flat_C;  ///< copies of destination d: [copy_begin[d], copy_begin[d + 1])
  at::Tensor row_begin_D1, copy_begin_D1;
  at::Tensor begins;  ///< as begins_of() of routing.h
};
/// topk_TK: int64 or int32; -1 is no choice.
DeviceSplit split_by_owner_on_device(const at::Tensor& topk_TK, const DeviceOwners& owners, RowDedup dedup);

/// CopyGroups without what the host must know.
struct DeviceGroups {
  at::Tensor row_C, arrival_C;
  at::Tensor offsets;  ///< [slots + 1]
};
/// row_C, expert_C: int32, the received indices of all sources one after another; source_begin: [sources + 1]
/// copies of each, row_begin: [sources] rows of the sources before; both int32. slot_of: int32 [E]. All on
/// one device, and every received expert has a slot.
DeviceGroups group_copies_on_device(const at::Tensor& row_C, const at::Tensor& expert_C,
                                    const at::Tensor& source_begin, const at::Tensor& row_begin,
                                    const at::Tensor& slot_of, i64 num_slots);

}  // namespace hetermoe
