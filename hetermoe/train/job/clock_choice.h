#pragma once
#include <string>

#include "hetermoe/cluster/cluster.h"
#include "hetermoe/train/job/job.h"

// Whose times a run tells.
namespace hetermoe {

/// The clock of a job that names none: virtual where a processor stands for GPUs, whose times it does not
/// have; else real.
ClockKind usual_clock(const Job& job);

/// The label of times under the real clock if a processor stands for GPUs: "measured on this CPU, not on A40,
/// V100". Empty = the times are those of the devices, or emulated.
std::string foreign_times(const Job& job, const Cluster& cluster);

/// One line for the start of a run; empty where its times are those of its own devices.
std::string clock_note(const Job& job, const Cluster& cluster);

}  // namespace hetermoe
