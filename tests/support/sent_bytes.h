#pragma once
#include <map>
#include <mutex>

#include "hetermoe/cost/cost_model.h"
#include "tests/support/rig.h"

// Bytes that leave devices in a step: as they are sent, and as the cost model has them.
namespace hetermoe::testing {

struct SentBytes {
  double network = 0, local = 0;
};

struct Sent {
  std::map<DeviceId, SentBytes> counted, priced;
  std::size_t most_exchanges = 0;  ///< of a transfer

  void add_priced(const WorkModel& work, const Op& op, const std::vector<DeviceId>& participants,
                  const ExchangeLoad* load) {
    const std::vector<PortBytes> bytes = work.port_bytes(op, participants, load);
    most_exchanges = std::max(most_exchanges, bytes.size() / participants.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      SentBytes& own = priced[participants[i % participants.size()]];
      own.network += bytes[i].net_out, own.local += bytes[i].local_out;
    }
  }
};

/// Counts what the exchanges send for which `counts` is true. Keeps references to all.
template <class Counts>
HookedTransport::Hook sent_counter(Sent& sent, std::mutex& mutex, const Cluster& cluster, Counts counts) {
  return [&sent, &mutex, &cluster, counts](const ExchangeCall& call, std::vector<Message>& out) {
    if (!counts(call)) return;
    const std::lock_guard lock(mutex);
    SentBytes& own = sent.counted[call.self];
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (call.participants[i] == call.self) continue;
      const bool local = cluster.node_of(call.participants[i]) == cluster.node_of(call.self);
      for (const at::Tensor& tensor : out[i].tensors)
        (local ? own.local : own.network) += static_cast<double>(tensor.nbytes());
    }
  };
}

/// Nodes of one, three and two devices.
inline Cluster uneven_nodes() {
  return parse_cluster(
      parse_yaml("{name: uneven, local_gb_s: 1000, nodes: [{devices: [A40]}, {devices: [V100 "
                 "x3]}, {devices: [A40 x2]}]}",
                 "test"),
      "test ");
}

}  // namespace hetermoe::testing
