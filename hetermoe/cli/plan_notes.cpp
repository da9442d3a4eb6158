#include "hetermoe/cli/plan_notes.h"

#include <fmt/ranges.h>

#include <iostream>

#include "hetermoe/base/words.h"
#include "hetermoe/cost/hiding.h"
#include "hetermoe/report/table.h"

namespace hetermoe {

std::string roles_text(const Allocation& roles) {
  const auto role = [](const char* name, Seconds seconds, i64 devices, bool travels, const char* what) {
    return fmt::format("{} {} by {} ({} with {})", name, format_seconds(seconds),
                       travels ? "network" : "compute", counted(devices, "device"), what);
  };
  return role("T_a", roles.attention_s, roles.attention, roles.attention_travels, "attention") + ", " +
         role("T_f", roles.experts_s, roles.experts, roles.experts_travel, "experts");
}

std::string hiding_text(const PlanRequest& request) {
  std::vector<std::string> links;
  for (const LinkHiding& link : hiding_links(request.cluster)) {
    if (request.model.num_moe_layers() == 0) return "";
    const bool inside = link.link == "inside";
    links.push_back(fmt::format("{} {} ({}; 1 at width {})", format_digits(link.of(request.model), 3),
                                inside ? "inside " + link.node : "over the network of " + link.node,
                                inside ? link.type : link.devices, format_digits(link.width, 4)));
  }
  if (links.empty()) return "";
  return fmt::format(
      "Experts of width {} compute so many times as long as their rows travel, by data sheets: {}.",
      request.model.expert_hidden, fmt::join(links, ", "));
}

namespace {

std::optional<Allocation> depth_roles(const PlanRequest& request, const Candidate& candidate) {
  if (!candidate.infeasible.empty() || candidate.plan.groups.empty()) return {};
  return allocation_of_plan(candidate.plan, request.model, request.cluster,
                            *predictor_of(request).cost(candidate.plan));
}

}  // namespace

void print_depth_roles(const PlanRequest& request, const PlanResult& result) {
  bool any = false;
  for (const Candidate& candidate : result.tried) {
    const std::optional<Allocation> roles = depth_roles(request, candidate);
    if (!roles) continue;
    std::cout << fmt::format("{}{}: {}\n", any ? "" : "\n", candidate.name, roles_text(*roles));
    any = true;
  }
  if (any) std::cout << kRolesMeaning << "\n";
}

Json hiding_json(const PlanRequest& request) {
  return request.model.num_moe_layers() > 0 ? hiding_json(request.cluster, request.model) : Json::array();
}

Json depth_roles_json(const PlanRequest& request, const PlanResult& result) {
  Json out = Json::array();
  for (const Candidate& candidate : result.tried) {
    const std::optional<Allocation> roles = depth_roles(request, candidate);
    if (!roles) continue;
    out.push_back(to_json(*roles));
    out.back()["name"] = candidate.name;
  }
  return out;
}

}  // namespace hetermoe
