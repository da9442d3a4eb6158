#pragma once
#include <string>

#include "hetermoe/data/dataset.h"
#include "hetermoe/train/job/job.h"

// From a job to what it learns from.
namespace hetermoe {

/// The tokenizer of a job that names none: that in the folder of its model (train.init_from, model), else
/// that of data.template, else bytes. The folder itself if it has no tokenizer.
std::string usual_tokenizer(const Job& job);

/// The folder of the model whose chat template `data.template: model` means. Throws ConfigError where there
/// is none.
std::string model_chat_template(const Job& job);

/// Loads the data that a job names. Throws as load_dataset() does, and ConfigError if a model of the user
/// would learn from text that the job does not name.
Dataset load_job_data(const Job& job);
/// The same; throws ConfigError for a token that the model does not have.
Dataset load_job_data(const Job& job, const ModelConfig& model);

/// One line with the text of a run, its tokenizer, the trained part of the model, and the length of the run.
std::string training_line(const Job& job, const ModelConfig& model, const Dataset& data);

}  // namespace hetermoe
