#pragma once
#include <string>
#include <vector>

#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// What plan.offload says for it. adapts: adapters are trained, whose optimizer stays on the devices.
std::vector<std::string> offload_entries(HostUse use, bool adapts = false);

/// What plans without room may keep on hosts, the least first.
inline constexpr HostUse kHostUses[] = {HostUse::kOptimizer, HostUse::kOptimizerSaved, HostUse::kExperts,
                                        HostUse::kAll, HostUse::kAllSaved};

/// Puts on hosts what `use` says. What backward starts from stays on devices where a layer keeps all of its
/// activations.
void keep_on_hosts(HostUse use, const ModelConfig& model, const Cluster& cluster, Plan& plan,
                   bool adapts = false);

/// Every node of the request's cluster has a host.
bool has_hosts(const Cluster& cluster);

/// Weights, and what the optimizer keeps of them, fill more than all devices and the hosts that plans may use
/// together: no plan can fit.
bool is_beyond_all_memory(const PlanRequest& request);

/// [num_nodes] bytes that each host keeps for a plan: weights, gradients, masters, moments, each once,
/// however many of its devices use them; saved activations of the microbatches in flight. Of frozen units,
/// and where adapters are trained, weights alone.
std::vector<Bytes> estimate_host_memory(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                                        const Trained& trained = {});

/// The host that a plan overfills: "host of new (64 GiB) needs 80.1 GiB"; empty = the plan fits.
std::string overfilled_host(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                            const Trained& trained = {});

/// What a plan keeps on hosts, in words; empty = nothing.
std::string kept_on_hosts(const Plan& plan, bool adapts = false);

/// What a plan that uses hosts keeps there and what that costs, in words. `why`: a sentence on what would be
/// without.
std::vector<std::string> explain_hosts(const PlanRequest& request, const Plan& plan, const std::string& why);

}  // namespace hetermoe
