#include "hetermoe/comm/transports.h"

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/comm/mpi.h"
#include "hetermoe/comm/nccl.h"

namespace hetermoe {
namespace {

constexpr TransportKind kKinds[] = {
    {.name = "in-process",
     .needs_launch_order = false,
     .serves = [](const Processes& processes, c10::Device) { return processes.alone(); },
     .make =
         [](const Processes&, TransportOptions options) {
           return make_in_process_transport(static_cast<i32>(options.rank_of.size()));
         }},
    {.name = "mpi",
     .needs_launch_order = false,
     .serves = [](const Processes&, c10::Device device) { return device.is_cpu(); },
     .make =
         [](const Processes& processes, TransportOptions options) {
           return make_mpi_transport(processes, std::move(options.rank_of));
         }},
    {.name = "nccl",
     .needs_launch_order = true,
     .serves = [](const Processes&, c10::Device device) { return !device.is_cpu(); },
     .make =
         [](const Processes& processes, TransportOptions options) {
           return make_nccl_transport(processes, open_nccl(),
                                      {.rank_of = std::move(options.rank_of),
                                       .queues = std::move(options.queues),
                                       .device = options.device});
         }},
};

}  // namespace

std::span<const TransportKind> transport_kinds() { return kKinds; }

const TransportKind& find_transport(const Processes& processes, c10::Device device) {
  for (const TransportKind& kind : kKinds) {
    if (kind.serves(processes, device)) return kind;
  }
  HM_CHECK(false, "no transport serves {} processes on {}", processes.num_ranks(), device.str());
}

std::vector<i32> spread_working_devices(std::span<const DeviceId> working, i32 num_devices, i32 num_ranks) {
  const std::vector<i32> ranks = spread_devices(static_cast<i32>(working.size()), num_ranks);
  std::vector<i32> rank_of(idx(num_devices), kNoRank);
  for (std::size_t i = 0; i < working.size(); ++i) rank_of[idx(working[i])] = ranks[i];
  return rank_of;
}

}  // namespace hetermoe
