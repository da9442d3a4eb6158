#pragma once
#include <string>
#include <vector>

#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// The entries of plan.offload for `use`. adapts: adapters are trained, whose optimizer stays on the devices.
std::vector<std::string> offload_entries(HostUse use, bool adapts = false);

/// The uses of hosts for plans without room, the least first.
inline constexpr HostUse kHostUses[] = {HostUse::kOptimizer, HostUse::kOptimizerSaved, HostUse::kExperts,
                                        HostUse::kAll, HostUse::kAllSaved};

/// Puts the parts that `use` names on hosts. The tensors from which backward starts stay on devices where a
/// layer keeps all of its activations.
void keep_on_hosts(HostUse use, const ModelConfig& model, const Cluster& cluster, Plan& plan,
                   bool adapts = false);

/// Every node of the cluster has a host.
bool has_hosts(const Cluster& cluster);

/// Where some nodes have a host and others have none: which have none, and that plans then use no host. Empty
/// otherwise. "no plan uses main memory: node old has no host in the cluster file, and all nodes need one"
std::string missing_hosts_note(const Cluster& cluster);

/// Weights, and what the optimizer keeps of them, fill more than all devices and the hosts that plans may use
/// together: no plan can fit.
bool is_beyond_all_memory(const PlanRequest& request);

/// [num_nodes] bytes that each host keeps for a plan: weights, gradients, masters, moments, each once,
/// however many of its devices use them; saved activations of the microbatches in flight. For frozen units,
/// and where adapters are trained, weights alone.
std::vector<Bytes> estimate_host_memory(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                                        const Trained& trained = {});

/// The host that a plan overfills: "host of new (64 GiB) needs 80.1 GiB"; empty = the plan fits.
std::string overfilled_host(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                            const Trained& trained = {});

/// The parts that a plan keeps on hosts, in words; empty = none.
std::string kept_on_hosts(const Plan& plan, bool adapts = false);

/// The parts that a plan keeps on hosts and their cost, in words. `why`: a sentence on the case without
/// hosts.
std::vector<std::string> explain_hosts(const PlanRequest& request, const Plan& plan, const std::string& why);

}  // namespace hetermoe
