#include "hetermoe/exec/device_state.h"

#include <algorithm>

namespace hetermoe {

at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp64:
      return at::kDouble;
    case Dtype::kFp32:
      return at::kFloat;
    case Dtype::kBf16:
      return at::kBFloat16;
    case Dtype::kFp16:
      return at::kHalf;
  }
  HM_CHECK(false, "dtype of no name");
}

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
