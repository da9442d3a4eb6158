#include "hetermoe/train/job/gpu_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/nn/experts.h"
#include "hetermoe/report/table.h"

namespace hetermoe {
namespace {

std::vector<GpuFacts> facts_of_all(const std::vector<c10::Device>& where) {
  std::vector<GpuFacts> gpus;
  std::vector<c10::Device> seen;
  for (const c10::Device device : where) {
    if (std::find(seen.begin(), seen.end(), device) != seen.end()) continue;
    seen.push_back(device);
    gpus.push_back(gpu_facts(device));
  }
  return gpus;
}

bool all_equal(const std::vector<int>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
}

/// The GPU of each device of the cluster, for a process that stands at `turn` among those of its host.
std::vector<c10::Device> gpus_in_turn(const Job& job, const Cluster& cluster, const Processes& processes) {
  std::vector<c10::Device> where;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const i32 turn = processes.alone() ? d : processes.local_rank();
    where.push_back(find_device_in_turn(job.run.device, turn, "run.device"));
  }
  return where;
}

/// [num_devices]. One process sees its GPUs. Where they differ, and of several processes, the types of the
/// cluster settle which device a GPU will be; on an emulated clock any may be any.
std::vector<int> capabilities_of(const Job& job, const Cluster& cluster, const Processes& processes) {
  const std::vector<c10::Device> where = gpus_in_turn(job, cluster, processes);
  std::vector<int> out;
  for (const c10::Device device : where) out.push_back(compute_capability(device));
  if (processes.alone() && all_equal(out)) return out;
  int least = *std::min_element(out.begin(), out.end());
  for (const std::string& text : processes.gather(std::to_string(least)))
    least = std::min(least, std::stoi(text));
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const double of_type = cluster.type_of(d).compute_capability;
    const bool by_type = job.clock.kind == ClockKind::kReal && of_type > 0;
    out[idx(d)] = by_type ? static_cast<int>(std::lround(10 * of_type)) : least;
  }
  return out;
}

/// The narrowest that all of a role can: what nobody of it is without.
Dtype dtype_of_role(const std::string& role, const std::vector<std::string>& roles,
                    const std::vector<int>& capabilities) {
  std::optional<int> least;
  for (std::size_t d = 0; d < roles.size(); ++d) {
    if (roles[d] == role || roles[d] == "both")
      least = std::min(least.value_or(capabilities[d]), capabilities[d]);
  }
  return least ? dtype_of_gpu(*least) : Dtype::kFp32;
}

bool has_role(const std::vector<std::string>& roles, const std::string& role) {
  return std::find(roles.begin(), roles.end(), role) != roles.end();
}

Dtype wider(Dtype a, Dtype b) {
  if (bytes_of(a) != bytes_of(b)) return bytes_of(a) > bytes_of(b) ? a : b;
  return a == b ? a : Dtype::kBf16;
}

/// Roles over all of the strategies: with several, every device may have both.
std::vector<std::string> roles_of_all(const Job& job, const std::vector<std::string>& strategies,
                                      const ModelConfig& model, const Cluster& cluster) {
  if (strategies.size() != 1) return std::vector<std::string>(idx(cluster.num_devices()), "both");
  Job one = job;
  one.strategy = strategies[0];
  return roles_of(make_job_plan(one, model, cluster));
}

std::string describe_dtypes(const RoleDtypes& dtypes, const std::vector<std::string>& roles, bool tf32) {
  const bool apart = has_role(roles, "expert");
  std::string out = apart ? fmt::format("on GPUs: attention in {}, experts in {}", name_of(dtypes.attention),
                                        name_of(dtypes.experts))
                          : fmt::format("on GPUs: {}", name_of(dtypes.attention));
  const bool some_fp32 = dtypes.attention == Dtype::kFp32 || (apart && dtypes.experts == Dtype::kFp32);
  const bool some_16 = bytes_of(dtypes.attention) == 2 || (apart && bytes_of(dtypes.experts) == 2);
  if (some_16) out += ", masters and sums of gradients in fp32";
  if (some_fp32)
    out += tf32 ? ", fp32 products in TF32 (run.tf32)" : ", fp32 products exact (run.tf32 is off)";
  return out + fmt::format(
                   ", rows in {}; plan.attention_dtype, plan.expert_dtype and plan.wire_dtype say otherwise",
                   name_of(dtypes.wire));
}

}  // namespace

Dtype dtype_of_gpu(int capability) {
  if (capability <= 0) return Dtype::kFp32;
  return capability >= 80 ? Dtype::kBf16 : Dtype::kFp16;
}

std::string gpu_fault(const std::vector<GpuFacts>& gpus, const std::vector<int>& architectures) {
  for (const GpuFacts& gpu : gpus) {
    const std::string why = no_code_for(gpu, architectures);
    if (!why.empty()) return why;
  }
  return "";
}

