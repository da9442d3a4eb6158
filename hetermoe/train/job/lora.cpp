#include "hetermoe/train/job/lora.h"

#include <algorithm>
#include <map>

#include "hetermoe/model/lora_targets.h"
#include "hetermoe/placement/placement.h"
#include "hetermoe/train/job/freeze.h"
#include "hetermoe/weights/peft_adapter.h"

namespace hetermoe {
namespace {

constexpr const char* kTargets = "train.lora.targets";

/// The experts of a layer lie in one storage, so they have the same adapters.
void check_experts(const ModelConfig& model, const std::vector<std::string>& targets) {
  std::map<std::pair<i32, std::string>, i64> experts;  // layer and ending of the name: with adapters
  for (const ParamInfo& parameter : parameters(model)) {
    if (parameter.expert < 0) continue;
    const std::size_t dot =
        parameter.name.rfind('.', parameter.name.size() - std::string(".weight").size() - 1);
    experts[{parameter.layer, parameter.name.substr(dot + 1)}] +=
        std::binary_search(targets.begin(), targets.end(), parameter.name) ? 1 : 0;
  }
  for (const auto& [key, count] : experts) {
    if (count == 0 || count == model.num_experts) continue;
    fail<ConfigError>(
        kTargets, "match {} of {} experts of layer {}, expected all or none: name an expert's number by *",
        count, model.num_experts, key.first);
  }
}

}  // namespace

void settle_adapters(TrainOptions& train, const std::function<bool(const std::string&)>& given) {
  LoraOptions& lora = train.lora;
  if (lora.from.empty()) return;
  if (train.init_from.empty())
    fail<ConfigError>(
        "train.lora.from",
        "got {} without train.init_from, expected the model that these adapters were trained on", lora.from);
  const PeftAdapter adapters(lora.from);
  const auto take = [&](const char* key, auto& own, const auto& theirs) {
    if (given(key) && own != theirs)
      fail<ConfigError>(fmt::format("train.lora.{}", key),
                        "got {}, expected {}, which the adapters of {} have, or leave it out", own, theirs,
                        lora.from);
    own = theirs;
  };
  take("rank", lora.rank, adapters.rank());
  take("alpha", lora.alpha, adapters.alpha());
  if (given("targets") && lora.targets != adapters.targets())
    fail<ConfigError>(kTargets, "is given with train.lora.from, whose adapters have theirs: leave it out");
  lora.targets = adapters.targets();
}

std::shared_ptr<const Lora> lora_of(const TrainOptions& train, const ModelConfig& model) {
  if (train.lora.rank == 0) {
    if (!train.lora.targets.empty())
      fail<ConfigError>(kTargets,
                        "are given without train.lora.rank, expected the rank of their adapters, as 8");
    return nullptr;
  }
  if (!train.freeze.empty())
    fail<ConfigError>("train.freeze",
                      "cannot go with train.lora, which freezes all but adapters: leave it out");
  std::vector<std::string> targets;
  const std::vector<std::string> patterns =
      train.lora.targets.empty() ? usual_lora_targets(model) : train.lora.targets;
  std::vector<bool> used(patterns.size(), false);
  for (const ParamInfo& parameter : parameters(model)) {
    if (!can_have_adapter(parameter)) continue;
    bool matched = false;
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (matches_pattern(patterns[i], parameter.name)) matched = used[i] = true;
    }
    if (matched) targets.push_back(parameter.name);
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    fail<ConfigError>(
        kTargets,
        "\"{}\" matches no matrix of model {} that can have an adapter: expected names such as "
        "model.layers.0.self_attn.o_proj.weight, in which * stands for any text; embeddings, the "
        "head, norms and routers have none",
        patterns[i], model.name);
  }
  std::sort(targets.begin(), targets.end());
  check_experts(model, targets);
  return std::make_shared<const Lora>(
      make_lora(model, train.lora.rank, train.lora.alpha, std::move(targets)));
}

i64 adapter_rank(const Json& job) {
  return job.is_object() ? job.value(Json::json_pointer("/train/lora/rank"), i64{0}) : 0;
}

void check_adapter_is_there(const std::string& name, bool is_there) {
  if (is_there || !is_adapter(name)) return;
  fail<ConfigError>(
      "train.lora",
      "gives an adapter to {}, which had none in the run that wrote the checkpoint. Give the same "
      "targets, or begin anew with --checkpoint.resume false and another output folder",
      matrix_of(name));
}

void check_lora_plan(const Job& job, const Plan& plan, const ModelConfig& model) {
  if (job.train.lora.rank == 0) return;
  for (const State& state : make_states(plan, model)) {
    if (state.gathered())
      fail<ConfigError>("train.lora",
                        "cannot go with a plan whose weights are divided (plan.shard_weights): leave one of "
                        "both out. What adapters leave to divide is small; plan.offload: [weights] keeps "
                        "frozen weights on hosts");
    if (!state.homes.empty() && !state.visits())
      fail<ConfigError>(
          "plan.offload",
          "got optimizer with train.lora, expected weights, all or PART.weights: frozen weights "
          "have no optimizer states, and those of adapters stay on the devices");
  }
}

}  // namespace hetermoe
