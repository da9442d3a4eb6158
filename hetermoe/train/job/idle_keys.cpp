#include <fmt/ranges.h>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/base/words.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/train/job/usual_choices.h"

// Keys that a job gives and that change nothing, because what they are for is off. A run says so: whoever
// typed the key expects something of it. An error would be too much: a job file keeps the keys of a balancer
// while a flag turns the balancer off.
namespace hetermoe {
namespace {

/// Keys that have an effect only while `used` holds.
struct KeysOfFeature {
  std::vector<std::string> keys;  ///< "train.decay"; "grow." = all that begin so
  bool (*used)(const Job&);
  const char* needs;  ///< what would give them an effect
};

/// By the row of the balancer, with all its parts.
BalancerChoice chosen(const Job& job) {
  return job.balancer.on() ? balancer_choice(job.balancer.name, kAllParts) : BalancerChoice();
}

bool is_by_name(const Job& job, std::initializer_list<const char*> names) {
  const Balancer* row = chosen(job).balancer;
  return row != nullptr &&
         std::any_of(names.begin(), names.end(), [&](const char* name) { return row->name == name; });
}

const std::vector<KeysOfFeature>& features() {
  static const std::vector<KeysOfFeature> all = {
      {{"train.decay", "train.decay_share", "train.decay_steps"},
       [](const Job& job) { return job.train.schedule == RateSchedule::kWsd; },
       "train.schedule wsd"},
      {{"train.final_share", "train.min_lr"},
       [](const Job& job) { return job.train.schedule != RateSchedule::kConstant; },
       "train.schedule cosine, linear or wsd"},
      {{"train.lora.alpha"}, [](const Job& job) { return job.train.lora.rank > 0; }, "train.lora.rank"},
      {{"train.save_dtype"}, [](const Job& job) { return !job.train.save_hf.empty(); }, "train.save_hf"},
      {{"train.max_skipped"},
       [](const Job& job) { return job.train.on_nonfinite == OnNonfinite::kSkip; },
       "train.on_nonfinite skip"},
      {{"routing.every", "routing.detail", "routing.weights"},
       [](const Job& job) { return !job.routing.record.empty(); },
       "routing.record"},
      {{"routing.replay_gaps"}, [](const Job& job) { return !job.routing.replay.empty(); }, "routing.replay"},
      {{"checkpoint.keep", "checkpoint.async"},
       [](const Job& job) { return job.checkpoint.every > 0; },
       "checkpoint.every"},
      {{"grow."}, [](const Job& job) { return job.grow.at > 0; }, "grow.at"},
      {{"data.answers_only"},
       [](const Job& job) { return !job.data.chat_template.empty(); },
       "data.template"},
      {{"clock.pace_scale", "clock.max_cpu_share"},
       [](const Job& job) { return job.clock.kind == ClockKind::kPaced; },
       "clock.kind paced"},
      {{"plan.head_parts"},
       [](const Job& job) {
         if (!job.plan.file.empty() || !job.plan.team.empty()) return true;
         return find_strategy(job.strategy).cut == Cut::kTeams;
       },
       "plan.team"},
      {{"balancer."}, [](const Job& job) { return job.balancer.on(); }, "balancer.name"},
      {{"balancer.horizon"}, [](const Job& job) { return job.balancer.guard; }, "balancer.guard true"},
      {{"balancer.topology"}, [](const Job& job) { return is_by_name(job, {"lplb"}); }, "balancer.name lplb"},
      {{"balancer.replicas"},
       [](const Job& job) {
         return is_by_name(job, {"eplb", "lplb"});
       },
       "balancer.name eplb or lplb"},
      {{"balancer.guests", "balancer.guest_depth", "balancer.guest_cost"},
       [](const Job& job) { return chosen(job).split == CopySplit::kGuests; },
       "balancer.name relibra or NAME+guests"},
      {{"balancer.parts"},
       [](const Job& job) { return chosen(job).balancer != nullptr && chosen(job).balancer->has_parts; },
       "balancer.name relibra"},
      {{"balancer.groups"},
       [](const Job& job) { return chosen(job).order != SequenceOrder::kAsTheyCome; },
       "balancer.name relibra or locality"},
      {{"balancer.load_cap"},
       [](const Job& job) { return chosen(job).balancer != nullptr && chosen(job).balancer->by_use; },
       "balancer.name locality"}};
  return all;
}

/// What is off is off for one reason only: the first that holds.
const KeysOfFeature* idle_feature(const Job& job, const std::string& key) {
  for (const KeysOfFeature& feature : features()) {
    if (feature.used(job)) continue;
    for (const std::string& own : feature.keys)
      if (own == key || (own.ends_with('.') && key.starts_with(own))) return &feature;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> idle_keys_notes(const Job& job) {
  const Json got = to_json(job), usual = to_json(Job());
  std::vector<std::pair<const KeysOfFeature*, std::vector<std::string>>> idle;
  for (const FieldDoc& field : job_fields()) {
    const Json::json_pointer at = pointer_of(field);
    if (!got.contains(at) || !usual.contains(at) || got[at] == usual[at]) continue;
    const Json& value = got[at];
    const KeysOfFeature* feature = idle_feature(job, field.name);
    if (feature == nullptr) continue;
    if (idle.empty() || idle.back().first != feature) idle.push_back({feature, {}});
    idle.back().second.push_back(
        fmt::format("{} {}", field.name, value.is_string() ? value.get<std::string>() : value.dump()));
  }
  std::vector<std::string> notes;
  for (const auto& [feature, keys] : idle)
    notes.push_back(fmt::format("{} {} no effect without {}", fmt::join(keys, ", "),
                                agree(keys.size(), "has", "have"), feature->needs));
  return notes;
}

}  // namespace hetermoe
