#include "hetermoe/train/job/job.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "hetermoe/base/paths.h"
#include "hetermoe/base/version.h"
#include "hetermoe/base/words.h"
#include "hetermoe/plan/nics.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/plan/row_nodes.h"
#include "hetermoe/train/job/clock_choice.h"
#include "hetermoe/train/job/divided_plan.h"
#include "hetermoe/train/job/freeze.h"
#include "hetermoe/train/job/job_checks.h"
#include "hetermoe/train/job/job_data.h"
#include "hetermoe/train/job/lora.h"
#include "hetermoe/train/job/router_bias.h"
#include "hetermoe/train/job/router_training.h"
#include "hetermoe/train/job/usual_choices.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<OnNonfinite>::names() {
  static const std::vector<std::string> all = {"stop", "skip"};
  return all;
}

namespace {

using Override = std::pair<std::string, std::string>;

const FieldDoc& find_option(const std::string& flag) {
  std::string name = flag;
  std::replace(name.begin(), name.end(), '-', '_');
  std::vector<std::string> names;
  for (const FieldDoc& option : job_fields()) {
    if (option.name == name) return option;
    names.push_back(option.name);
  }
  const std::string near = nearest_name(name, names);
  fail<ConfigError>("--" + flag, "unknown option.{} `{} options` lists all.",
                    near.empty() ? "" : fmt::format(" Did you mean \"--{}\"?", near), program());
}

/// A value as typed: text needs no quotes, a list is [a, b] or a,b. begin: of the place in errors, "--" for
/// flags.
Json option_value(const FieldDoc& option, const std::string& text, const std::string& begin) {
  const std::string where = begin + option.name;
  if (option.type == "text") return text;
  if (option.type == "name") return text == "null" ? Json(nullptr) : Json(text);
  if (!option.type.starts_with("list of ")) return parse_yaml(text, where);
  if (text.starts_with('[')) return parse_yaml(text, where);
  FieldDoc item = option;
  item.type = option.type.substr(std::string("list of ").size());
  Json list = Json::array();
  for (const std::string& part : cut_at_commas(text)) list.push_back(option_value(item, part, begin));
  return list;
}

Json overrides_json(const std::vector<Override>& overrides) {
  Json json = Json::object();
  for (const auto& [flag, text] : overrides) {
    const FieldDoc& option = find_option(flag);
    json[pointer_of(option)] = option_value(option, text, "--");
  }
  return json;
}

/// A list in a file may stand as flags have it: "all" or "a,b" in place of [all] or [a, b].
void spread_lists(Json& file, const std::string& where) {
  for (const FieldDoc& option : job_fields()) {
    if (!option.type.starts_with("list of ")) continue;
    const Json::json_pointer at = pointer_of(option);
    if (file.contains(at) && file[at].is_string())
      file[at] = option_value(option, file[at].get<std::string>(), where);
  }
}

/// A plan file settles the shape of a step: what nobody gave is taken from it, and where the plan is given as
/// a flag, what only the job's file gives, too, which was meant for another plan.
void adopt_plan_shape(Job& job, const Json& file, const Json& flags) {
  if (job.plan.file.empty()) return;
  const Plan plan = plan_from_json(read_json(job.plan.file), job.plan.file);
  const bool is_flag = flags.contains(Json::json_pointer("/plan/file"));
  const auto is_given = [&](const char* key) {
    const Json::json_pointer pointer(std::string("/train/") + key);
    return flags.contains(pointer) || (file.contains(pointer) && !is_flag);
  };
  if (!is_given("seq_len")) job.train.seq_len = plan.seq_len;
  if (!is_given("sequences")) job.train.sequences = total_sequences(plan);
  if (!is_given("microbatches") && !plan.groups.empty()) {
    job.train.microbatches = static_cast<i64>(plan.groups[0].microbatches.size());
  }
}

Job make_job(Json file, const std::string& where, const std::vector<Override>& overrides) {
  Job job;
  if (file.contains("plan")) drop_retired_keys(file["plan"], where + "plan.");
  const Json flags = overrides_json(overrides);
  spread_lists(file, where);
  read_fields(file, job, where);
  read_fields(flags, job, "--");
  settle_usual(file, flags, job);
  if (job.data.chat_template == "model") job.data.chat_template = model_chat_template(job);
  if (!job.clock.kind) job.clock.kind = usual_clock(job);
  check_names(job, where);
  adopt_plan_shape(job, file, flags);
  settle_length(file, flags, job.train);
  check_values(job);
  return job;
}

void check_lengths(const PlanOptions& options, const ModelConfig& model) {
  const i64 moved = static_cast<i64>(options.experts_moved.size());
  if (moved != 0 && moved != model.num_layers)
    fail<ConfigError>("plan.experts_moved", "got {} entries, expected one per layer of model {} ({})", moved,
                      model.name, model.num_layers);
}

void check_devices(const std::vector<DeviceId>& devices, const char* key, const Cluster& cluster) {
  for (const DeviceId device : devices) {
    if (device >= cluster.num_devices()) {
      fail<ConfigError>(key, "device {} does not exist: cluster {} has devices 0 to {}", device, cluster.name,
                        cluster.num_devices() - 1);
    }
  }
}

void check_devices(const PlanOptions& options, const Cluster& cluster) {
  check_devices(options.attention, "plan.attention", cluster);
  check_devices(options.experts, "plan.experts", cluster);
}

/// Sums over speeds that are further apart lose the slow ones, which then get nothing.
void check_weights(const std::vector<double>& weights, const char* key) {
  constexpr double kMostApart = 1e6;
  if (weights.empty()) return;
  const auto [slowest, fastest] = std::minmax_element(weights.begin(), weights.end());
  if (*fastest / *slowest <= kMostApart) return;
  fail<ConfigError>(key, "got {} beside {}, expected speeds of devices, of which none is {} times another",
                    *slowest, *fastest, kMostApart);
}

/// What a strategy would leave aside is told, not ignored.
void check_roles(const PlanOptions& options, const Strategy& strategy) {
  if (strategy.use == DeviceUse::kApart) return;
  if (strategy.use == DeviceUse::kOne && options.attention.size() > 1) {
    fail<ConfigError>("plan.attention", "got devices {}, expected one: strategy single runs on one device",
                      fmt::join(options.attention, ", "));
  }
  if (!options.experts.empty() && options.experts != options.attention) {
    fail<ConfigError>(
        "plan.experts",
        "got devices {}, but strategy {} has its experts on the devices of plan.attention: leave "
        "it out, or use zebra or dist-ep",
        fmt::join(options.experts, ", "), strategy.name);
  }
  const std::vector<i64>& moved = options.experts_moved;
  if (std::any_of(moved.begin(), moved.end(), [](i64 count) { return count > 0; })) {
    fail<ConfigError>("plan.experts_moved",
                      "strategy {} has no devices with experts alone that could give some up, expected zebra "
                      "or dist-ep",
                      strategy.name);
  }
}

/// Keys that differ from their defaults and that the strategy does not look at.
std::vector<std::string> unused_keys(const CutOptions& options, const Strategy& strategy) {
  CutOptions used = options;
  drop_unused(strategy, used);
  const Json got = write_fields(options), kept = write_fields(used);
  std::vector<std::string> keys;
  for (const auto& [key, value] : got.items())
    if (value != kept[key]) keys.push_back(key);
  return keys;
}

void check_cut(const PlanOptions& options, const Strategy& strategy) {
  const std::vector<std::string> keys = unused_keys(options, strategy);
  if (keys.empty()) return;
  std::vector<std::string> users;
  for (std::size_t s = 0; s < strategies().size(); ++s) {
    const std::vector<std::string> of_other = unused_keys(options, strategies()[s]);
    if (std::find(of_other.begin(), of_other.end(), keys[0]) == of_other.end())
      users.push_back(strategy_names()[s]);
  }
  fail<ConfigError>("plan." + keys[0], "strategy {} does not look at it, expected {}, or no such key",
                    strategy.name, fmt::join(users, " or "));
}

/// `unmoved`: the plan before any expert moves.
void check_moves(const std::vector<i64>& moved, const ModelConfig& model, const Plan& unmoved) {
  for (std::size_t l = 0; l < moved.size(); ++l) {
    if (moved[l] == 0) continue;
    const std::string where = fmt::format("plan.experts_moved[{}]", l);
    if (!model.is_moe(static_cast<i64>(l)))
      fail<ConfigError>(where, "got {}, expected 0: layer {} of {} has no experts", moved[l], l, model.name);
    std::map<DeviceId, i64> owned;
    for (const auto& owners : unmoved.groups[0].layers[l].experts) ++owned[owners[0].device];
    for (const auto& [device, count] : owned) {
      if (moved[l] > count) {
        fail<ConfigError>(where, "got {}, expected at most {}: device {} has no more experts of this layer",
                          moved[l], count, device);
      }
    }
  }
}

/// In which time and memory of a run in `dtype` are asked for.
Dtype emulated_dtype(const Job& job, Dtype dtype) {
  return job.clock.emulated_dtype.value_or(bytes_of(dtype) == 2 ? dtype : Dtype::kFp16);
}

void set_dtypes(Plan& plan, const PlanOptions& options) {
  const std::vector<std::string> roles = roles_of(plan);
  for (std::size_t d = 0; d < plan.dtype.size(); ++d) {
    const std::string& role = roles[d];
    if (role == "expert" && options.expert_dtype) plan.dtype[d] = *options.expert_dtype;
    if ((role == "attention" || role == "both") && options.attention_dtype)
      plan.dtype[d] = *options.attention_dtype;
  }
  if (options.wire_dtype) plan.wire_forward = plan.wire_backward = *options.wire_dtype;
  if (options.wire_backward) plan.wire_backward = *options.wire_backward;
}

/// By default the strategy says which queues there are (moves of roundpipe have some by phase), and how many
/// slots.
void take_choices(Plan& plan, const PlanOptions& options) {
  const PlanChoices of_strategy = plan;
  static_cast<PlanChoices&>(plan) = options;
  if (options.queue_binding == QueueBinding::kDirection) plan.queue_binding = of_strategy.queue_binding;
  if (options.slots == VisitSlots{}) plan.slots = of_strategy.slots;
}

Plan plan_of_strategy(const Job& job, const ModelConfig& model, const Cluster& cluster) {
  const PlanOptions& options = job.plan;
  const Strategy& strategy = find_strategy(job.strategy);
  if (job.train.microbatches > job.train.sequences) {
    fail<ConfigError>("train.microbatches", "got {}, expected at most train.sequences ({})",
                      job.train.microbatches, job.train.sequences);
  }
  if (job.train.save_hf_every > 0 && job.train.save_hf.empty()) {
    fail<ConfigError>("train.save_hf_every", "got {} without train.save_hf, expected the folder to write to",
                      job.train.save_hf_every);
  }
  check_lengths(options, model);
  check_roles(options, strategy);
  check_cut(options, strategy);
  check_devices(options, cluster);
  check_weights(options.attention_weights, "plan.attention_weights");
  check_weights(options.expert_weights, "plan.expert_weights");
  StrategyRequest request;
  request.seq_len = job.train.seq_len;
  request.sequences = job.train.sequences;
  request.microbatches = job.train.microbatches;
  request.attention = options.attention, request.experts = options.experts;
  request.attention_weights = options.attention_weights, request.expert_weights = options.expert_weights;
  request.window = options.window;
  request.dtype = emulated_dtype(job, options.attention_dtype.value_or(Dtype::kFp32));
  request.combine_to = options.combine_to, request.nics = nics_of_devices(options.nics, cluster);
  request.staleness = job.train.staleness;
  request.offload = options.offload;
  const StepOptions step = step_options(job, model);
  request.trained = TrainedShares({step.frozen, step.lora}, model);
  static_cast<CutOptions&>(request) = options;
  Plan plan = strategy.make(model, cluster, request);
  if (!options.experts_moved.empty()) {
    check_moves(options.experts_moved, model, plan);
    request.experts_moved = options.experts_moved;
    plan = strategy.make(model, cluster, request);
  }
  take_choices(plan, options), plan.nics = request.nics;
  set_recompute_of_layers(plan, options.recompute_layers, "plan.recompute_layers");
  if (options.shard_weights) shard_weights(plan);
  if (options.node_dedup) plan.row_nodes = nodes_of_devices(cluster);
  offload(plan, model, cluster, options.offload, "plan.offload");
  set_dtypes(plan, options);
  plan.made_for = cluster.types_text();
  return plan;
}

Plan plan_of_file(const Job& job) {
  PlanOptions only_file;
  only_file.file = job.plan.file;
  const Json expected = write_fields(only_file), got = write_fields(job.plan);
  for (const auto& [key, value] : got.items()) {
    if (value == expected[key]) continue;
    fail<ConfigError>("plan." + key,
                      "got {}, but the plan comes from {}: change it there, or leave out plan.file",
                      describe(value), job.plan.file);
  }
  return plan_from_json(read_json(job.plan.file), job.plan.file);
}

/// The sampler and the loss count by the job, the executor by the plan.
void check_step_shape(const Job& job, const Plan& plan, std::vector<std::string>& faults) {
  if (plan.seq_len != job.train.seq_len) {
    faults.push_back(
        fmt::format("[seq_len] got {}, but train.seq_len is {}", plan.seq_len, job.train.seq_len));
  }
  if (total_sequences(plan) != job.train.sequences) {
    faults.push_back(fmt::format("[groups] microbatches add up to {} sequences, but train.sequences is {}",
                                 total_sequences(plan), job.train.sequences));
  }
}

}  // namespace

