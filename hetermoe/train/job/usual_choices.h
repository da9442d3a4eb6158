#pragma once
#include <string>
#include <vector>

#include "hetermoe/train/job/job.h"

// Values that nobody wrote in a job and that follow from others of it.
namespace hetermoe {

/// Fills them in and sets `job.usual`. file, flags: what is written, as a job.
void settle_usual(const Json& file, const Json& flags, Job& job);

/// What a run should say of them: a sentence each.
std::vector<std::string> usual_notes(const Job& job, const ModelConfig& model);

}  // namespace hetermoe
