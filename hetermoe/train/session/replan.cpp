#include "hetermoe/train/session/replan.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "hetermoe/planner/planner.h"
#include "hetermoe/report/table.h"
#include "hetermoe/schedule/schedule.h"
#include "hetermoe/train/session/session.h"

namespace hetermoe {
namespace {

std::vector<DeviceId> chosen(const std::vector<DeviceId>& from, const std::vector<DeviceId>& indices) {
  std::vector<DeviceId> out;
  for (const DeviceId i : indices) out.push_back(from[static_cast<std::size_t>(i)]);
  return out;
}

/// Roles for a cluster that has nothing but the survivors.
Roles new_roles(const Cluster& cluster, const std::vector<DeviceId>& survivors) {
  Cluster rest = cluster;
  rest.devices.clear();
  for (const DeviceId d : survivors) rest.devices.push_back(cluster.devices[static_cast<std::size_t>(d)]);
  const Roles roles = default_roles(rest);
  return {chosen(survivors, roles.attention), chosen(survivors, roles.experts)};
}

/// What the devices of a plan do, as far as they survive.
Roles kept_roles(const Plan& plan, const std::vector<DeviceId>& survivors) {
  Roles roles;
  const std::vector<std::string> all = roles_of(plan);
  for (const DeviceId d : survivors) {
    // Experts that Asym-EA moved do not make an attention device an expert device.
    (all[static_cast<std::size_t>(d)] == "expert" ? roles.experts : roles.attention).push_back(d);
  }
  return roles;
}

/// The job by its own strategy, over the survivors.
Job with_own_strategy(const Job& job, const Plan& before, const Cluster& cluster,
                      const std::vector<DeviceId>& survivors) {
  Job changed = job;
  changed.strategy = find_strategy(job.strategy).name;
  const DeviceUse use = find_strategy(job.strategy).use;
  Roles roles;
  if (survivors.size() == 1 || use == DeviceUse::kOne) {
    changed.strategy = "single";
    roles.attention = {survivors[0]};
  } else if (use == DeviceUse::kApart) {
    roles = kept_roles(before, survivors);
    if (roles.attention.empty() || roles.experts.empty()) roles = new_roles(cluster, survivors);
  } else {
    roles.attention = survivors;
  }
  changed.train.changes.clear();
  changed.plan.file.clear();
  changed.plan.attention = roles.attention;
  changed.plan.experts = roles.experts;
  changed.plan.attention_weights.clear();
  changed.plan.expert_weights.clear();
  changed.plan.experts_moved.clear();  // they were chosen for other numbers of devices, as were stages
  changed.plan.stage_layers.clear();
  changed.plan.stage_attention.clear();
  changed.plan.stage_experts.clear();
  changed.plan.depth_groups.clear();
  return changed;
}

/// The numbers of a run do not depend on who plans: a role has the dtype that it had before.
void keep_dtypes(Plan& plan, const Plan& before) {
  std::map<std::string, Dtype> of_role;
  const std::vector<std::string> roles_before = roles_of(before), roles = roles_of(plan);
  for (std::size_t d = 0; d < before.dtype.size(); ++d) of_role.try_emplace(roles_before[d], before.dtype[d]);
  for (std::size_t d = 0; d < plan.dtype.size(); ++d) {
    const auto found = of_role.find(roles[d]);
    plan.dtype[d] = found != of_role.end() ? found->second : before.dtype[d];
  }
  plan.wire_forward = before.wire_forward;
  plan.wire_backward = before.wire_backward;
  plan.master = before.master, plan.moments_dtype = before.moments_dtype;
  plan.grad_dtype = before.grad_dtype;
  plan.wire_reduce = before.wire_reduce, plan.error_feedback = before.error_feedback;
}

/// Why a plan cannot run this job; empty = it can.
std::string fault_of(const Plan& plan, const Job& job, const ModelConfig& model, const Cluster& cluster) {
  const std::vector<std::string> faults = validate(plan, model, cluster);
  if (!faults.empty()) return faults[0];
  try {
    build_schedule(plan, model, step_options(job, model));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

struct PlannerPlan {
  std::optional<Plan> plan;
  std::string what;  ///< the plan in words, or why there is none
};

/// What the job's plans have and the planner's would not; empty = nothing.
std::string beyond_planner(const Job& job, const Plan& plan) {
  if (uses_hosts(plan) || job.train.staleness > 0) return "parameters on hosts";
  if (plan.guest_slots > 0) return "guests";
  if (plan.error_feedback) return "error feedback";
  if (plan.tally || plan.foreseen) return "the division of copies in each exchange";
  return "";
}

PlannerPlan ask_planner(const Job& job, const Plan& before, const ModelConfig& model, const Cluster& cluster,
                        const std::vector<DeviceId>& survivors) {
  if (const std::string what = beyond_planner(job, before); !what.empty())
    return {{}, "the planner does not take over " + what};
  PlanRequest request;
  request.model = model;
  request.cluster = cluster;
  request.seq_len = job.train.seq_len;
  request.sequences = job.train.sequences;
  request.dtype = emulated_plan(job, before).dtype[static_cast<std::size_t>(survivors[0])];
  if (has_scales(before.wire_forward)) request.wire = before.wire_forward;
  request.master = before.master, request.moments_dtype = before.moments_dtype;
  request.grad_dtype = before.grad_dtype, request.wire_reduce = before.wire_reduce;
  const StepOptions step = step_options(job, model);
  request.trained = {step.frozen, step.lora};
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    if (!std::binary_search(survivors.begin(), survivors.end(), d)) request.limits.idle.push_back(d);
  }
  const PlanResult result = find_plan(request);
  PlannerPlan out{{}, "the planner finds no plan: " + result.infeasible};
  for (const Candidate& candidate : result.tried) {
    if (!candidate.infeasible.empty()) continue;
    Plan plan = candidate.plan;
    keep_dtypes(plan, before);
    const std::string fault = fault_of(plan, job, model, cluster);
    if (fault.empty()) return {plan, candidate.name};
    out.what = fmt::format("the planner's {} cannot run: {}", candidate.name, fault);
  }
  return out;
}

/// The job with a finished plan in a new file of its output folder.
Job with_plan(const Job& job, const Plan& plan) {
  std::filesystem::path path;
  int number = 0;
  do {
    path = std::filesystem::path(job.output) / fmt::format("replanned-{}.json", ++number);
  } while (std::filesystem::exists(path));
  write_text(path, to_json(plan).dump(1) + "\n");
  Job changed = job;
  changed.train.changes.clear();  // they may need devices that are lost
  changed.plan = {};              // the file has it all
  changed.plan.file = path.string();
  changed.train.microbatches = static_cast<i64>(plan.groups[0].microbatches.size());
  return changed;
}

}  // namespace

JobChanges changes_between(const Job& before, const Job& after) {
  const Json old_json = to_json(before), new_json = to_json(after);
  JobChanges changes;
  for (const FieldDoc& key : job_fields()) {
    const Json::json_pointer pointer = pointer_of(key);
    const Json& value = new_json.at(pointer);
    if (value == old_json.at(pointer)) continue;
    changes.emplace_back(key.name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return changes;
}

Replanned replan(const Job& job, const std::vector<DeviceId>& survivors) {
  if (survivors.empty()) fail<ConfigError>("replan", "no device is left");
  const ModelConfig model = load_model(job.model);
  const Cluster cluster = load_cluster(job.cluster);
  const Plan before = make_job_plan(job, model, cluster);
  const Job own_job = with_own_strategy(job, before, cluster, survivors);
  const PlannerPlan planned = ask_planner(job, before, model, cluster, survivors);
  std::optional<Plan> own;
  std::string why_not_own;
  try {
    own = make_job_plan(own_job, model, cluster);
    if (const std::string fault = fault_of(*own, job, model, cluster); !fault.empty())
      fail<ConfigError>("strategy " + own_job.strategy, "{}", fault);
  } catch (const ConfigError& error) {
    if (!planned.plan) throw;
    own.reset();
    why_not_own = error.what();
  }
  Predictor predictor(model, cluster, {}, step_options(job, model));
  const auto step = [&](const Plan& plan) { return predictor.predict(emulated_plan(job, plan)).step; };
  const auto say = [](Seconds seconds) { return format_seconds(seconds) + " a step, simulated"; };
  const Seconds own_step = own ? step(*own) : 0, planned_step = planned.plan ? step(*planned.plan) : 0;
  Replanned out;
  if (planned.plan && (!own || planned_step <= own_step)) {
    out.changes = changes_between(job, with_plan(job, *planned.plan));
    out.devices = devices_of(*planned.plan);
    out.how = fmt::format("planner: {}, {}; strategy {}: {}", planned.what, say(planned_step),
                          own_job.strategy, own ? say(own_step) : why_not_own);
  } else {
    out.changes = changes_between(job, own_job);
    out.devices = devices_of(*own);
    out.how = fmt::format(
        "strategy {}, {}; {}", own_job.strategy, say(own_step),
        planned.plan ? fmt::format("planner: {}, {}", planned.what, say(planned_step)) : planned.what);
  }
  return out;
}

}  // namespace hetermoe
