#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "hetermoe/base/index.h"
#include "hetermoe/ops/buffers.h"
#include "hetermoe/ops/exchange.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/schedule/schedule.h"
#include "tests/support/guest_plan.h"
#include "tests/support/page_block.h"
#include "tests/support/with_hosts.h"

// The access table of docs/schedule.md: what the ops of example plans touch, as their rows say.
namespace hetermoe::testing {
namespace {

struct Example {
  std::string name;
  Plan plan;
  StepOptions options = {.balance = true, .aux_group = 1};
};

/// Each differs from the first by the one thing that it is named after.
std::vector<Example> examples(const ModelConfig& model, const Cluster& cluster) {
  const auto make = [&](const std::string& strategy) {
    return find_strategy(strategy).make(model, cluster, small_step());
  };
  std::vector<Example> all = {{"plain", make("zebra")}};
  const auto add = [&](const std::string& name, const auto& change) {
    Example example{name, make("zebra")};
    change(example);
    all.push_back(std::move(example));
  };
  for (const Recompute recompute :
       {Recompute::kOff, Recompute::kSelect, Recompute::kResend, Recompute::kAhead})
    add(name_of(recompute), [&](Example& e) { e.plan.recompute = recompute; });
  add("after", [](Example& e) { e.plan.weight_gradients = WeightGradients::kAfter; });
  add("stages", [&](Example& e) { e.plan = make("pp-zebra"); });
  add("next", [&](Example& e) {
    StrategyRequest request = small_step();
    request.combine_to = CombineTo::kNext;
    e.plan = find_strategy("af-pipe").make(model, cluster, request);
  });
  add("teams", [&](Example& e) {
    StrategyRequest request = small_step();
    request.team = {2};
    e.plan = find_strategy("sp-ep").make(model, cluster, request);
  });
  add("tally", [&](Example& e) { use_tally(e.plan, model); });
  add("guests", [&](Example& e) { use_guests(e.plan, model); });
  add("rounds", [&](Example& e) {
    e.plan = find_strategy("roundpipe").make(model, with_hosts(make_cluster(3, 1, 1)), small_step());
  });
  add("sharded", [&](Example& e) { e.plan.shard_optimizer = true; });
  add("gathered", [&](Example& e) { shard_weights(e.plan); });
  const auto on_hosts = [&](const std::string& what, const std::string& name, i64 staleness = 0) {
    add(name, [&](Example& e) {
      offload(e.plan, model, cluster, {what}, "test");
      e.options.staleness = staleness;
    });
  };
  on_hosts("optimizer", "optimizer");
  on_hosts("all", "visits");
  on_hosts("saved", "saved");
  on_hosts("all", "stale", 1);
  return all;
}

/// What a place is in an op. Empty = all take part alike; "both" is left out: it has the rows of both.
std::string role_of(const Op& op, PlaceId place, const Placement& p) {
  if (place >= p.num_devices()) return "host";
  if (is_host_copy(op)) return "device";
  const auto role = [](bool first, const char* one, bool second, const char* other) {
    return first && second ? "both" : first ? one : second ? other : "neither";
  };
  const auto has = [&](i32 layer, Phase phase) {
    return p.has_range(op.group, layer, op.microbatch, place, phase);
  };
  if (op.kind == OpKind::kMove && op.phase == Phase::kRecompute)
    return role(has(op.layer, Phase::kForward), "of forward", has(op.layer, Phase::kBackward), "of backward");
  if (op.kind == OpKind::kMove)
    return role(has(op.layer - 1, op.phase), "of the layer before", has(op.layer, op.phase), "of the layer");
  if (op.kind == OpKind::kTally)
    return role(p.is_source(op, place), "source", p.is_owner(op, place), "owner");
  if (!needs_load(op.kind) || is_compute(op.kind)) return "";
  const Exchange exchange(op, p);
  return role(exchange.is_source(place), "source", exchange.is_owner(place), "owner");
}

std::string entry_of(const Op& op, const BufferKey& key) {
  if (key.has_layer() && key.layer() == op.layer - 1) return fmt::format("`{}(l-1)`", name_of(key.buffer()));
  return fmt::format("`{}`", name_of(key.buffer()));
}

struct Count {
  i64 with = 0, all = 0;
};
using ByPlan = std::map<std::string, Count>;
/// Of a row of the page.
struct Uses {
  ByPlan plans;  ///< all = devices and ops
  std::map<std::pair<Mode, std::string>, ByPlan> of;
};
using RowKey = std::tuple<OpKind, Phase, bool, std::string>;  // whether saved activations are copied; role

std::map<RowKey, Uses> collect(const ModelConfig& model, const std::vector<Example>& all) {
  std::map<RowKey, Uses> rows;
  std::vector<Access> list;
  for (const Example& example : all) {
    const Schedule schedule = build_schedule(example.plan, model, example.options);
    const Placement placement(example.plan, model, example.options);
    for (OpId id = 0; id < schedule.num_ops(); ++id) {
      const Op& op = schedule.ops[idx(id)];
      for (const LaneId lane : schedule.lanes_of(id)) {
        const PlaceId place = device_of(lane);
        const std::string role = role_of(op, place, placement);
        if (role == "both" || role == "neither") continue;
        Uses& uses = rows[{op.kind, op.phase, is_saved_copy(op), role}];
        ++uses.plans[example.name].all;
        list.clear();
        accesses(op, place, placement, list);
        std::set<std::pair<Mode, std::string>> seen;
        for (const Access& access : list) seen.insert({access.mode, entry_of(op, access.key)});
        for (const auto& use : seen) ++uses.of[use][example.name].with;
      }
    }
  }
  return rows;
}

/// "`hidden`", "`hidden`*" where not every op or device has it, "`hidden` (off, select)", "(not after)".
std::string told(const std::string& entry, const ByPlan& with, const ByPlan& all) {
  bool sometimes = false;
  std::vector<std::string> in, not_in;
  for (const auto& [plan, count] : all) {
    const auto found = with.find(plan);
    (found == with.end() ? not_in : in).push_back(plan);
    sometimes |= found != with.end() && found->second.with < count.all;
  }
  std::string text = entry + (sometimes ? "*" : "");
  if (not_in.empty()) return text;
  const bool say_not = not_in.size() < in.size();
  return fmt::format("{} ({}{})", text, say_not ? "not " : "", fmt::join(say_not ? not_in : in, ", "));
}

std::string cell(const Uses& uses, Mode mode) {
  std::vector<std::string> entries;
  for (const auto& [use, with] : uses.of) {
    if (use.first == mode) entries.push_back(told(use.second, with, uses.plans));
  }
  return entries.empty() ? "" : fmt::format(" {}", fmt::join(entries, ", "));
}

// Claim: the access table of docs/schedule.md is what the rows of ops say
TEST(AccessTable, OfThePageIsWhatTheRowsOfOpsSay) {
  const ModelConfig model = load_model("tiny-deepseek-v2");
  const Cluster cluster = with_hosts(load_cluster("demo"));
  std::string text = "| op | device | reads | writes | adds to | takes |\n|---|---|---|---|---|---|\n";
  for (const auto& [key, uses] : collect(model, examples(model, cluster))) {
    const auto& [kind, phase, is_saved, role] = key;
    std::string name = name_of(kind);
    if (row_of(kind).phases != Phases::kNone) name += "." + name_of(phase);
    text += fmt::format("| `{}{}` |{} |{} |{} |{} |{} |\n", name, is_saved ? " l m c" : "",
                        role.empty() ? "" : " " + role, cell(uses, Mode::kRead), cell(uses, Mode::kWrite),
                        cell(uses, Mode::kAdd), cell(uses, Mode::kTake));
  }
  expect_block("schedule.md", "access table", text);
  for (const std::string& kind : EnumNames<OpKind>::names())
    EXPECT_TRUE(text.find("`" + kind) != text.npos || kind == "migrate") << kind << " needs an example";
}

}  // namespace
}  // namespace hetermoe::testing
