#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hetermoe/model/lora.h"
#include "hetermoe/model/unit.h"
#include "hetermoe/plan/plan.h"
#include "hetermoe/schedule/op.h"

// The one object shared by simulator and executor: which op, on which lane, after which ops.
namespace hetermoe {

/// Units that live together: replicated on `devices`, reduced and updated as one, or frozen as one.
struct State {
  using Part = UnitPart;
  UnitPart part = UnitPart::kEmbed;
  i32 layer = -1;                      ///< -1 also for the head
  std::vector<ExpertId> experts = {};  ///< of part kExperts
  std::vector<DeviceId> devices = {};  ///< ascending
  bool trainable = true;               ///< false: no gradient, no reduce, no update
  /// On the host weights visit the devices, which keep nothing of the state; a host has one copy for all its
  /// devices. Sharded weights are here in parts, and the devices gather them for visits of all at once.
  Residence weights = Residence::kDevice, optimizer = Residence::kDevice;
  std::vector<PlaceId> homes = {};  ///< hosts that update the state, ascending; empty = the devices do
  /// Each device keeps master and moments of its part of every tensor (part_range), sums and updates that.
  bool sharded = false;
  /// Of gathered weights: states of a part with the same devices have one team, which has slots of its own,
  /// from this one on.
  i32 team = -1, first_slot = 0;

  bool visits() const { return weights == Residence::kHost; }
  bool gathered() const { return weights == Residence::kSharded; }
  /// The whole weights are on a device for visits alone.
  bool transient() const { return visits() || gathered(); }
  /// The parts of the updated weights are told at the end of the step.
  bool gathered_after_update() const { return sharded && !gathered(); }
  /// Who sums the gradients of its copies.
  const std::vector<PlaceId>& reducers() const { return visits() ? homes : devices; }
  const std::vector<PlaceId>& updaters() const { return homes.empty() ? devices : homes; }
  bool reduced() const { return trainable && reducers().size() > 1; }
  bool operator==(const State&) const = default;
};

/// Ops in append order, as flat arrays. Rules: lanes keep append order; an op starts when it heads all its
/// lanes and its dependencies have ended; dependencies point backwards and share a device with their op.
struct Schedule {
  i32 num_devices = 0;
  i32 num_hosts = 0;  ///< 0 when the plan uses none
  std::vector<Op> ops;
  std::vector<i64> lane_begin = {0};  ///< [num_ops + 1] into `lanes`
  std::vector<LaneId> lanes;          ///< lanes of each op, ascending
  std::vector<i64> dep_begin = {0};   ///< [num_ops + 1] into `deps`
  std::vector<OpId> deps;             ///< dependencies that lane order does not already imply, ascending
  std::vector<State> states;
  /// Of a step that overlaps the one before it: dependencies on ops of that step which neither its lanes nor
  /// others imply, ascending. Empty where a step begins when the one before has ended.
  std::vector<i64> carry_begin;  ///< [num_ops + 1] into `carry`
  std::vector<OpId> carry;

  i32 num_places() const { return num_devices + num_hosts; }
  i32 num_ops() const { return static_cast<i32>(ops.size()); }
  std::span<const LaneId> lanes_of(OpId op) const {
    const auto i = static_cast<std::size_t>(op);
    return {lanes.data() + lane_begin[i], lanes.data() + lane_begin[i + 1]};
  }
  std::span<const OpId> deps_of(OpId op) const {
    const auto i = static_cast<std::size_t>(op);
    return {deps.data() + dep_begin[i], deps.data() + dep_begin[i + 1]};
  }
  bool overlaps() const { return !carry_begin.empty(); }
  std::span<const OpId> carry_of(OpId op) const {
    if (!overlaps()) return {};
    const auto i = static_cast<std::size_t>(op);
    return {carry.data() + carry_begin[i], carry.data() + carry_begin[i + 1]};
  }
};

/// What a step is, beyond the plan: fields of the job that add or drop ops.
struct StepOptions {
  bool balance = false;           ///< the load-balancing loss is on
  i64 aux_group = 0;              ///< sequences over which it is computed, 0 = the whole step
  bool backward = true;           ///< false: forward only (validation); the head computes the loss alone
  std::vector<Unit> frozen = {};  ///< units that are not trained, ascending
  /// 1: a step computes with weights that lack the update of the step before, which runs meanwhile. All
  /// trained states must live on hosts.
  i64 staleness = 0;
  /// Of the units that are trained, the adapters alone are. Null = there are none.
  std::shared_ptr<const Lora> lora = nullptr;
};

/// Builds the schedule of one step. The plan must be valid. Throws ConfigError when the order policy cannot
/// serve the options (a load-balancing group that spans microbatches which the order keeps apart), and when
/// staleness meets a trained state that does not visit.
Schedule build_schedule(const Plan& plan, const ModelConfig& model, const StepOptions& options = {});

/// All broken rules, in words; empty = sound. Dependencies are derived anew from accesses() and compared.
std::vector<std::string> validate(const Schedule& schedule, const Plan& plan, const ModelConfig& model,
                                  const StepOptions& options = {});

/// So many steps one after another as one schedule, whose ops wait for those of the step before as `carry`
/// and their lanes say.
Schedule repeat(const Schedule& schedule, i32 steps);

/// Kinds of the lanes on which a schedule has transfers, ascending.
std::vector<i32> transfer_queues(const Schedule& schedule);

/// Hosts that keep something of the step, ascending.
std::vector<PlaceId> hosts_of(const Schedule& schedule);

/// One line per lane: "device 0 compute: 0 embed.F m0 | 2 attention.F l0 m0 | ...".
std::string to_text(const Schedule& schedule);

/// FNV-1a over ops, lanes and dependencies, made of names: numbers of kinds and lanes may change without it.
/// Ranks compare it before the first step.
u64 hash(const Schedule& schedule);

}  // namespace hetermoe
