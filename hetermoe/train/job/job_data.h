#pragma once
#include <string>

#include "hetermoe/data/dataset.h"
#include "hetermoe/train/job/job.h"

// From a job to what it learns from.
namespace hetermoe {

/// What makes tokens for a job that does not say: what the folder of its model has (train.init_from, model),
/// else that of data.template, else bytes. The folder itself where it does not tell.
std::string usual_tokenizer(const Job& job);

/// The folder of the model whose chat template `data.template: model` means. Throws ConfigError where there
/// is none.
std::string model_chat_template(const Job& job);

/// What data of a job says. Throws what load_dataset() does, and ConfigError where a model of the user's
/// would learn from text that nobody named.
Dataset load_job_data(const Job& job);
/// The same; throws ConfigError for a token that the model does not have.
Dataset load_job_data(const Job& job, const ModelConfig& model);

/// What a run learns from, by which tokenizer, how much of the model it trains, and how long: one line.
std::string training_line(const Job& job, const ModelConfig& model, const Dataset& data);

}  // namespace hetermoe
