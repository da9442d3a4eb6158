#include "hetermoe/planner/words/sentences.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/plan/pipeline_tasks.h"
#include "hetermoe/planner/estimate/critical_path.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

namespace {

constexpr i64 kFewAttention = 4;     ///< times as many devices as compute attention: that is too few
constexpr double kNoFaster = 0.005;  ///< speeds that differ by less are taken for equal
constexpr double kAlike = 0.03;      ///< shares of the step that differ by less are taken for equal

using Lines = std::vector<std::string>;

template <class Match>
const Candidate* fastest(const PlanResult& result, Match match) {
  for (const Candidate& candidate : result.tried) {
    if (candidate.infeasible.empty() && match(candidate)) return &candidate;
  }
  return nullptr;
}

bool uses_type(const Candidate& candidate, bool (*match)(const TypeUse&)) {
  return std::any_of(candidate.types.begin(), candidate.types.end(), match);
}

const TypeUse* least_busy(const Candidate& candidate) {
  const TypeUse* least = nullptr;
  for (const TypeUse& use : candidate.types) {
    if (use.used > 0 && (least == nullptr || use.busy < least->busy)) least = &use;
  }
  return least;
}

std::vector<const TypeUse*> full_types(const Candidate& candidate) {
  std::vector<const TypeUse*> full;
  for (const TypeUse& use : candidate.types) {
    if (use.used > 0 && use.memory / kGiB > (1 - kFull) * use.limit_gib) full.push_back(&use);
  }
  return full;
}

// --- predicates ---

bool infeasible(const PlanResult& r) { return !r.feasible(); }
bool feasible(const PlanResult& r) { return r.feasible(); }
bool leaves_out(const PlanResult& r) { return r.feasible() && leaves_devices_out(r.best()); }
bool several_types_used(const Candidate& candidate) {
  return std::count_if(candidate.types.begin(), candidate.types.end(),
                       [](const TypeUse& use) { return use.used > 0; }) > 1;
}
bool sets_pace(const PlanResult& r) {
  return r.feasible() && several_types_used(r.best()) && busiest(r.best())->busy >= kBusy &&
         busiest(r.best())->busy - least_busy(r.best())->busy >= kAlike;
}
bool waits_alike(const PlanResult& r) {
  return r.feasible() && several_types_used(r.best()) && busiest(r.best())->busy >= kBusy && !sets_pace(r);
}
bool nobody_busy(const PlanResult& r) { return r.feasible() && busiest(r.best())->busy < kBusy; }
bool has_path(const PlanResult& r) { return r.feasible() && !r.best().path.empty(); }
bool memory_full(const PlanResult& r) { return r.feasible() && !full_types(r.best()).empty(); }
/// There are types besides the newest, which the best plan leaves alone.
bool newer_alone(const PlanResult& r) {
  return r.feasible() && r.best().newer_only && r.best().types.size() > 1;
}
bool newer_alone_fastest(const PlanResult& r) { return newer_alone(r) && best_with_others(r) != nullptr; }
bool others_do_not_fit(const PlanResult& r) {
  return newer_alone(r) && best_with_others(r) == nullptr && !r.others_lack.empty();
}
bool others_not_tried(const PlanResult& r) {
  return newer_alone(r) && best_with_others(r) == nullptr && r.others_lack.empty();
}
bool all_devices_slower(const PlanResult& r) { return leaves_out(r) && best_of_all_devices(r) != nullptr; }
bool all_devices_not_simulated(const PlanResult& r) {
  return leaves_out(r) && best_of_all_devices(r) == nullptr;
}
bool against_newer_only(const PlanResult& r) {
  return r.feasible() && !r.best().newer_only && best_newer_only(r) != nullptr;
}
bool newer_do_not_fit(const PlanResult& r) { return r.feasible() && !r.newer_unfit.empty(); }
bool optimizer_sharded(const PlanResult& r) {
  return r.feasible() && uses_type(r.best(), [](const TypeUse& use) { return use.freed > 0; });
}
bool has_stages(const PlanResult& r) { return r.feasible() && traits_of(r.best().plan.order).has_stages; }
bool shares_sequences(const PlanResult& r) { return r.feasible() && has_teams(r.best().plan); }
bool has_narrow_wires(const PlanResult& r) { return r.feasible() && !r.narrow_wires.empty(); }
bool passes_rows_on(const PlanResult& r) { return r.feasible() && !r.best().plan.row_nodes.empty(); }
bool far_from_peak(const PlanResult& r) { return r.feasible() && r.best().peak_share < kFarFromPeak; }
bool is_bounded(const PlanResult& r) { return !r.bounds.empty(); }
bool has_good_sequences(const PlanResult& r) { return r.feasible() && r.good_sequences.has_value(); }

// --- words ---

Lines no_plan(const PlanResult& r) {
  Lines lines = {"No plan fits: " + r.infeasible + "."};
  if (!r.advice.empty()) lines.push_back(r.advice);
  return lines;
}

/// What of the step was simulated where the figures are not those of all of it.
std::string extrapolated_text(const Candidate& candidate) {
  const bool windows = candidate.prediction.from_first_windows;
  if (!candidate.extrapolated && !windows) return "";
  return fmt::format(" (extrapolated from the first {})", !windows                 ? "layers"
                                                          : candidate.extrapolated ? "layers and microbatches"
                                                                                   : "microbatches");
}

Lines summary(const PlanResult& r) {
  const Candidate& best = r.best();
  const Group& group = best.plan.groups[0];
  const Seconds step = best.prediction.step;
  return {fmt::format(
      "{}: {:.0f} tokens/s, {} s per step, {} of up to {}{}.", best.name, best.prediction.tokens_per_s,
      step < 1000 ? fmt::format("{:.3g}", step) : fmt::format("{:.0f}", step),
      counted(group.microbatches.size(), "microbatch"),
      counted(*std::max_element(group.microbatches.begin(), group.microbatches.end()), "sequence"),
      extrapolated_text(best))};
}

Lines expectation(const PlanResult& r) {
  return {fmt::format("Expect {} tokens/s: {}.", range_text(r.best().prediction.tokens_per_s, r.expected),
                      constants_text(r.expected))};
}

/// "82 %" of the step, where devices differ "76 % on average (57 to 96 %)".
std::string busy_text(const TypeUse& use) {
  if (use.most_busy - use.least_busy < kAlike) return percent(use.busy);
  return fmt::format("{} on average ({:.0f} to {:.0f} %)", percent(use.busy), 100 * use.least_busy,
                     100 * use.most_busy);
}

std::string type_line(const TypeUse& use) {
  if (use.used == 0) {
    return use.devices == 1 ? fmt::format("The {} stays idle.", use.type)
                            : fmt::format("The {} {} stay idle.", use.devices, use.type);
  }
  const std::string_view computes = agree(use.used, "computes", "compute"),
                         holds = agree(use.used, "holds", "hold");
  const std::string does = use.role == "attention" ? fmt::format("{} attention", computes)
                           : use.role == "expert"  ? fmt::format("{} experts", holds)
                           : use.role == "both" ? fmt::format("{} attention and {} experts", computes, holds)
                                                : fmt::format("have different roles ({})", use.role);
  return fmt::format("{} of {} {} {}: busy {} of the step, memory {} of {} usable.", use.used, use.devices,
                     use.type, does, busy_text(use), memory_text(use.memory),
                     memory_text(use.limit_gib * kGiB));
}

Lines type_lines(const PlanResult& r) {
  Lines lines;
  for (const TypeUse& use : r.best().types) lines.push_back(type_line(use));
  return lines;
}

/// "6 A40", "2 A40 + 2 V100": the devices with attention or experts of a layer.
std::string devices_text(const LayerPlacement& layer, const std::vector<std::string>& types) {
  std::set<DeviceId> devices;
  for (const Share& share : layer.attention[0]) devices.insert(share.device);
  for (const auto& owners : layer.experts)
    for (const ExpertOwner& owner : owners) devices.insert(owner.device);
  std::vector<std::pair<std::string, i64>> counts;
  for (const DeviceId device : devices) {
    const std::string& type = types[idx(device)];
    const auto same = std::ranges::find(counts, type, &std::pair<std::string, i64>::first);
    if (same == counts.end())
      counts.emplace_back(type, 1);
    else
      ++same->second;
  }
  std::string text;
  for (const auto& [type, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : " + ", count, type);
  return text;
}

/// Layers of each stage, and which devices have them.
Lines stages(const PlanResult& r) {
  const Group& group = r.best().plan.groups[0];
  std::vector<std::string> runs;
  i64 first = 0, alike = 0;
  std::pair<i64, std::string> before;
  const auto end_run = [&] {
    if (alike == 0) return;
    runs.push_back(fmt::format("{} with {} on {}{}", counted(alike, "stage"), counted(before.first, "layer"),
                               before.second, alike > 1 ? " each" : ""));
  };
  for (const i64 layers : stage_layers(group)) {
    const std::pair stage{layers, devices_text(group.layers[idx(first)], r.device_types)};
    if (stage != before) end_run(), alike = 0;
    before = stage, first += layers, ++alike;
  }
  end_run();
  Lines lines = {fmt::format("Stages of the pipeline, in order: {}.", fmt::join(runs, ", "))};
  if (const i32 chunks = pipeline_stages(group).chunks(); chunks > 1)
    lines.push_back(
        fmt::format("They come round {} times on the same devices (interleaved), which makes the bubble up "
                    "to as many times smaller.",
                    chunks));
  return lines;
}
/// Parts of a team: "1/8", or by type where they differ.
Lines teams(const PlanResult& r) {
  const Plan& plan = r.best().plan;
  const ShareRow& row = plan.groups[0].layers[0].attention[0];
  std::vector<std::string> parts;
  std::pair<double, double> before;
  for (const Share& share : row) {
    if (share.team != row[0].team) break;
    const std::pair<double, double> part{real(share.tokens) / real(share.sequences * plan.seq_len),
                                         real(share.heads)};
    if (!parts.empty() && part == before) continue;
    before = part;
    parts.push_back(
        fmt::format("{:.1f} % of the tokens and {} each", 100 * part.first, counted(share.heads, "head")));
  }
  if (parts.size() > 2) parts.assign({parts.front(), parts.back()});
  Lines lines = {fmt::format("Teams share each sequence: a device has {} of the attention kernel.",
                             fmt::join(parts, ", or "))};
  if (const i32 in = r.best().plan.head_parts; in > 1)
    lines.push_back(
        fmt::format("Heads travel in {} parts: one is computed while the next is on its way.", in));
  return lines;
}
Lines pace(const PlanResult& r) {
  const TypeUse *most = busiest(r.best()), *least = least_busy(r.best());
  return {fmt::format("{} are the busiest, {} of the step; {} are idle {} of it.", most->type,
                      busy_text(*most), least->type, percent(1 - least->busy))};
}
Lines alike(const PlanResult&) { return {"On average no type of device waits longer than another."}; }
Lines nobody(const PlanResult& r) {
  const TypeUse* most = busiest(r.best());
  return {fmt::format("No type of device is busy all the time: the busiest, {}, computes {} of the step.",
                      most->type, busy_text(*most))};
}
Lines path(const PlanResult& r) { return {"What limits it most: " + r.best().limited_by + "."}; }
/// The largest thing that is wrong with it.
Lines what_is_wrong(const PlanResult& r) {
  const Candidate& best = r.best();
  i64 used = 0;
  for (const TypeUse& use : best.types) used += use.used;
  const i64 sequences = total_sequences(best.plan);
  std::string why = best.path.empty() ? "devices wait for each other"
                                      : fmt::format("{} {} {} of the critical path", best.path[0].what,
                                                    best.path[0].what.ends_with('s') ? "are" : "is",
                                                    percent(best.path[0].share));
  if (sequences < used) {
    why = fmt::format("the step has {} for {}: more sequences help", counted(sequences, "sequence"),
                      counted(used, "device"));
  } else if (kFewAttention * best.num_attention <= used) {
    why = fmt::format(
        "{} of {} {} all attention: teams that share sequences (plan.team), shorter sequences or devices "
        "with "
        "more memory help",
        best.num_attention, counted(used, "device"), agree(best.num_attention, "computes", "compute"));
  }
  return {fmt::format("The plan reaches {:.1f} % of the peak of its devices, which is little: {}.",
                      100 * best.peak_share, why)};
}
Lines memory(const PlanResult& r) {
  std::string types;
  for (const TypeUse* use : full_types(r.best())) types += (types.empty() ? "" : " and ") + use->type;
  return {fmt::format("Memory is full on {}: larger microbatches, or more of them in flight, have no room.",
                      types)};
}
Lines newer_fastest(const PlanResult& r) {
  const Candidate* other = best_with_others(r);
  return {
      fmt::format("The newer devices alone are fastest: of the plans with others, the best reaches {} ({}).",
                  percent(r.best().prediction.step / other->prediction.step), other->name)};
}
Lines others_unfit(const PlanResult& r) {
  return {"The newer devices are used alone: no plan with others fits, " + r.others_lack + "."};
}
Lines others_untried(const PlanResult&) {
  return {"The newer devices are used alone; no plan with others was simulated."};
}
Lines leaving_out(const PlanResult& r) {
  const Candidate* all = best_of_all_devices(r);
  const double share = r.best().prediction.step / all->prediction.step;
  if (share > 1 - kNoFaster) return {fmt::format("Using all devices would be no faster ({}).", all->name)};
  return {fmt::format("Leaving devices out is faster than using all of them, which reaches {} ({}).",
                      percent(share), all->name)};
}
Lines all_unsimulated(const PlanResult&) { return {"No plan of all devices was simulated."}; }
Lines gain(const PlanResult& r) {
  const Candidate* newer = best_newer_only(r);
  return {fmt::format("{:.2f} times the speed of the newer devices alone ({}).",
                      newer->prediction.step / r.best().prediction.step, newer->name)};
}
Lines newer_unfit(const PlanResult& r) {
  return {fmt::format("The newer devices alone ({}) have no plan that fits.", r.newer_unfit)};
}
Lines sharding(const PlanResult& r) {
  std::vector<std::string> frees;
  bool fits = true;
  for (const TypeUse& use : r.best().types) {
    if (use.freed <= 0) continue;
    frees.push_back(fmt::format("{} on {}", memory_text(use.freed), use.type));
    fits = fits && use.unsharded / kGiB <= use.limit_gib;
  }
  return {
      fmt::format("The optimizer is sharded over devices that hold the same weights, which frees up to {}{}.",
                  fmt::join(frees, " and "), fits ? "" : ": without it the plan does not fit")};
}
Lines narrower(const PlanResult& r) {
  Lines lines;
  for (const NarrowWire& wire : r.narrow_wires)
    lines.push_back(
        fmt::format("With {} ({}) the plan would be {:.2f} times as fast; docs/precision.md says what that "
                    "costs.",
                    wire.flag, wire.what, wire.tokens_per_s / r.best().prediction.tokens_per_s));
  return lines;
}
Lines rows_by_node(const PlanResult&) {
  return {"A token goes once to each node, where a device passes it on to the other owners of its experts."};
}
Lines bounds(const PlanResult& r) { return r.bounds; }

Lines better_number(const PlanResult& r) {
  const double gain = r.good_sequences->tokens_per_s / r.best().prediction.tokens_per_s - 1;
  return {fmt::format("With {} a step the same arrangement reaches {:.0f} tokens/s, {} more.",
                      counted(r.good_sequences->sequences, "sequence"), r.good_sequences->tokens_per_s,
                      percent(gain))};
}

}  // namespace

bool leaves_devices_out(const Candidate& candidate) {
  return uses_type(candidate, [](const TypeUse& use) { return use.used < use.devices; });
}

const TypeUse* busiest(const Candidate& candidate) {
  const TypeUse* most = nullptr;
  for (const TypeUse& use : candidate.types) {
    if (use.used > 0 && (most == nullptr || use.busy > most->busy)) most = &use;
  }
  return most;
}

const Candidate* best_with_others(const PlanResult& result) {
  return fastest(result, [](const Candidate& c) { return !c.newer_only; });
}

const Candidate* best_of_all_devices(const PlanResult& result) {
  return fastest(result, [](const Candidate& c) { return !leaves_devices_out(c); });
}

const Candidate* best_newer_only(const PlanResult& result) {
  return fastest(result, [](const Candidate& c) { return c.newer_only; });
}

const std::vector<Sentence>& sentences() {
  static const std::vector<Sentence> all = {
      {"no plan", infeasible, no_plan},
      {"summary", feasible, summary},
      {"expectation", feasible, expectation},
      {"stages", has_stages, stages},
      {"teams", shares_sequences, teams},
      {"rows by node", passes_rows_on, rows_by_node},
      {"types", feasible, type_lines},
      {"pace", sets_pace, pace},
      {"alike", waits_alike, alike},
      {"nobody busy", nobody_busy, nobody},
      {"path", has_path, path},
      {"far from peak", far_from_peak, what_is_wrong},
      {"memory", memory_full, memory},
      {"sharded optimizer", optimizer_sharded, sharding},
      {"newer alone fastest", newer_alone_fastest, newer_fastest},
      {"others do not fit", others_do_not_fit, others_unfit},
      {"others not tried", others_not_tried, others_untried},
      {"leaving out", all_devices_slower, leaving_out},
      {"all devices not simulated", all_devices_not_simulated, all_unsimulated},
      {"gain", against_newer_only, gain},
      {"newer alone do not fit", newer_do_not_fit, newer_unfit},
      {"good number of sequences", has_good_sequences, better_number},
      {"narrow wires", has_narrow_wires, narrower},
      {"bounds", is_bounded, bounds},
  };
  return all;
}

}  // namespace hetermoe
