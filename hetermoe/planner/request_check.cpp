#include "hetermoe/planner/request_check.h"

#include <algorithm>
#include <set>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

void check_cluster(const Cluster& cluster) {
  if (cluster.devices.empty())
    fail<ConfigError>("plan", "cluster {} has no devices, expected at least one", cluster.name);
  for (const Node& node : cluster.nodes) {
    const auto figures = {node.network, node.latency,       node.peer,
                          node.local,   node.local_latency, node.local_peer};
    if (std::min(figures) < 0) {
      fail<ConfigError>("plan", "node {}: got a negative bandwidth or latency, expected >= 0", node.name);
    }
    if (cluster.nodes.size() > 1 && node.network == 0) {
      fail<ConfigError>("plan", "node {}: got no network bandwidth, expected > 0 in a cluster of {} nodes",
                        node.name, cluster.nodes.size());
    }
  }
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    if (cluster.devices[idx(d)].speed <= 0) {
      fail<ConfigError>("plan", "device {}: got speed {}, expected > 0", d, cluster.devices[idx(d)].speed);
    }
  }
}

}  // namespace

void check_positions(const ModelConfig& model, i64 seq_len) {
  if (model.max_positions <= 0 || seq_len <= model.max_positions) return;
  fail<ConfigError>("--seq",
                    "got {}, expected at most the {} positions of model {}: give shorter sequences, or raise "
                    "max_position_embeddings in a copy of its config.json",
                    seq_len, model.max_positions, model.name);
}

PlanRequest checked(PlanRequest request) {
  check_cluster(request.cluster);
  if (request.model.num_layers < 1) fail<ConfigError>("plan", "model {} has no layers", request.model.name);
  if (request.seq_len < 1) fail<ConfigError>("plan", "seq_len: got {}, expected >= 1", request.seq_len);
  check_positions(request.model, request.seq_len);
  if (request.sequences == 0) request.sequences = request.tokens / request.seq_len;
  if (request.sequences < 1) {
    fail<ConfigError>(
        "plan",
        "got {} tokens a step, expected at least one sequence of {} tokens: take more tokens, or "
        "shorter sequences (--seq)",
        request.tokens, request.seq_len);
  }
  if (request.limits.max_microbatches < 0) {
    fail<ConfigError>("plan",
                      "max_microbatches: got {}, expected >= 1, or 0 for as many as there are sequences",
                      request.limits.max_microbatches);
  }
  if (request.limits.max_microbatches == 0) request.limits.max_microbatches = request.sequences;
  for (const DeviceId d : request.limits.idle) {
    if (d < 0 || d >= request.cluster.num_devices()) {
      fail<ConfigError>("plan", "idle: got device {}, expected 0 to {}", d,
                        request.cluster.num_devices() - 1);
    }
  }
  const std::set<DeviceId> idle(request.limits.idle.begin(), request.limits.idle.end());
  if (static_cast<i32>(idle.size()) == request.cluster.num_devices()) {
    fail<ConfigError>("plan", "idle: all {} devices must stay out, expected at least one to remain",
                      idle.size());
  }
  return request;
}

}  // namespace hetermoe
