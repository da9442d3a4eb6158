#pragma once
#include <vector>

#include "hetermoe/nn/router_training.h"
#include "hetermoe/train/job/job.h"

namespace hetermoe {

/// Throws ConfigError for settings of routers that the model has no use for or that contradict each other.
void check_router_training(const Job& job, const ModelConfig& model);

/// Where the model's config asks by aux_loss_alpha for a balance that the job does not train with, a sentence
/// that says so; else empty.
std::string balance_note(const Job& job, const ModelConfig& model);

/// Of a step whose first sequence has this index in the data.
RouterTraining router_training(const TrainOptions& train, i64 step, i64 first_sequence);

/// train.forced_balance, for StepInput::choices: copy after copy goes to the next expert, from the first
/// token of the data on. Empty where routers choose.
std::vector<at::Tensor> forced_choices(const TrainOptions& train, const ModelConfig& model,
                                       i64 first_sequence);

}  // namespace hetermoe
