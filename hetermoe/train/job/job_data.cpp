#include "hetermoe/train/job/job_data.h"

#include <filesystem>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/data/model_template.h"
#include "hetermoe/model/unit.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/job/epochs.h"

namespace hetermoe {
namespace {
namespace fs = std::filesystem;

/// The folder that a model or a template is named by, itself or a file in it; empty = it is no path.
fs::path folder_named(const std::string& name) {
  std::error_code ignored;
  if (only_sounds_like_a_model(name)) return {};
  if (fs::is_directory(name, ignored)) return name;
  const std::string file = fs::path(name).filename().string();
  const bool is_of_folder =
      file == "config.json" || file == "tokenizer_config.json" || file == "chat_template.jinja";
  if (!is_of_folder || !fs::is_regular_file(name, ignored)) return {};
  const fs::path parent = fs::path(name).parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

std::string what_is_trained(const Job& job, const ModelConfig& model) {
  const std::string all = format_count(real(count_parameters(model).total));
  const StepOptions step = step_options(job, model);
  if (step.lora) {
    i64 adapters = 0;
    for (const auto& [unit, numbers] : step.lora->numbers) adapters += numbers;
    return fmt::format("adapters of rank {} ({} parameters; the {} of the model are frozen)", step.lora->rank,
                       format_count(real(adapters)), all);
  }
  i64 frozen = 0;
  for (const Unit& unit : step.frozen) frozen += num_parameters(model, unit);
  if (frozen == 0) return fmt::format("all {} parameters", all);
  i64 trained = -frozen;
  for (const Unit& unit : units(model)) trained += num_parameters(model, unit);
  return fmt::format("{} of {} parameters, the others are frozen", format_count(real(trained)), all);
}

}  // namespace

std::string usual_tokenizer(const Job& job) {
  fs::path silent;
  for (const std::string& name : {job.train.init_from, job.model, job.data.chat_template}) {
    const fs::path folder = folder_named(name);
    if (folder.empty()) continue;
    if (const std::string found = find_tokenizer(folder); !found.empty()) return found;
    if (silent.empty() && name != job.data.chat_template) silent = folder;
  }
  return silent.empty() ? "bytes" : silent.string();
}

std::string model_chat_template(const Job& job) {
  for (const std::string& name : {job.train.init_from, job.model, job.data.tokenizer}) {
    const fs::path named = folder_named(name);
    const fs::path folder =
        named.empty() && fs::path(name).extension() == ".json" ? fs::path(name).parent_path() : named;
    if (!folder.empty() && has_chat_template(folder.string())) return folder.string();
  }
  fail<ConfigError>(
      "data.template",
      "got model, but no folder of train.init_from, model or data.tokenizer has a "
      "chat_template.jinja, or a tokenizer_config.json with chat_template: expected one there, or {}",
      chat_template_list());
}

Dataset load_job_data(const Job& job) {
  if (!job.train.init_from.empty() && !std::filesystem::exists(job.train.init_from))
    fail<ConfigError>("train.init_from",
                      "{} is not there, expected a Hugging Face folder (config.json and safetensors)",
                      job.train.init_from);
  if (job.data.paths.empty() && !job.train.init_from.empty()) {
    fail<ConfigError>("data.paths",
                      "is empty, but the model comes from {}: name what it shall learn from, as --data.paths "
                      "my_texts/",
                      job.train.init_from);
  }
  return load_dataset(job.data, job.train.seq_len);
}

Dataset load_job_data(const Job& job, const ModelConfig& model) {
  Dataset data = load_job_data(job);
  check_vocabulary(data, model);
  return data;
}

std::string training_line(const Job& job, const ModelConfig& model, const Dataset& data) {
  return fmt::format("learns from {}; trains {} {}", data_line(data, job.data), what_is_trained(job, model),
                     length_text(job.train, data));
}

}  // namespace hetermoe
