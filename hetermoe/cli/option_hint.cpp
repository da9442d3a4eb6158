#include "hetermoe/cli/option_hint.h"

#include <algorithm>
#include <map>
#include <set>

#include "hetermoe/base/suggest.h"
#include "hetermoe/train/job/job.h"

namespace hetermoe {
namespace {

/// What other trainers call an option, with '_'.
const std::map<std::string, std::string>& names_elsewhere() {
  static const std::map<std::string, std::string> all = {
      {"train.dtype", "plan.attention_dtype"},
      {"lr", "train.learning_rate"},
      {"train.lr", "train.learning_rate"},
      {"lr_scheduler_type", "train.schedule"},
      {"lr_decay_style", "train.schedule"},
      {"warmup_ratio", "train.warmup_steps"},
      {"batch_size", "train.sequences"},
      {"global_batch_size", "train.sequences"},
      {"per_device_train_batch_size", "train.sequences"},
      {"micro_batch_size", "train.microbatches"},
      {"gradient_accumulation_steps", "train.microbatches"},
      {"gradient_checkpointing", "plan.recompute"},
      {"max_steps", "train.steps"},
      {"train_iters", "train.steps"},
      {"num_train_epochs", "train.epochs"},
      {"seq_len", "seq"},
      {"max_seq_length", "train.seq_len"},
      {"cutoff_len", "train.seq_len"},
      {"model_name_or_path", "train.init_from"},
      {"lora_rank", "train.lora.rank"},
      {"lora_alpha", "train.lora.alpha"},
      {"lora_target", "train.lora.targets"},
      {"dataset", "data.paths"},
      {"eval_steps", "train.validate_every"},
      {"logging_steps", "train.log_every"},
      {"save_steps", "checkpoint.every"},
      {"save_interval", "checkpoint.every"},
      {"resume_from_checkpoint", "checkpoint.resume"},
      {"output_dir", "output"}};
  return all;
}

/// A key of a job that is true or false, as "--plan.row_dedup" or "--no-plan.row-dedup".
bool is_truth_key(const std::string& word) {
  static const std::set<std::string> keys = [] {
    std::set<std::string> names;
    for (const FieldDoc& field : job_fields())
      if (field.type == type_text<bool>()) names.insert(field.name);
    return names;
  }();
  return keys.contains(with_underscores(word.substr(word.starts_with("--no-") ? 5 : 2)));
}

bool is_number(const std::string& word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string nearest_option(const std::string& got, const std::vector<std::string>& names) {
  if (got.size() < 2) return "";  // everything is near
  if (const auto known = names_elsewhere().find(with_underscores(got));
      known != names_elsewhere().end() && std::find(names.begin(), names.end(), known->second) != names.end())
    return known->second;
  // --seq, which other commands have, is train.seq_len.
  for (const std::string& name : names)
    if (name.find("." + got + "_") != std::string::npos) return name;
  const std::string near = nearest_name(got, names);
  if (!near.empty()) return near;
  std::vector<std::string> last_parts;
  for (const std::string& name : names) last_parts.push_back(name.substr(name.rfind('.') + 1));
  const std::string near_part = nearest_name(got, last_parts);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!near_part.empty() && last_parts[i] == near_part) return names[i];
  }
  return "";
}

std::vector<std::string> join_truth_values(const std::vector<std::string>& words) {
  static const std::set<std::string> truths = {"true", "false", "yes", "no", "on", "off"};
  std::vector<std::string> joined;
  for (const std::string& word : words) {
    const bool follows_option =
        !joined.empty() && joined.back().starts_with("--") && joined.back().find('=') == std::string::npos;
    if (follows_option && (truths.contains(word) || (is_number(word) && is_truth_key(joined.back()))))
      joined.back() += "=" + word;
    else
      joined.push_back(word);
  }
  return joined;
}

}  // namespace hetermoe
