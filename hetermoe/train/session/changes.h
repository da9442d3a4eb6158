#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hetermoe/train/job/job.h"

// Plans that take over in mid-run (train.changes): read and checked before the first step.
namespace hetermoe {

/// A change whose plan has been read.
struct PlannedChange {
  i64 step = 0;      ///< the first that the plan computes, 1 = the first of the run
  std::string name;  ///< of the plan, for people
  Plan plan;
};

/// The changes of a job in the order of their steps. Throws ConfigError that names the change: a step twice
/// or outside of the run, a plan that does not fit, or one that differs from `first`, the plan of the first
/// step, in what must stay.
std::vector<PlannedChange> load_changes(const Job& job, const Plan& first, const ModelConfig& model,
                                        const Cluster& cluster);

/// The first field of `next` that forbids to go on from `before`, in words; none = every parameter and moment
/// that has to travel can do so without loss. Parts that are divided over devices or on hosts stay where they
/// are. Not compared: what a job settles for all its plans (model, seq_len, sequences). frozen: ascending.
std::optional<std::string> hindrance(const Plan& before, const Plan& next, const ModelConfig& model,
                                     std::span<const Unit> frozen = {});

}  // namespace hetermoe
