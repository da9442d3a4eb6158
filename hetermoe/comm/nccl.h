#pragma once
#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "hetermoe/comm/nccl_api.h"
#include "hetermoe/comm/processes.h"
#include "hetermoe/comm/transport.h"

namespace hetermoe {

inline constexpr TransportAttributes kNcclAttributes = {
    .one_launch_order = true, .hosts = false, .several_devices = false};

struct NcclOptions {
  /// [num_devices] the process of each device, kNoRank = idle; at most one device per process.
  std::vector<i32> rank_of;
  std::vector<i32> queues;  ///< those that transfers use, ascending: each gets a communicator of its own
  c10::Device device = c10::DeviceType::CUDA;  ///< this process's; a CPU for tests with an NCCL of their own
  /// Each message tells when its sender was ready (Message::ready), as emulated clocks need it. Else messages
  /// without content do not travel.
  bool tells_ready = false;
  /// How long an abort lets launches end that are inside NCCL before it frees what they use. A launch that
  /// waits there for a peer that is gone ends by being freed only.
  Seconds abort_patience = 0.5;
  /// If NCCL has not come back from an abort after so long, the process ends without it (Processes::abort).
  Seconds abort_limit = 5;
};

/// Sends and receives of NCCL between GPUs, one process each. All processes launch their transfers in the
/// order of ExchangeCall::turn, so that two communicators never wait for each other. Collective over the
/// processes. An exchange is one launch that carries whole tensors from and to their own memory, and none
/// where nothing travels. A call must say what it expects (ExchangeCall::expected). A peer that sends other
/// sizes than the other side expects is not detected here: NCCL needs equal sizes. The host waits for the
/// lane's stream only. Throws TransportError when NCCL does.
/// An abort says its reason on stderr, then ends each communicator in a thread of its own. If an exception
/// destroys the transport, it aborts: to leave would wait for the other processes.
std::unique_ptr<Transport> make_nccl_transport(const Processes& processes, std::unique_ptr<NcclApi> nccl,
                                               NcclOptions options);

}  // namespace hetermoe
