#pragma once

namespace hetermoe::kernels {

/// Makes operators of libtorch take CPU tensors that have a form for GPUs alone, for good, in the whole
/// process: `mm.dtype`, `addmm.dtype_out`, `_flash_attention_forward` and its backward. They demand what the
/// forms for GPUs demand, and are slow. HostKernels calls this. May be called by any thread, and again.
void register_host_operators();

}  // namespace hetermoe::kernels
