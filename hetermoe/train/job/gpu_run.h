#pragma once
#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/device/gpu_support.h"
#include "hetermoe/sim/memory.h"
#include "hetermoe/train/job/job.h"

// Decisions of a run on GPUs before its first step: which GPUs, which dtypes, whether the plan fits.
namespace hetermoe {

/// Where the tensors of each device of the cluster are: empty = on the CPU. Tells libtorch what the job asks
/// of GPUs, so call
/// it before a tensor is made there; `uses_fp64`: some device computes in fp64. Throws
/// ConfigError for a GPU that is not there or that libtorch has no code for, and for a driver that is too
/// old. GPUs are taken in turn; which device is on which of several kinds is settled later (assign_gpus).
std::vector<c10::Device> places_of(const Job& job, const Cluster& cluster, const Processes& processes,
                                   bool uses_fp64);

/// The fault of these GPUs, each of which some device of a process uses; empty = none.
std::string gpu_fault(const std::vector<GpuFacts>& gpus, const std::vector<int>& architectures);

/// The default dtype of a GPU of this compute capability (80 for 8.0): bf16, fp16 below 8.0, fp32 where it is
/// not known (0).
Dtype dtype_of_gpu(int capability);

/// Dtypes of a plan's roles, and how its rows travel.
struct RoleDtypes {
  Dtype attention = Dtype::kFp32, experts = Dtype::kFp32;
  Wire wire = Wire::kFp32;
  bool operator==(const RoleDtypes&) const = default;
};

/// The dtypes of a run on GPUs: what was asked for, else bf16, and fp16 where a device of the role has a
/// compute capability below 8.0; fp32 where it is not known. Rows travel in the wider of the two, between
/// bf16 and fp16 in bf16, which has the range. roles, capabilities: [num_devices], roles as roles_of() names
/// them, 80 for 8.0, 0 = not known.
RoleDtypes gpu_dtypes(const PlanOptions& asked, const std::vector<std::string>& roles,
                      const std::vector<int>& capabilities);

/// Sets what a job that runs on GPUs leaves open: dtypes, as gpu_dtypes() says, so that the job that is
/// written down repeats the run. `strategies`: those that will run; several of them share dtypes. Returns
/// what was chosen in words for the log; empty where nothing is to be said, on CPUs. A plan of a file keeps
/// its own dtypes. Collective.
std::string set_gpu_defaults(Job& job, const std::vector<std::string>& strategies,
                             const Processes& processes);

/// Memory of a GPU before a run makes its tensors.
struct GpuRoom {
  Bytes total = 0;     ///< 0 = not known
  Bytes free = 0;      ///< as free_gpu_memory()
  int capability = 0;  ///< 90 for 9.0
};

/// What a run takes of a GPU besides the tensors of its plan.
struct BesidesPlan {
  /// Of cuBLAS: one for each thread that multiplies and its stream. And kMostProductBytes where products are
  /// grouped.
  Bytes workspaces = 0;
  Bytes messages = 0;   ///< buffers of NCCL
  Bytes in_flight = 0;  ///< buffers that no running op needs and whose last op has not ended
  Bytes total() const { return workspaces + messages + in_flight; }
};
/// peaks: of the devices that share the GPU. communicators: of NCCL, 0 = the run has none.
BesidesPlan besides_plan(const std::vector<MemoryPeak>& peaks, int capability, i64 communicators);

/// A message if a plan's devices need more memory than is free on the GPU that they share: empty = all fit.
/// peaks: [num_devices]; local: devices of this process, and hosts, which have no GPU; where: as places_of();
/// room: of each GPU by its index.
std::string gpu_memory_fault(const std::vector<MemoryPeak>& peaks, const std::vector<DeviceId>& local,
                             const std::vector<c10::Device>& where, const std::vector<GpuRoom>& room,
                             i64 communicators);

}  // namespace hetermoe
