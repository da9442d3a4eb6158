#pragma once
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/comm/sent_bytes.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/train/job/job.h"
#include "hetermoe/train/session/changes.h"
#include "hetermoe/train/session/session.h"

// From a job to a session: everything that a run decides before its first step.
namespace hetermoe {

/// Cores of this machine, at least 1.
i32 num_cores();

/// The inputs of a run's session. All are referenced and must outlive the session.
struct SessionParts {
  const Job& job;
  const ModelConfig& model;
  const Cluster& cluster;
  const Plan& plan;
  const Placement& emulated;  ///< the plan with the dtypes of the emulated devices
  const CostModel& truth;     ///< how long ops take on an emulated clock
  const CostModel& nominal;   ///< how long they take when no device is slower than its type
  const ProfileSet& profiles;
  u64 text_checksum;
  std::span<const PlannedChange> changes = {};  ///< plans that will take over
  MemoryMeter* meter = nullptr;                 ///< counts the tensors of steps; null = none
  SentBytes* sent = nullptr;                    ///< counts sent bytes; null = none
};

/// Queues on which a run has transfers, ascending, for transports that make a communicator for each, once:
/// all where the plan may change, for later plans and moves between plans may need any of them.
std::vector<i32> queues_of_run(const Schedule& schedule, const Job& job);

/// How a session of this process runs the plan of `parts`.
ExecutorOptions executor_options(const SessionParts& parts, const Processes& processes);

/// A session for the devices of this process, over the transport that fits the processes and the device that
/// they run on. Collective: ranks compare what they were started with, and rank 0 tells the others what they
/// must agree on. Throws ConfigError when processes and plan do not fit together.
std::unique_ptr<Session> make_session(const SessionParts& parts, const Processes& processes);

/// A name and what a rank has under it, such as {"cluster", "9a3f..."}.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// Everything by which ranks of one run could differ.
Facts facts_of(const SessionParts& parts);

/// Ranks that were started with different files or programs would wait for each other forever: ConfigError
/// names the first rank that differs from rank 0, and in which of the facts. Collective.
void check_same_run(const Processes& processes, const Facts& mine);

/// Rank 0's order of the ops of a schedule; collective. Costs that differ in their last bit would sort them
/// differently. Throws ConfigError when rank 0 has another schedule.
std::vector<OpId> order_of_rank_0(const Processes& processes, const Schedule& schedule,
                                  const std::vector<OpId>& mine);

}  // namespace hetermoe
