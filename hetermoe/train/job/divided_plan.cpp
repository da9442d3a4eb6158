#include "hetermoe/train/job/divided_plan.h"

#include "hetermoe/balance/trace_balance.h"
#include "hetermoe/cost/memory_estimate.h"

namespace hetermoe {
namespace {

BalancerChoice choice_of(const Job& job) {
  return job.balancer.on() ? balancer_choice(job.balancer.name, job.balancer.parts) : BalancerChoice();
}

CopySplit split_of(const Job& job) {
  const CopySplit split = choice_of(job).split;
  return split == CopySplit::kShares && job.plan.tally ? CopySplit::kExact : split;
}

/// Throws ConfigError when a plan that else fits lacks the room for what a key adds to it.
void check_room(const char* key, const std::string& got, const char* what, const Plan& with,
                const Plan& without, const ModelConfig& model, const Cluster& cluster) {
  const std::string full = overfilled_device(estimate_memory(with, model), cluster);
  if (full.empty() || !overfilled_device(estimate_memory(without, model), cluster).empty()) return;
  fail<ConfigError>(key, "got {}, for which there is no room: {}. Without {} the plan fits", got, full, what);
}

}  // namespace

bool divides_in_step(const Job& job) {
  const CopySplit split = split_of(job);
  return (split == CopySplit::kExact || split == CopySplit::kGuests) && job.plan.file.empty();
}

Plan divided_in_step(const Job& job, Plan plan, const ModelConfig& model, const Cluster& cluster) {
  const std::vector<i64> layers = layers_with_experts(model);
  if (layers.empty()) return plan;
  const TraceBalance balance(model, cluster, emulated_plan(job, plan), step_options(job, model),
                             load_profiles(cluster));
  const CopySplit split = split_of(job);
  const BalancerChoice choice = choice_of(job);
  const bool copies =
      choice.split == CopySplit::kExact && choice.balancer != nullptr && !choice.balancer->has_parts;
  const Plan divided = balance.placed({.balancer = copies ? job.balancer.name : "none+" + name_of(split),
                                       .knows = job.balancer.knows,
                                       .replicas = job.balancer.replicas,
                                       .guests = job.balancer.guests,
                                       .guest_cost = job.balancer.guest_cost,
                                       .topology = job.balancer.topology},
                                      even_load(static_cast<i64>(layers.size()), model.num_experts));
  const bool asked = job.balancer.replicas > 0;  // else the balancer makes as many as it needs
  if (copies)
    check_room(asked ? "balancer.replicas" : "balancer.name",
               asked ? std::to_string(job.balancer.replicas) : job.balancer.name, "copies",
               with_owners(plan, divided), plan, model, cluster);
  plan.tally = divided.tally || job.plan.tally;
  plan.foreseen = divided.foreseen && !plan.tally;
  plan.split_speeds = divided.split_speeds;
  plan.guest_slots = divided.guest_slots;
  plan.guest_depth = job.balancer.guest_depth;
  plan.guest_cost = divided.guest_cost;
  return with_owners(std::move(plan), divided);
}

void check_divided(const Job& job, const Plan& plan, const ModelConfig& model, const Cluster& cluster) {
  if (divides_copies(plan) && !plan.tally && job.routing.replay.empty() && !job.balancer.probe &&
      !job.train.forced_balance)
    fail<ConfigError>("balancer.knows",
                      "got foresight, expected history where no choices are replayed. Give routing.replay or "
                      "balancer.probe");
  if (plan.guest_slots == 0) return;
  if (job.train.lora.rank > 0)
    fail<ConfigError>("train.lora",
                      "cannot go with guests, which are lent without adapters: leave one of both out");
  Plan without = plan;
  without.guest_slots = 0;
  check_room("balancer.guests", std::to_string(plan.guest_slots), "guests", plan, without, model, cluster);
}

void check_team_job(const Job& job, const Plan& plan) {
  if (!has_teams(plan)) return;
  const auto refuse = [](const char* key, const std::string& got, const char* expected) {
    fail<ConfigError>(key,
                      "got {}, expected {} where teams share sequences (plan.team): a device has parts of "
                      "sequences alone",
                      got, expected);
  };
  if (job.train.capacity_factor > 0)
    refuse("train.capacity_factor", fmt::format("{}", job.train.capacity_factor), "0");
  if (!job.balancer.on()) return;
  if (choice_of(job).order != SequenceOrder::kAsTheyCome)
    refuse("balancer.name", job.balancer.name, "a balancer that leaves sequences where they are");
}

}  // namespace hetermoe
