#include "hetermoe/comm/transports.h"

#include <algorithm>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/comm/mpi.h"
#include "hetermoe/comm/nccl.h"

namespace hetermoe {
namespace {

constexpr TransportKind kKinds[] = {
    {.name = "in-process",
     .between = "devices of one process",
     .attributes = {},
     .serves = [](const Processes& processes, c10::Device) { return processes.alone(); },
     .library = [] { return std::string("no library"); },
     .make =
         [](const Processes&, TransportOptions options) {
           return make_in_process_transport(static_cast<i32>(options.rank_of.size()));
         }},
    {.name = "nccl",
     .between = "processes with a GPU each",
     .attributes = kNcclAttributes,
     .serves = [](const Processes& processes,
                  c10::Device device) { return !processes.alone() && !device.is_cpu(); },
     .library = nccl_description,
     .make =
         [](const Processes& processes, TransportOptions options) {
           return make_nccl_transport(processes, open_nccl(),
                                      {.rank_of = std::move(options.rank_of),
                                       .queues = std::move(options.queues),
                                       .device = options.device,
                                       .tells_ready = options.tells_ready});
         }},
    {.name = "mpi",
     .between = "processes of mpirun",
     .attributes = {},
     .serves =
         [](const Processes& processes, c10::Device device) {
           return !processes.alone() && (device.is_cpu() || processes.has_mpi());
         },
     .library = mpi_description,
     .make =
         [](const Processes& processes, TransportOptions options) {
           return make_mpi_transport(processes, std::move(options.rank_of));
         }},
};

bool meets(const TransportAttributes& has, const TransportNeeds& needs) {
  return (has.hosts || !needs.hosts) && (has.several_devices || !needs.several_devices);
}

}  // namespace

std::span<const TransportKind> transport_kinds() { return kKinds; }

std::vector<std::string> transport_names() {
  std::vector<std::string> names = {"auto"};
  for (const TransportKind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

const TransportKind& find_transport(const Processes& processes, c10::Device device, const std::string& name,
                                    const TransportNeeds& needs) {
  const auto serves = [&](const TransportKind& kind) { return kind.serves(processes, device); };
  auto first = std::ranges::find_if(
      kKinds, [&](const TransportKind& kind) { return serves(kind) && meets(kind.attributes, needs); });
  if (first == std::end(kKinds)) first = std::ranges::find_if(kKinds, serves);
  HM_CHECK(first != std::end(kKinds), "no transport serves {} on {}",
           counted(processes.num_ranks(), "process"), device.str());
  if (name == "auto") return *first;
  const auto named = std::ranges::find(kKinds, name, &TransportKind::name);
  if (named == std::end(kKinds))
    fail<ConfigError>("run.transport", "unknown value \"{}\".{}", name,
                      known_names_hint(name, transport_names()));
  if (!serves(*named))
    fail<ConfigError>("run.transport", "got {}, which serves {}: {} on {} need{} {}, or auto", name,
                      named->between, counted(processes.num_ranks(), "process"), device.str(),
                      processes.alone() ? "s" : "", first->name);
  return *named;
}

std::vector<i32> spread_working_devices(std::span<const DeviceId> working, i32 num_devices, i32 num_ranks) {
  const std::vector<i32> ranks = spread_devices(static_cast<i32>(working.size()), num_ranks);
  std::vector<i32> rank_of(idx(num_devices), kNoRank);
  for (std::size_t i = 0; i < working.size(); ++i) rank_of[idx(working[i])] = ranks[i];
  return rank_of;
}

}  // namespace hetermoe
