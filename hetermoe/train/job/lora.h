#pragma once
#include <functional>
#include <memory>

#include "hetermoe/model/lora.h"
#include "hetermoe/train/job/job.h"

namespace hetermoe {

/// Takes what is not `given` (/train/lora/rank, ...) of train.lora from the adapters of train.lora.from.
/// Throws ConfigError where what is given is not that of the adapters.
void settle_adapters(TrainOptions& train, const std::function<bool(const std::string&)>& given);

/// The adapters of train.lora; null = none. Throws ConfigError when a pattern matches no matrix that can have
/// an adapter, or only some experts of a layer. Also throws when train.freeze is given as well.
std::shared_ptr<const Lora> lora_of(const TrainOptions& train, const ModelConfig& model);

/// Throws ConfigError where the plan divides weights, or has optimizer states on hosts without their weights.
void check_lora_plan(const Job& job, const Plan& plan, const ModelConfig& model);

/// train.lora.rank in a job as it was written, 0 = no adapters, or the job does not say.
i64 adapter_rank(const Json& job);

/// Throws ConfigError for a tensor that is an adapter and not in a checkpoint.
void check_adapter_is_there(const std::string& name, bool is_there);

}  // namespace hetermoe