Json::json_pointer pointer_of(const FieldDoc& field) {
  std::string pointer = "/" + field.name;
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return Json::json_pointer(pointer);
}

const std::vector<FieldDoc>& job_fields() {
  static const std::vector<FieldDoc> all = document_fields<Job>();
  return all;
}

Json to_json(const Job& job) { return write_fields(job); }

Job load_job(const std::string& path, const std::vector<Override>& overrides) {
  if (path.empty()) fail<ConfigError>("job", "the name of the file is empty, expected a job file (YAML)");
  if (std::filesystem::is_directory(path))
    fail<ConfigError>(path, "is a folder, expected a file, such as the job of a run: {}",
                      (std::filesystem::path(path) / "job.json").string());
  const std::filesystem::path given = path;
  const bool is_name = !given.has_parent_path() && !std::filesystem::exists(given);
  const std::string file = is_name ? find_config(path, "jobs", "yaml").string() : path;
  return parse_job(read_text(file, kMostYaml), file, overrides);
}

Job parse_job(const std::string& yaml, const std::string& path, const std::vector<Override>& overrides) {
  const Json file = parse_yaml(yaml, path);
  if (file.is_null() || (file.is_object() && file.empty())) {
    fail<ConfigError>(
        path, "holds no key of a job, expected at least one such as \"model: demo\"; `{} options` lists all",
        program());
  }
  check_is_job(file, path);
  return make_job(file, path + " ", overrides);
}

