#pragma once
#include <vector>

#include "hetermoe/nn/router_training.h"
#include "hetermoe/train/job/job.h"

namespace hetermoe {

/// Throws ConfigError for settings of routers that the model has no use for or that contradict each other.
void check_router_training(const Job& job, const ModelConfig& model);

/// A sentence where the loss that balances experts is not that of the program the model is from: its config
/// asks by aux_loss_alpha for one that does not act, or transformers computes it over more sequences. Else
/// empty.
std::string balance_note(const Job& job, const ModelConfig& model);

/// Settings of a step whose first sequence has this index in the data.
RouterTraining router_training(const TrainOptions& train, i64 step, i64 first_sequence);

/// train.forced_balance, for StepInput::choices: copy after copy goes to the next expert, from the first
/// token of the data on. Empty where routers choose.
std::vector<at::Tensor> forced_choices(const TrainOptions& train, const ModelConfig& model,
                                       i64 first_sequence);

}  // namespace hetermoe
