#include "hetermoe/train/session/changes.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/placement/placement.h"
#include "hetermoe/sim/migration_memory.h"
#include "hetermoe/train/job/usual_choices.h"
#include "hetermoe/train/session/session.h"

namespace hetermoe {
namespace {

std::string place_of(std::size_t change) { return fmt::format("train.changes[{}]", change); }

void check_steps(const std::vector<PlanChange>& changes, i64 steps) {
  std::set<i64> seen;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const i64 step = changes[i].step;
    if (step < 2 || step > steps) {
      fail<ConfigError>(
          place_of(i) + ".step",
          "got {}, expected 2 to {}, the last step (train.steps). The plan of the first step is "
          "plan.file",
          step, steps);
    }
    if (!seen.insert(step).second)
      fail<ConfigError>(place_of(i) + ".step", "step {} is there twice: one plan can take over at a step",
                        step);
    if (changes[i].plan.empty()) fail<ConfigError>(place_of(i) + ".plan", "is missing, expected a plan.json");
  }
}

bool is_fp64(const Plan& plan, DeviceId device) { return plan.dtype[idx(device)] == Dtype::kFp64; }

/// Every master and moment of one plan's devices has the width of the other's.
bool same_width(const Plan& before, const Plan& next) {
  bool wide = false, narrow = false;
  for (const Plan* plan : {&before, &next}) {
    for (const DeviceId device : devices_of(*plan)) (is_fp64(*plan, device) ? wide : narrow) = true;
  }
  return !wide || !narrow;
}

/// States that cannot move between steps: parts on several devices, or what is on hosts.
std::vector<State> fixed_states(const Plan& plan, const ModelConfig& model, std::span<const Unit> frozen) {
  std::vector<State> states = make_states(plan, model, frozen);
  std::erase_if(
      states, [](const State& state) { return !state.sharded && !state.gathered() && state.homes.empty(); });
  for (State& state : states) state.gatherers = -1, state.first_slot = 0;  // of visits, which end with a step
  return states;
}

std::string name_of(const State& state) {
  switch (state.part) {
    case UnitPart::kEmbed:
      return "the embedding";
    case UnitPart::kAttention:
      return fmt::format("the attention part of layer {}", state.layer);
    case UnitPart::kExperts:
      return fmt::format("expert {} of layer {}", state.experts[0], state.layer);
    case UnitPart::kHead:
      break;
  }
  return "the head";
}

/// Hosts keep activations during a step, and of parameters what stays there.
std::optional<std::string> moves_what_is_fixed(const Plan& before, const Plan& next, const ModelConfig& model,
                                               std::span<const Unit> frozen) {
  if (before.hosts != next.hosts)
    return "[hosts] one of the plans before and after uses hosts and one does not, or other ones: all plans "
           "of a run use the same";
  const std::vector<State> old_states = fixed_states(before, model, frozen),
                           new_states = fixed_states(next, model, frozen);
  const auto [left, right] =
      std::mismatch(old_states.begin(), old_states.end(), new_states.begin(), new_states.end());
  if (left == old_states.end() && right == new_states.end()) return {};
  const State& state = left == old_states.end() ? *right : *left;
  return fmt::format(
      "[{}] parts of {} are on other devices or hosts than before: what is divided or on hosts cannot move "
      "between steps yet. End the run and begin it again from its checkpoint with the other plan",
      state.homes.empty() ? "shard_optimizer" : "hosts", name_of(state));
}

}  // namespace

