#include "hetermoe/exec/device_state.h"

#include <algorithm>

namespace hetermoe {

StorageOptions storage_options(const Plan& plan, DeviceId device, c10::Device where) {
  const auto num_devices = static_cast<DeviceId>(plan.dtype.size());
  if (device >= num_devices) device = user_of_host(plan, device - num_devices);
  const Dtype dtype = plan.dtype[static_cast<std::size_t>(device)];
  StorageOptions options = at::TensorOptions().dtype(scalar_type(dtype)).device(where);
  options.grad = scalar_type(grad_dtype_of(plan, device));
  options.optimizer = optimizer_widths_of(plan);
  return options;
}

}  // namespace hetermoe
