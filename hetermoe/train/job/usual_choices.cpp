#include "hetermoe/train/job/usual_choices.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/base/version.h"
#include "hetermoe/base/words.h"
#include "hetermoe/plan/row_nodes.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/train/job/job_data.h"
#include "hetermoe/train/job/lora.h"

namespace hetermoe {
namespace {

/// A dense model has nothing for the devices for experts alone that zebra wants.
bool is_dense(const std::string& name) {
  try {
    return load_model(name).num_moe_layers() == 0;
  } catch (const std::exception&) {
    return false;  // a model that cannot be read is told where it is needed
  }
}

}  // namespace

void settle_usual(const Json& file, const Json& flags, Job& job) {
  const auto is_written = [&](const std::string& key) {
    const Json::json_pointer pointer(key);
    return file.contains(pointer) || flags.contains(pointer);
  };
  if (!job.train.init_from.empty() && !is_written("/model")) job.model = job.train.init_from;
  job.usual.model = !is_written("/model") && job.train.init_from.empty() && job.plan.file.empty();
  job.usual.cluster = !is_written("/cluster") && job.plan.file.empty();
  settle_adapters(job.train, [&](const std::string& key) { return is_written("/train/lora/" + key); });
  if (!is_written("/data/tokenizer")) job.data.tokenizer = usual_tokenizer(job);
  job.usual.strategy = !is_written("/strategy") && job.plan.file.empty() && is_dense(job.model);
  if (job.usual.strategy) job.strategy = "ep";
  job.usual.learning_rate = !is_written("/train/learning_rate");
  // Weights that have learned would lose it by steps as large as those from scratch.
  if (job.usual.learning_rate && !job.train.init_from.empty())
    job.train.learning_rate = job.train.lora.rank > 0 ? 1e-4 : 5e-5;
}

std::string taken_by_default(const Job& job) {
  std::vector<std::string> taken;
  if (job.usual.model) taken.push_back(fmt::format("model {} (--model names another)", job.model));
  if (job.usual.cluster) taken.push_back(fmt::format("cluster {} (--cluster names another)", job.cluster));
  return taken.empty() ? "" : fmt::format("taken by default: {}", fmt::join(taken, ", "));
}

std::vector<std::string> usual_notes(const Job& job, const ModelConfig& model) {
  std::vector<std::string> out;
  if (job.usual.strategy) {
    out.push_back(fmt::format("strategy is {}, the default for a model without experts such as {}",
                              job.strategy, model.name));
  }
  if (job.usual.learning_rate && !job.train.init_from.empty()) {
    out.push_back(fmt::format("train.learning_rate is {}, the default for {} of train.init_from",
                              job.train.learning_rate,
                              job.train.lora.rank > 0 ? "adapters beside weights" : "weights"));
  }
  const TrainOptions& train = job.train;
  if (train.warmup_steps > train.steps && train.warmup_steps != TrainOptions().warmup_steps)
    out.push_back(fmt::format(
        "train.warmup_steps {} are more than the {} of the run: the learning rate ends at {:.2g}, "
        "below its peak {:.2g}",
        train.warmup_steps, counted(train.steps, "step"),
        train.learning_rate * real(train.steps) / real(train.warmup_steps), train.learning_rate));
  return out;
}

std::string misfit_text(const Plan& plan, const ModelConfig& model, const Cluster& cluster) {
  const bool of_model = plan.model != model.name;
  const bool of_cluster = !plan.made_for.empty() && plan.made_for != cluster.types_text();
  if (!of_model && !of_cluster)
    return fmt::format("the plan does not fit model {} on cluster {}", model.name, cluster.name);
  return fmt::format("the plan was made for {}{}{} and cannot serve model {} on cluster {}{}",
                     of_model ? "model " + plan.model : "", of_model && of_cluster ? " and " : "",
                     of_cluster ? plan.made_for : "", model.name, cluster.name,
                     of_cluster ? fmt::format(" of {}", cluster.types_text()) : "");
}

std::string row_nodes_note(const Plan& plan, const Cluster& cluster) {
  if (plan.row_nodes.empty()) return "";
  return may_pass_rows_on(plan, cluster)
             ? "a token goes once to each node, where a device passes it on (plan.node_dedup)"
             : "plan.node_dedup has no effect: no node has several owners of a layer's experts and gets rows "
               "of other nodes";
}

std::string both_roles_note(const Job& job, const Cluster& cluster) {
  const PlanOptions& plan = job.plan;
  if (!plan.file.empty() || (plan.attention.empty() && plan.experts.empty()) ||
      find_strategy(job.strategy).use != DeviceUse::kApart)
    return "";
  const Roles roles = roles_of(DeviceUse::kApart, cluster, {plan.attention, plan.experts});
  std::vector<std::string> names;
  for (const DeviceId device : roles.attention)
    if (std::find(roles.experts.begin(), roles.experts.end(), device) != roles.experts.end())
      names.push_back(cluster.device_name(device));
  if (names.empty()) return "";
  const char* lists =
      plan.attention.empty() ? "plan.experts and among the devices that have attention by default"
      : plan.experts.empty() ? "plan.attention and among the devices that have experts by default"
                             : "plan.attention and in plan.experts";
  return fmt::format("{} {} attention and experts in turn: {} in {}", fmt::join(names, ", "),
                     agree(names.size(), "computes", "compute"), agree(names.size(), "it is", "they are"),
                     lists);
}

std::string other_devices_note(const Plan& plan, const Cluster& cluster) {
  const std::string own = cluster.types_text();
  if (plan.made_for.empty() || plan.made_for == own) return "";
  return fmt::format(
      "the plan was made for {}, and cluster {} has {}: another plan may be faster there ({} plan)",
      plan.made_for, cluster.name, own, program());
}

}  // namespace hetermoe
