#include "hetermoe/train/replan.h"

#include <fmt/ranges.h>

#include <algorithm>

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
  for (const DeviceId d : survivors) {
    const std::string role = role_of(plan, d);
    // Experts that Asym-EA moved do not make an attention device an expert device.
    (role == "expert" ? roles.experts : roles.attention).push_back(d);
  }
  return roles;
}

}  // namespace

JobChanges replan(const Job& job, const std::vector<DeviceId>& survivors) {
  if (survivors.empty()) fail<ConfigError>("replan", "no device is left");
  const ModelConfig model = load_model(job.model);
  const Cluster cluster = load_cluster(job.cluster);
  std::string strategy = find_strategy(job.strategy).name;
  const bool split = strategy == "zebra" || strategy == "dist_ep";
  Roles roles;
  if (survivors.size() == 1) {
    strategy = "single";
    roles.attention = survivors;
  } else if (split) {
    roles = kept_roles(make_job_plan(job, model, cluster), survivors);
    if (roles.attention.empty() || roles.experts.empty()) roles = new_roles(cluster, survivors);
  } else {
    roles.attention = survivors;
  }
  Job changed = job;
  changed.strategy = strategy;
  changed.plan.file.clear();
  changed.plan.attention = roles.attention;
  changed.plan.experts = roles.experts;
  changed.plan.attention_weights.clear();
  changed.plan.expert_weights.clear();
  make_job_plan(changed, model, cluster);  // or says why not
  const auto list = [](const std::vector<DeviceId>& devices) {
    return fmt::format("[{}]", fmt::join(devices, ","));
  };
  return {{"strategy", strategy},
          {"plan.file", ""},
          {"plan.attention", list(roles.attention)},
          {"plan.experts", list(roles.experts)},
          {"plan.attention_weights", "[]"},
          {"plan.expert_weights", "[]"}};
}

}  // namespace hetermoe
