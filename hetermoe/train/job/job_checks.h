#pragma once
#include <string>

#include "hetermoe/train/job/job.h"

// Faults of a job that need neither its model nor its cluster. All throw ConfigError.
namespace hetermoe {

/// Refuses plans, clusters and models, which have keys that no job has.
void check_is_job(const Json& file, const std::string& path);

/// Empty names mean nothing, and would be taken for the folder that one is in. where: begins the place of a
/// key.
void check_names(const Job& job, const std::string& where);

/// Values of keys that do not go together.
void check_values(const Job& job);

}  // namespace hetermoe
