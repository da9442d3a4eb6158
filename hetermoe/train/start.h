#pragma once
#include <memory>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/train/job.h"
#include "hetermoe/train/session.h"

// From a job to a session: everything that a run decides before its first step.
namespace hetermoe {

StepOptions step_options(const Job& job, const ModelConfig& model);

/// Cores of this machine, at least 1.
i32 num_cores();

/// What a session of a run is made from. All are referred to and must outlive the session.
struct SessionParts {
  const Job& job;
  const ModelConfig& model;
  const Cluster& cluster;
  const Plan& plan;
  const Placement& emulated;  ///< the plan with the dtypes of the emulated devices
  const CostModel& truth;     ///< how long ops take on an emulated clock
  const CostModel& nominal;   ///< how long they take when no device is slower than its type
};

/// A session for the devices of this process, over the transport that fits the processes and the device that
/// they run on. Collective. Throws ConfigError when processes and plan do not fit together.
std::unique_ptr<Session> make_session(const SessionParts& parts, const Processes& processes);

/// Ranks that were started with different files or programs would wait for each other forever: ConfigError
/// names the first that differs. Collective.
void check_same_run(const Processes& processes, const Job& job, const Session& session, u64 text_checksum);

}  // namespace hetermoe
