#pragma once
#include <limits>
#include <string>
#include <vector>

#include "hetermoe/plan/plan.h"
#include "hetermoe/routing/exchange_split.h"

// Who owns which experts. A balancer is a pure function of loads, speeds, room and nodes. Strategies and the
// planner call balancers; nothing else decides about owners.
namespace hetermoe {

inline constexpr i64 kUnlimitedRoom = std::numeric_limits<i64>::max();

/// Properties of a device that a balancer uses.
struct BalanceDevice {
  DeviceId id = 0;
  NodeId node = 0;
  Seconds unit_s = 1;         ///< time for an expert of load 1, all microbatches: the inverse of its speed
  Seconds busy = 0;           ///< time of other work, all layers together
  i64 room = kUnlimitedRoom;  ///< experts of all layers together that its memory holds
  bool owns = true;           ///< false: it gets only what a balancer moves away from the owners

  double speed() const { return 1 / unit_s; }
};

/// The network port of a node that has sources or owners.
struct NodePort {
  NodeId node = 0;
  /// For a copy that crosses it, all phases, in the unit of BalanceDevice::unit_s.
  Seconds copy_s = 0;
  double tokens = 0;  ///< share of the tokens that start on the node
};

struct BalanceInput {
  std::vector<BalanceDevice> devices;
  std::vector<std::vector<double>> load;  ///< [layers with experts][experts] copies over the mean; even = 1
  std::vector<i64> moved;  ///< [layers with experts] for asym_ea: experts that each owner gives up
  /// [layers with experts][microbatches][experts] for relibra: copies; empty = `load` is all that is known
  std::vector<std::vector<std::vector<double>>> microbatches = {};
  std::vector<NodePort> ports = {};  ///< for relibra; empty = rows between nodes cost nothing
  i64 replicas = 0;                  ///< for eplb, lplb: copies of experts in a layer beyond one of each
  i64 guests = 0;             ///< slots for guests on each device, which even out what is inside a node
  std::string topology = {};  ///< for lplb: who copies from whom, see topology_columns()
  i64 groups = 1;             ///< of consecutive experts among which the router chooses first
  /// For locality: [layers with experts][device groups][experts] copies that sequences of a device group
  /// send; empty = unknown.
  std::vector<std::vector<std::vector<double>>> usage = {};
  std::vector<std::vector<DeviceId>> device_groups = {};  ///< for locality: they hold the devices that own
  double load_cap = 0;  ///< for locality: of the groups' time ratio, 0 = none
};

/// Which sequences of a step may change places, so that more of their copies stay in their device group.
/// Within microbatches: the loads of each exchange stay, only their sources change.
enum class SequenceOrder { kAsTheyCome, kWithinMicrobatches, kWithinStep };

/// A way to choose owners. `place` gives every expert of every layer at least one owner, also where `room`
/// is too little for all of them: the memory check of the plan then names the device.
struct Balancer {
  std::string name;     ///< with underscores
  std::string summary;  ///< one line
  std::vector<LayerOwners> (*place)(const BalanceInput&);
  CopySplit split = CopySplit::kShares;  ///< how copies are divided within a step
  SequenceOrder order = SequenceOrder::kAsTheyCome;
  bool by_use = false;     ///< `place` goes by BalanceInput::usage
  bool has_parts = false;  ///< see kAllParts
  bool by_load = true;     ///< `place` reads loads; else it chooses the same owners in every step
};

/// The table: a new balancer is one file and one row.
const std::vector<Balancer>& balancers();
/// Accepts '-' or '_'. Throws ConfigError with the known names, `also` among them.
const Balancer& find_balancer(const std::string& name, std::vector<std::string> also = {});

/// The parts of relibra: owners between steps; the order of sequences; and within a step guests, and a
/// division of copies by their counts.
inline constexpr char kAllParts[] = "reorder,samples,guests,split";

/// Owners, the division of copies within a step, and whether sequences change places.
struct BalancerChoice {
  const Balancer* balancer = nullptr;  ///< null: the plan's own owners
  CopySplit split = CopySplit::kShares;
  SequenceOrder order = SequenceOrder::kAsTheyCome;
  bool as_planned() const {
    return balancer == nullptr && split == CopySplit::kShares && order == SequenceOrder::kAsTheyCome;
  }
};
/// A row of the table, none (the plan's own owners) or oracle (a bound: all copies divided at will), and
/// after a "+" another split than the row's: eplb+exact, none+guests, relibra+shares. parts: those that a row
/// with parts keeps, separated by commas. Throws ConfigError with what is known.
BalancerChoice balancer_choice(const std::string& text, const std::string& parts = kAllParts);

/// Devices that own. There must be one.
std::vector<BalanceDevice> owning_devices(const BalanceInput& input);

/// The load of even routing.
std::vector<std::vector<double>> even_load(i64 layers, i64 experts);

/// counts: [devices] experts of a layer. Experts 0, 1, ... in runs, device after device.
LayerOwners owners_in_runs(const std::vector<BalanceDevice>& devices, const std::vector<i64>& counts);

}  // namespace hetermoe
