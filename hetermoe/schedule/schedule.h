#pragma once
#include <span>
#include <string>
#include <vector>

#include "hetermoe/ops/op_row.h"
#include "hetermoe/placement/state.h"

// The one object shared by simulator and executor: which op, on which lane, after which ops.
namespace hetermoe {

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
  /// Dependencies of an overlapping step on ops of the step before, ascending. Those that its lanes or other
  /// dependencies imply are left out. Empty where a step begins when the one before has ended.
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

/// Builds the schedule of one step. The plan must be valid. Throws ConfigError when the order policy cannot
/// serve the options: a load-balancing group spans microbatches that the order keeps apart. Also throws when
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