Job job_from_overrides(const std::vector<Override>& overrides) {
  return make_job(Json::object(), "", overrides);
}

Job job_of_strategy(const Job& job, const std::string& strategy, const std::vector<std::string>& compared,
                    const Cluster& cluster) {
  Job own = job;
  own.strategy = strategy;
  const Strategy& own_row = find_strategy(strategy);
  const DeviceUse use = own_row.use;
  DeviceUse widest = use;
  for (const std::string& other : compared) widest = std::max(widest, find_strategy(other).use);
  PlanOptions& plan = own.plan;
  std::vector<std::string> of_nobody = unused_keys(plan, own_row);
  for (const std::string& other : compared) {
    const std::vector<std::string> unused = unused_keys(plan, find_strategy(other));
    std::erase_if(of_nobody, [&](const std::string& key) {
      return std::find(unused.begin(), unused.end(), key) == unused.end();
    });
  }
  if (of_nobody.empty()) drop_unused(own_row, plan);
  if (use == widest || !plan.file.empty()) return own;
  check_devices(plan, cluster);
  const Roles roles = roles_of(widest, cluster, {plan.attention, plan.experts});
  std::vector<DeviceId> devices = {roles.attention.at(0)};
  if (use == DeviceUse::kAlike) {
    std::set<DeviceId> all(roles.attention.begin(), roles.attention.end());
    all.insert(roles.experts.begin(), roles.experts.end());
    devices.assign(all.begin(), all.end());
  }
  // A weight belongs to a device of the list.
  if (devices != roles.attention) plan.attention_weights.clear();
  if (devices != roles.experts) plan.expert_weights.clear();
  plan.attention = devices;
  plan.experts.clear();
  plan.experts_moved.clear();
  return own;
}