std::vector<c10::Device> places_of(const Job& job, const Cluster& cluster, const Processes& processes,
                                   bool uses_fp64) {
  if (find_device(job.run.device, "run.device").is_cpu()) return {};
  configure_gpus({.tf32 = job.run.tf32,
                  .deterministic = job.run.deterministic.value_or(false),
                  .fp64 = uses_fp64,
                  .expandable_segments = job.run.expandable_segments});
  const std::vector<c10::Device> where = gpus_in_turn(job, cluster, processes);
  const std::string fault = gpu_fault(facts_of_all(where), library_architectures());
  if (!fault.empty()) fail<ConfigError>("run.device", "got \"{}\", but {}", job.run.device, fault);
  return where;
}

RoleDtypes gpu_dtypes(const PlanOptions& asked, const std::vector<std::string>& roles,
                      const std::vector<int>& capabilities) {
  RoleDtypes out;
  out.attention = asked.attention_dtype.value_or(dtype_of_role("attention", roles, capabilities));
  // Devices with both roles follow the attention's.
  const Dtype experts =
      has_role(roles, "expert") ? dtype_of_role("expert", roles, capabilities) : out.attention;
  out.experts = asked.expert_dtype.value_or(experts);
  out.wire = asked.wire_dtype.value_or(wire_of(wider(out.attention, out.experts)));
  return out;
}

std::string set_gpu_defaults(Job& job, const std::vector<std::string>& strategies,
                             const Processes& processes) {
  if (job.run.device == "cpu" || !job.plan.file.empty()) return "";
  const Cluster cluster = load_cluster(job.cluster);
  const std::vector<std::string> roles = roles_of_all(job, strategies, load_model(job.model), cluster);
  const RoleDtypes chosen = gpu_dtypes(job.plan, roles, capabilities_of(job, cluster, processes));
  job.plan.attention_dtype = chosen.attention;
  job.plan.expert_dtype = chosen.experts;
  job.plan.wire_dtype = chosen.wire;
  return describe_dtypes(chosen, roles, job.run.tf32);
}

BesidesPlan besides_plan(const std::vector<MemoryPeak>& peaks, int capability, i64 communicators) {
  constexpr Bytes kMib = 1 << 20;
  // Of libtorch's: 32 MiB from compute capability 9.0 on. On each device a lane's thread and autograd's
  // multiply, and once the thread that begins the run.
  const Bytes workspace = (capability >= 90 ? 32 : 8.125) * kMib;
  // An assumption, not measured: eight channels, each with a buffer of 4 MiB, to a peer and from one.
  constexpr Bytes kOfCommunicator = 64 * kMib;
  // OLMoE-1B-7B with 4 layers on an H100 (2026-11-26): 0.2 GB more than predicted beside 7.2 GB of
  // activations.
  constexpr double kShareInFlight = 0.03;
  const bool groups = capability / 10 == 9 || capability / 10 == 10;
  const double devices = real(static_cast<i64>(peaks.size()));
  BesidesPlan out{(2 * devices + 1) * workspace + (groups ? devices * real(kMostProductBytes) : 0),
                  real(communicators) * kOfCommunicator, 0};
  for (const MemoryPeak& peak : peaks)
    out.in_flight += kShareInFlight * (peak.use.total() - peak.use.state());
  return out;
}

namespace {

/// room: what is missing there is not the plan's fault if others hold it.
std::string memory_fault(int gpu, const std::vector<MemoryPeak>& peaks, const GpuRoom& room,
                         i64 communicators) {
  const BesidesPlan besides = besides_plan(peaks, room.capability, communicators);
  Bytes of_plan = 0;
  for (const MemoryPeak& peak : peaks) of_plan += peak.use.total();
  const Bytes needed = of_plan + besides.total(), taken = room.total - room.free;
  if (room.total <= 0 || needed <= room.free) return "";
  const char* hint =
      needed <= room.total
          ? "the programs that `nvidia-smi` shows to be ended"
          : "smaller microbatches (train.microbatches), plan.recompute: local, or more devices";
  return fmt::format(
      "the run needs {} on cuda:{}: {} for the plan's {}, {} for workspaces of products, {} for buffers of "
      "NCCL "
      "and {} for ops in flight. Of {} there {} are taken, by other programs and by CUDA, so {} are missing: "
      "expected {}",
      format_bytes(needed), gpu, format_bytes(of_plan), counted(static_cast<i64>(peaks.size()), "device"),
      format_bytes(besides.workspaces), format_bytes(besides.messages), format_bytes(besides.in_flight),
      format_bytes(room.total), format_bytes(taken), format_bytes(needed - room.free), hint);
}

}  // namespace

std::string gpu_memory_fault(const std::vector<MemoryPeak>& peaks, const std::vector<DeviceId>& local,
                             const std::vector<c10::Device>& where, const std::vector<GpuRoom>& room,
                             i64 communicators) {
  std::map<i32, std::vector<MemoryPeak>> by_gpu;
  for (const PlaceId place : local) {
    const bool is_host = idx(place) >= where.size();
    if (!is_host) by_gpu[where[idx(place)].index()].push_back(peaks[idx(place)]);
  }
  for (const auto& [gpu, of_gpu] : by_gpu) {
    const std::string fault = memory_fault(gpu, of_gpu, room[idx(gpu)], communicators);
    if (!fault.empty()) return fault;
  }
  return "";
}

}  // namespace hetermoe
