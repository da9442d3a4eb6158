#pragma once
#include <c10/core/Device.h>

#include <memory>
#include <span>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/comm/transport.h"

// Which transport carries a run: the one table that knows all of them.
namespace hetermoe {

struct TransportOptions {
  std::vector<i32> rank_of;                   ///< [num_devices] the process of each device, kNoRank = idle
  std::vector<i32> queues;                    ///< those that transfers use, ascending
  c10::Device device = c10::DeviceType::CPU;  ///< of this process: where its messages are
  bool tells_ready = false;  ///< the receivers of messages need Message::ready, as emulated clocks do
};

/// A way for messages to travel.
struct TransportKind {
  const char* name;
  const char* between;  ///< whom it serves, in words
  TransportAttributes attributes;
  bool (*serves)(const Processes& processes, c10::Device device);
  /// The library that it needs: its version, or why it cannot be used.
  std::string (*library)();
  /// Collective over the processes. Throws TransportError when they do not come together, ConfigError when
  /// the devices are spread over the processes in a way that this kind cannot serve.
  std::unique_ptr<Transport> (*make)(const Processes& processes, TransportOptions options);
};

std::span<const TransportKind> transport_kinds();
std::vector<std::string> transport_names();

/// What a run asks of its transport.
struct TransportNeeds {
  bool hosts = false;            ///< hosts exchange, too
  bool several_devices = false;  ///< some process has more than one device
};

/// The kind for messages on such a device between these processes: the one of that name, or with "auto" the
/// first that serves them and has what is needed. Where none has, the first that serves them, which says what
/// it lacks; some kind serves every case. Throws ConfigError for a name that is none, and for a kind that
/// does not serve them.
const TransportKind& find_transport(const Processes& processes, c10::Device device,
                                    const std::string& name = "auto", const TransportNeeds& needs = {});

/// The process of each device, [num_devices]: `working` (ascending) in contiguous runs, as equal as possible,
/// all other devices kNoRank. Throws ConfigError when a process would have no device.
std::vector<i32> spread_working_devices(std::span<const DeviceId> working, i32 num_devices, i32 num_ranks);

}  // namespace hetermoe