std::vector<std::string> plan_faults(const Job& job, const Plan& plan, const ModelConfig& model,
                                     const Cluster& cluster) {
  std::vector<std::string> faults = validate(plan, model, cluster);
  check_step_shape(job, plan, faults);
  return faults;
}

Plan make_job_plan(const Job& job, const ModelConfig& model, const Cluster& cluster) {
  check_router_bias(job.train, model);
  check_router_training(job, model);
  lora_of(job.train, model);
  const bool from_file = !job.plan.file.empty();
  Plan plan = from_file ? plan_of_file(job) : plan_of_strategy(job, model, cluster);
  // A plan for as many devices on other nodes is one for these, too.
  if (plan.row_nodes.size() == cluster.devices.size()) plan.row_nodes = nodes_of_devices(cluster);
  std::vector<std::string> faults = plan_faults(job, plan, model, cluster);
  if (faults.empty() && divides_in_step(job)) {
    plan = divided_in_step(job, std::move(plan), model, cluster);
    faults = plan_faults(job, plan, model, cluster);
  }
  if (faults.empty()) {
    check_team_job(job, plan);
    check_lora_plan(job, plan, model);
    check_divided(job, plan, model, cluster);
    return plan;
  }
  constexpr std::size_t kShown = 20;
  const std::size_t hidden = faults.size() - std::min(faults.size(), kShown);
  faults.resize(faults.size() - hidden);
  fail<ConfigError>(from_file ? job.plan.file : "strategy " + job.strategy, "{}:\n  {}{}",
                    misfit_text(plan, model, cluster), fmt::join(faults, "\n  "),
                    hidden > 0 ? fmt::format("\n  and {} more", hidden) : "");
}

StepOptions step_options(const Job& job, const ModelConfig& model) {
  std::shared_ptr<const Lora> lora = lora_of(job.train, model);
  return {.balance = model.aux_loss_coef > 0,
          .aux_group = job.train.aux_group,
          .backward = true,
          .frozen = lora ? units_without(model, *lora) : frozen_units(job.train.freeze, model),
          .staleness = job.train.staleness,
          .lora = std::move(lora),
          .aux_per_layer = job.train.aux_per_layer};
}

Plan emulated_plan(const Job& job, const Plan& plan) {
  const auto emulated = [&](Dtype dtype) { return emulated_dtype(job, dtype); };
  Plan out = plan;
  for (Dtype& dtype : out.dtype) dtype = emulated(dtype);
  if (out.grad_dtype == Dtype::kFp64) out.grad_dtype.reset();
  if (job.plan.wire_dtype) return out;
  const auto emulate = [&](Wire& wire) {
    if (const std::optional<Dtype> dtype = dtype_of(wire)) wire = wire_of(emulated(*dtype));
  };
  emulate(out.wire_forward);
  if (!job.plan.wire_backward) emulate(out.wire_backward);
  return out;
}

}  // namespace hetermoe
