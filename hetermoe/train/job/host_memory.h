#pragma once
#include "hetermoe/model/model_config.h"
#include "hetermoe/train/job/job.h"

namespace hetermoe {

/// For a run on the processors of one machine. Throws ConfigError when what training keeps of the model, each
/// parameter once, is more than the machine's memory: the run would end somewhere in the middle of asking
/// for it. key: of the job, by which the model is as large.
void check_host_memory(const Job& job, const ModelConfig& model, const char* key = "model");

}  // namespace hetermoe