std::optional<std::string> hindrance(const Plan& before, const Plan& next, const ModelConfig& model,
                                     std::span<const Unit> frozen) {
  if (std::optional<std::string> why = moves_what_is_fixed(before, next, model, frozen)) return why;
  const std::vector<DeviceId> old_devices = devices_of(before);
  for (const DeviceId device : devices_of(next)) {
    if (!std::binary_search(old_devices.begin(), old_devices.end(), device)) continue;
    const auto differs = [device](const char* field, Dtype old_dtype, Dtype new_dtype) {
      return fmt::format("[{}] of device {} is {}, but {} before: a device keeps its dtypes in a run", field,
                         device, name_of(new_dtype), name_of(old_dtype));
    };
    const Dtype old_dtype = before.dtype[idx(device)], new_dtype = next.dtype[idx(device)];
    if (old_dtype != new_dtype) return differs("dtype", old_dtype, new_dtype);
    const Dtype old_grad = grad_dtype_of(before, device), new_grad = grad_dtype_of(next, device);
    if (old_grad != new_grad) return differs("grad_dtype", old_grad, new_grad);
  }
  if (optimizer_widths_of(before) != optimizer_widths_of(next))
    return "[master] or [moments_dtype] is another than before: an optimizer keeps its dtypes in a run";
  if (!same_width(before, next))
    return "[dtype] some devices of the two plans compute in fp64 and some do not: moments would lose digits";
  return {};
}

namespace {

/// A device that has room for both plans, and not for the way from one to the other; empty = none.
std::string overfilled_on_the_way(const Plan& before, const Plan& next, const ModelConfig& model,
                                  const Cluster& cluster, const StepOptions& step) {
  MoveOptions options;
  options.frozen = step.frozen;
  options.lora = step.lora;
  const auto memory = [&](const Plan& from, const Plan& to) {
    return migration_memory(from, to, model, cluster, options);
  };
  const std::vector<Bytes> old_plan = memory(before, before), new_plan = memory(next, next);
  std::vector<Bytes> way = memory(before, next);
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    // Emulated devices run plans that are too large for them, and so they do changes to these.
    const Bytes usable = usable_memory(cluster.type_of(d));
    if (std::max(old_plan[idx(d)], new_plan[idx(d)]) > usable) way[idx(d)] = 0;
  }
  return overfilled_device(way, cluster);
}

PlannedChange load_change(const Job& job, std::size_t i, const ModelConfig& model, const Cluster& cluster) {
  const PlanChange& change = job.train.changes[i];
  Plan plan = plan_from_json(read_json(change.plan), change.plan);
  const std::vector<std::string> faults = plan_faults(job, plan, model, cluster);
  if (!faults.empty()) {
    fail<ConfigError>(place_of(i) + ".plan " + change.plan, "{}: {}{}", misfit_text(plan, model, cluster),
                      faults[0], faults.size() > 1 ? fmt::format(" (and {} more)", faults.size() - 1) : "");
  }
  try {
    build_schedule(plan, model, step_options(job, model));
  } catch (const ConfigError& error) {
    fail<ConfigError>(place_of(i) + ".plan " + change.plan, "{}", error.what());
  }
  return {.step = change.step,
          .name = std::filesystem::path(change.plan).filename().string(),
          .plan = std::move(plan)};
}

}  // namespace

std::vector<PlannedChange> load_changes(const Job& job, const Plan& first, const ModelConfig& model,
                                        const Cluster& cluster) {
  check_steps(job.train.changes, job.train.steps);
  if (!job.train.changes.empty() && job.train.staleness > 0)
    fail<ConfigError>("train.changes",
                      "got {}, expected none with train.staleness {}: its updates are under "
                      "way between steps",
                      counted(job.train.changes.size(), "change"), job.train.staleness);
  std::vector<PlannedChange> out;
  for (std::size_t i = 0; i < job.train.changes.size(); ++i)
    out.push_back(load_change(job, i, model, cluster));
  std::sort(out.begin(), out.end(),
            [](const PlannedChange& a, const PlannedChange& b) { return a.step < b.step; });
  std::vector<const Plan*> before = {&first};
  const StepOptions step = step_options(job, model);
  for (const PlannedChange& change : out) {
    const std::string where = fmt::format("train.changes, step {}", change.step);
    for (const Plan* plan : before) {
      const std::optional<std::string> why = hindrance(*plan, change.plan, model, step.frozen);
      if (why) fail<ConfigError>(where, "{}: {}", change.name, *why);
    }
    const std::string full = overfilled_on_the_way(*before.back(), change.plan, model, cluster, step);
    if (!full.empty()) fail<ConfigError>(where, "{}: while layers move, {}", change.name, full);
    before.push_back(&change.plan);
  }
  return out;
}

}  // namespace hetermoe
