#pragma once
#include <optional>
#include <vector>

#include "hetermoe/cost/cost_model.h"
#include "hetermoe/planner/strategies/strategies.h"

// How many devices and network ports each role of a plan with depth groups gets: those with attention, and
// those with experts. After AF-Pipe (arXiv 2605.11005): with M devices and M_a ports attention takes
// T_a = max(C_a / M, V / M_a), with N and M_f experts take T_f = max(C_f / N, V / M_f), and the slower of the
// two should be fast. C_a, C_f: seconds of one device for all of the work. V: seconds of one port for all of
// the bytes. Where devices differ, C_a / M is 1 over the sum of 1 / C_a of the chosen ones.
namespace hetermoe {

struct AllocationInput {
  struct Device {
    Seconds attention = 0, experts = 0;  ///< alone at all of the work of a layer; above 0
  };
  std::vector<Device> devices;
  Seconds transfer = 0;                        ///< V; 0 = nothing goes over the network
  i64 nics = 2;                                ///< ports of all nodes together, at least 2
  i64 least_attention = 1, least_experts = 1;  ///< devices of each role
  i64 most_attention = 0;                      ///< 0 = no limit
};

/// Of M + N devices and M_a + M_f ports.
struct Allocation {
  i64 attention = 0, experts = 0;                          ///< devices: M, N
  i64 attention_nics = 0, expert_nics = 0;                 ///< M_a, M_f
  Seconds attention_s = 0, experts_s = 0;                  ///< T_a, T_f
  double slack = 0;                                        ///< the lower of both roles' compute over transfer
  bool attention_travels = false, experts_travel = false;  ///< its rows take longer than its compute
  Seconds seconds() const { return std::max(attention_s, experts_s); }
};

/// {"attention_devices", "expert_devices", "attention_s", "experts_s", "attention_bound", "experts_bound"},
/// the last two compute or network.
Json to_json(const Allocation& allocation);

/// Positions of devices, those first that are best at attention beside experts. Equal ones keep their order.
std::vector<std::size_t> by_advantage(const std::vector<AllocationInput::Device>& devices);

/// The first devices by_advantage() get attention, and so many ports; the others have the rest.
Allocation allocation_of(const AllocationInput& input, i64 attention, i64 attention_nics);

/// The fastest allocation, by looking at all. Of several the one whose network has most slack, then the one
/// with the fewest devices with attention, then with the fewest ports for them. The limits of the input leave
/// one.
Allocation allocate(const AllocationInput& input);

/// Times of a layer with experts by the cost model, forward and backward, of a microbatch of so many
/// sequences. Ports are taken to be as those of the first node. An exchange takes what even routing over half
/// of the devices takes. Limits: as many devices with experts as their parameters need. plan: dtypes and
/// wires alone.
AllocationInput allocation_input(const ModelConfig& model, const Cluster& cluster, const CostModel& cost,
                                 const Plan& plan, double sequences);

/// Limits of plans with so many groups of each role: every group has a device. That goes before the limit by
/// the parameters of experts.
void limit_by_groups(AllocationInput& input, i64 attention, i64 experts);

/// The roles of allocations with so many devices with attention, and their weights.
struct AllocatedRoles {
  Roles roles;
  std::vector<double> attention_weights, expert_weights;  ///< empty where all devices are equal
};
AllocatedRoles roles_of(const AllocationInput& input, i64 attention);
void set_roles(StrategyRequest& request, AllocatedRoles split);

/// Numbers of devices with attention that differ from that of the allocation by 2 at most, it first.
std::vector<i64> near_allocation(const AllocationInput& input);

/// T_a and T_f of a plan with depth groups, of its first group of devices: of a layer and a microbatch. Where
/// NICs are shared, by the best division of them. None for other plans.
std::optional<Allocation> allocation_of_plan(const Plan& plan, const ModelConfig& model,
                                             const Cluster& cluster, const CostModel& cost);

/// Who does what of strategy af_pipe where the request does not say: on equal devices as allocate() has it.
Roles allocated_roles(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request);

}  // namespace hetermoe
