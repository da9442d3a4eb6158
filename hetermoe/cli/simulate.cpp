#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>

#include "hetermoe/base/index.h"
#include "hetermoe/base/version.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/cli/dry_run.h"
#include "hetermoe/cli/routing.h"
#include "hetermoe/cluster/assumed_links.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/plan/turns.h"
#include "hetermoe/planner/strategies/round_robin_plan.h"
#include "hetermoe/report/plan_layout.h"
#include "hetermoe/report/table.h"
#include "hetermoe/report/waits_text.h"
#include "hetermoe/routing/split_routing.h"
#include "hetermoe/schedule/order_policy.h"
#include "hetermoe/sim/simulated_step.h"
#include "hetermoe/train/checkpoint/output_lock.h"
#include "hetermoe/train/growth/growing_job.h"
#include "hetermoe/train/job/epochs.h"
#include "hetermoe/train/job/job.h"
#include "hetermoe/train/job/job_data.h"
#include "hetermoe/train/job/slow_team.h"
#include "hetermoe/train/job/usual_choices.h"
#include "hetermoe/train/run/route_recorder.h"
#include "hetermoe/train/run/route_replay.h"
#include "hetermoe/train/run/step_balancer.h"

namespace hetermoe {
namespace {

struct SimulateArguments {
  std::string job, plan, routing = "uniform";
  i64 tiles = 0;
  bool json = false;
};

/// Of a device what tensors may use, of a host all that the cluster gives it.
Bytes usable_of(const Cluster& cluster, PlaceId place) {
  return place < cluster.num_devices() ? usable_memory(cluster.type_of(place)) : cluster.memory_bytes(place);
}

/// A finished prediction of one step.
struct Simulated {
  Plan plan, emulated;  ///< the second as it is priced: in the dtypes of the clock
  Schedule schedule;
  Timeline timeline;
  std::vector<MemoryPeak> memory;  ///< [place]
  double tokens_per_s = 0;
  Seconds alone = 0;  ///< from the first op of a step to its last: more than the step where steps overlap
  std::string both_roles, slow_team;  ///< both_roles_note(), slow_team_note()
  i32 tiles = 0;                      ///< OpCosts::tiles
};

Simulated simulate_job(const Job& job, const ModelConfig& model, const Cluster& cluster,
                       const std::string& routing_text, i32 tiles = 0) {
  Simulated out;
  out.tiles = tiles;
  const std::shared_ptr<const RoutingLoad> load = routing_load_of(routing_text, model);
  out.plan = make_job_plan(job, model, cluster);
  out.both_roles = both_roles_note(job, cluster);
  const auto* trace = dynamic_cast<const TraceRouting*>(load.get());
  if (trace != nullptr) tell_unused(*trace, out.plan);
  std::optional<SplitRouting> divided;
  if (trace != nullptr && copy_split_of(out.plan) != CopySplit::kShares)
    divided.emplace(*trace, cluster, copy_split_of(out.plan));
  const RoutingLoad& routing = divided ? static_cast<const RoutingLoad&>(*divided) : *load;
  out.emulated = emulated_plan(job, out.plan);
  const StepOptions step = step_options(job, model);
  out.schedule = build_schedule(out.plan, model, step);
  const std::unique_ptr<CostModel> cost = make_cost(model, cluster, out.emulated, load_profiles(cluster));
  const Placement placement(out.emulated, model, step);
  out.slow_team = slow_team_note(out.emulated, model, cluster, *cost);
  SimulatedStep simulated =
      simulate_step(out.schedule, placement, placement, model, cluster, *cost, routing, tiles);
  out.alone = simulated.alone;
  out.timeline = make_timeline(out.schedule, simulated.times, out.plan, cluster, "simulated");
  out.timeline.title = fmt::format("{}, {} on {}", job.plan.file.empty() ? job.strategy : out.plan.strategy,
                                   model.name, cluster.name);
  out.memory = std::move(simulated.memory);
  out.tokens_per_s = real(total_tokens(out.plan)) / simulated.times.step;
  return out;
}

/// summary.json, as runs write it: what a page needs beyond plan and timeline.
Json summary_json(const Simulated& result, const Job& job) {
  Json row = {{"strategy", job.plan.file.empty() ? job.strategy : result.plan.strategy},
              {"model", result.plan.model},
              {"suffix", ""},
              {"step_s", result.timeline.step},
              {"note", "simulated only: nothing was trained"},
              {"memory_bytes", Json::array()}};
  for (std::size_t i = 0; i < result.memory.size(); ++i) {
    Json memory = to_json(result.memory[i].use);
    memory["device"] = result.timeline.devices[i].name;
    row["memory_bytes"].push_back(std::move(memory));
  }
  return {{"rows", {row}}};
}

std::vector<std::filesystem::path> write_simulated(const std::filesystem::path& folder,
                                                   const Simulated& result, const Job& job,
                                                   const ModelConfig& model, const Cluster& cluster) {
  const std::vector<std::pair<const char*, std::string>> files = {
      {"job.json", to_json(job).dump(2) + "\n"},
      {"plan.json", to_json(result.plan).dump(1) + "\n"},
      {"model.json", to_hf(model).dump(2) + "\n"},
      {"cluster.json", to_json(cluster).dump(2) + "\n"},
      {"summary.json", summary_json(result, job).dump(2) + "\n"},
      {"schedule.txt", to_text(result.schedule)},
      {"trace.json", perfetto_trace(result.timeline).dump() + "\n"}};
  std::vector<std::filesystem::path> paths;
  for (const auto& [name, text] : files) {
    write_text(folder / name, text);
    paths.push_back(folder / name);
  }
  save_timeline(folder / "timeline.json", result.timeline);
  paths.push_back(folder / "timeline.json");
  return paths;
}

/// The device whose memory is overfilled most, in words; empty = all devices have room.
std::string overfilled(const Simulated& result, const Cluster& cluster) {
  std::vector<Bytes> memory;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) memory.push_back(result.memory[idx(d)].use.total());
  return overfilled_device(memory, cluster);
}

/// "A40#4, A40#5", of many the first.
std::string names_of(const std::vector<DeviceId>& devices, const Timeline& timeline) {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(devices.size(), kNamed); ++i)
    names.push_back(timeline.devices[idx(devices[i])].name);
  if (devices.size() > kNamed) names.push_back(counted(devices.size() - kNamed, "more device"));
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Which devices hold attention parts of a group and get no sequence of any microbatch, and why; empty =
/// none.
std::string without_sequences(const Group& group, const Timeline& timeline) {
  std::map<DeviceId, i64> sequences;
  const auto add = [&](const Shares& shares) {
    for (const ShareRow& row : shares) {
      for (const Share& share : row) sequences[share.device] += share.sequences;
    }
  };
  add(group.embed), add(group.head);
  for (const LayerPlacement& layer : group.layers) add(layer.attention), add(layer.attention_backward);
  std::vector<DeviceId> without;
  for (const auto& [device, count] : sequences) {
    if (count == 0) without.push_back(device);
  }
  if (without.empty()) return "";
  const auto is_without = [&](const Share& share) { return sequences[share.device] == 0; };
  std::size_t devices = 0;  // among which a microbatch is divided
  for (const LayerPlacement& layer : group.layers) {
    for (const ShareRow& row : layer.attention)
      if (std::any_of(row.begin(), row.end(), is_without)) devices = std::max(devices, row.size());
  }
  const i64 most = *std::max_element(group.microbatches.begin(), group.microbatches.end());
  return fmt::format(
      "{} {} no sequences: {}. Raise train.sequences, lower train.microbatches, or leave {} out of "
      "plan.attention",
      names_of(without, timeline), agree(without.size(), "gets", "get"),
      most < static_cast<i64>(devices)
          ? fmt::format("a microbatch of {} is divided among {}", counted(most, "sequence"),
                        counted(devices, "device"))
          : "by the weights of the devices, less than one of a microbatch is left",
      without.size() == 1 ? "it" : "them");
}

/// What is worth knowing of the plan's step beyond its figures.
std::vector<std::string> notes_of(const Simulated& result, const Cluster& cluster) {
  std::vector<std::string> out;
  for (const std::string& note : {borrowed_rates(cluster, result.emulated.dtype),
                                  row_nodes_note(result.plan, cluster), result.both_roles})
    if (!note.empty()) out.push_back(note);
  if (result.tiles > 1)
    out.push_back(
        fmt::format("experts compute in {} tiles, the first as soon as its rows are there: what fused "
                    "kernels would bring. A run has none",
                    result.tiles));
  if (result.schedule.overlaps())
    out.push_back(fmt::format(
        "steps overlap: each computes while the optimizer of the one before still works, with weights that "
        "lack its update; from its first op to its last a step takes {}",
        format_seconds(result.alone)));
  for (const Group& group : result.plan.groups) {
    if (std::string note = without_sequences(group, result.timeline); !note.empty())
      out.push_back(std::move(note));
  }
  return out;
}

std::vector<std::string> warnings_of(const Simulated& result, const Cluster& cluster) {
  std::vector<std::string> warnings = {round_warning(result.plan), other_devices_note(result.plan, cluster),
                                       result.slow_team};
  std::erase(warnings, "");
  return warnings;
}

/// assumed: what of the links is assumed; empty = nothing.
Json result_json(const Simulated& result, const Cluster& cluster, const std::string& assumed) {
  const std::vector<double> busy = busy_share(result.timeline);
  Json devices = Json::array();
  for (std::size_t i = 0; i < result.timeline.devices.size(); ++i) {
    const TimelineDevice& device = result.timeline.devices[i];
    devices.push_back({{"name", device.name},
                       {"type", device.type},
                       {"role", device.role},
                       {"busy", busy[i]},
                       {"memory_bytes", to_json(result.memory[i].use)},
                       {"capacity_bytes", cluster.memory_bytes(static_cast<PlaceId>(i))},
                       {"usable_bytes", usable_of(cluster, static_cast<PlaceId>(i))}});
  }
  Json json = {{"source", result.timeline.source},
               {"strategy", result.plan.strategy},
               {"model", result.plan.model},
               {"cluster", cluster.name},
               {"seq_len", result.plan.seq_len},
               {"sequences", total_sequences(result.plan)},
               {"dtypes", {{"priced", dtypes_text(result.emulated)}, {"run", dtypes_text(result.plan)}}},
               {"step_s", result.timeline.step},
               {"step_alone_s", result.alone},
               {"tokens_per_s", result.tokens_per_s},
               {"overfilled", overfilled(result, cluster)},
               {"notes", notes_of(result, cluster)},
               {"warnings", warnings_of(result, cluster)},
               {"num_ops", result.schedule.num_ops()},
               {"schedule_hash", fmt::format("{:016x}", hash(result.schedule))},
               {"devices", devices},
               {"roles", roles_json(result.timeline)},
               {"critical_path", path_json(result.timeline)}};
  if (!assumed.empty()) json["assumed_links"] = assumed;
  return json;
}

void print_devices(const Simulated& result, const Cluster& cluster) {
  const std::vector<double> busy = busy_share(result.timeline);
  Table table({"device", "role", "busy", "memory", "state", "saved", "in flight", "work", "usable", ""});
  for (std::size_t i = 0; i < result.timeline.devices.size(); ++i) {
    const MemoryUse& use = result.memory[i].use;
    const Bytes capacity = usable_of(cluster, static_cast<PlaceId>(i));
    table.add_row({result.timeline.devices[i].name, result.timeline.devices[i].role, format_percent(busy[i]),
                   format_bytes(use.total()), format_bytes(use.state()), format_bytes(use.saved),
                   format_bytes(use.in_flight), format_bytes(use.workspace), format_bytes(capacity),
                   use.total() > capacity ? "does not fit" : ""});
  }
  std::cout << table.str();
}

std::string turn_seconds(const PlanTurn& turn) {
  const auto [least, most] = std::minmax_element(turn.lengths.begin(), turn.lengths.end());
  if (*least == *most) return format_seconds(*most);
  return fmt::format("{} to {}", format_seconds(*least), format_seconds(*most));
}

/// Which device takes which turn of which round.
void print_turns(const Plan& plan) {
  if (!traits_of(plan.order).has_rounds) return;
  Table table({"turn", "computes", "a microbatch", "on devices, by round"});
  for (const Group& group : plan.groups) {
    for (const PlanTurn& turn : turns_of(plan, group)) {
      table.add_row({std::to_string(table.num_rows()), turn_work(turn),
                     plan.turn_lengths.empty() ? "-" : turn_seconds(turn),
                     fmt::format("{}", fmt::join(turn.devices, " "))});
    }
  }
  table.align(3, Align::kLeft);
  std::cout << table.str() << "\n";
}

void print_simulated(const Simulated& result, const Cluster& cluster, const std::string& assumed) {
  std::cout << fmt::format(
      "{}: {} of {} in {}, {}\n", result.timeline.title, counted(total_sequences(result.plan), "sequence"),
      counted(result.plan.seq_len, "token"), counted(result.plan.groups[0].microbatches.size(), "microbatch"),
      counted(result.schedule.num_ops(), "op"));
  std::cout << fmt::format("simulated step {}, {} tokens/s; times and memory in {}\n{}\n",
                           format_seconds(result.timeline.step), format_count(result.tokens_per_s),
                           dtypes_text(result.emulated), assumed.empty() ? "" : assumed + ".\n");
  for (const std::string& warning : warnings_of(result, cluster))
    std::cout << "warning: " << warning << "\n\n";
  print_turns(result.plan);
  print_devices(result, cluster);
  for (const std::string& note : notes_of(result, cluster)) std::cout << "note: " << note << "\n";
  std::cout << "\n" << waits_text(result.timeline);
}

/// The last line where a plan does not fit, and the exit code: 1 then, else 0.
int say_whether_it_fits(const Simulated& result, const Cluster& cluster, bool json) {
  const std::string over = overfilled(result, cluster);
  const bool of_others = !other_devices_note(result.plan, cluster).empty();
  const std::string made_for_others = of_others ? ", but it was made for " + result.plan.made_for : "";
  if (!over.empty() && !json)
    std::cout << "\nthe plan does not fit: " << over << made_for_others << "; `" << program()
              << " plan` finds one that fits, or says what would\n";
  return over.empty() ? 0 : 1;
}

int simulate(const SimulateArguments& options, Overrides overrides) {
  const bool writes = gives(overrides, "output");
  if (!options.plan.empty()) overrides.emplace_back("plan.file", options.plan);
  const Job job = options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides);
  if (writes) {
    check_output_folder(job.output);
    if (holds_training(job.output))
      fail<ConfigError>("output",
                        "folder {} holds the results of a training: give another one, as {}-simulated",
                        job.output, job.output);
  }
  const ModelConfig model = load_model(job.model);
  const Cluster cluster = load_cluster(job.cluster);
  const Simulated result =
      simulate_job(job, model, cluster, options.routing, static_cast<i32>(options.tiles));
  const std::string taken = taken_by_default(job);
  std::vector<std::filesystem::path> files;
  if (writes) files = write_simulated(job.output, result, job, model, cluster);
  if (options.json) {
    Json json = result_json(result, cluster, assumed_links(job.cluster));
    if (!model.assumed.empty()) json["assumed_model"] = model.assumed;
    if (!taken.empty()) json["notes"].push_back(taken);
    print_json(json);
  } else {
    if (!taken.empty()) std::cout << taken << "\n";
    if (!model.assumed.empty()) std::cout << model.assumed << ".\n";
    print_simulated(result, cluster, assumed_links(job.cluster));
    for (const std::filesystem::path& file : files) std::cout << "wrote " << file.string() << "\n";
  }
  return say_whether_it_fits(result, cluster, options.json);
}

/// Of all steps, which take others after experts have grown. first: a step at the begin.
Seconds whole_run(const Job& job, Seconds first) {
  Seconds sum = 0;
  i64 begin = 0;
  for (const JobPart& part : parts_of(job)) {
    const Seconds step =
        begin == 0
            ? first
            : simulate_job(part.job, part.model, load_cluster(part.job.cluster), "uniform").timeline.step;
    sum += step * real(part.end - begin);
    begin = part.end;
  }
  return sum;
}

}  // namespace

int dry_run(const Job& asked, bool json) {
  const auto [job, read] = with_steps(asked);
  learning_rate_of(job.train);
  const ModelConfig model = load_model(job.model);
  check_trainable(model);
  const Cluster cluster = load_cluster(job.cluster);
  const Dataset data = read ? *read : load_job_data(job);
  check_vocabulary(data, model);
  const Simulated result = simulate_job(job, model, cluster, "uniform");
  // What a run refuses before its first step.
  if (job.balancer.on())
    StepBalancer(job, model, cluster, result.plan, load_profiles(cluster),
                 static_cast<i64>(data.domains().size()));
  if (!job.routing.replay.empty()) RouteReplay(job, model, name_of_text(data.checksum(), data, job.train));
  const Seconds whole = whole_run(job, result.timeline.step);
  const i64 sequences = job.train.steps * job.train.sequences;
  const double passes = epochs_of(job.train, data);
  std::vector<std::string> notes = usual_notes(job, model);
  for (std::string& note : idle_keys_notes(job)) notes.push_back(std::move(note));
  notes.insert(notes.begin(), training_line(job, model, data));
  if (std::string taken = taken_by_default(job); !taken.empty())
    notes.insert(notes.begin(), std::move(taken));
  if (json) {
    print_json({{"job", to_json(job)},
                {"step", result_json(result, cluster, assumed_links(job.cluster))},
                {"notes", notes},
                {"steps", job.train.steps},
                {"run_s", whole},
                {"tokens", sequences * job.train.seq_len},
                {"passes", passes}});
    return say_whether_it_fits(result, cluster, json);
  }
  for (const std::string& note : notes) std::cout << note << "\n";
  print_simulated(result, cluster, assumed_links(job.cluster));
  std::cout << fmt::format(
      "\nthe whole run, {}: {} simulated, {} tokens, {:.3g} times the training text. Nothing was done; "
      "`hetermoe "
      "options` prints the resolved job, `hetermoe data` what it learns from\n",
      counted(job.train.steps, "step"), format_seconds(whole),
      format_count(real(sequences * job.train.seq_len)), passes);
  return say_whether_it_fits(result, cluster, json);
}

std::function<int()> make_simulate(Flags& flags) {
  const auto options = std::make_shared<SimulateArguments>();
  flags.add_option("job", options->job, "job file (YAML); every key of it is also a flag: --strategy ep");
  flags.add_option("--plan", options->plan,
                   "a plan.json to simulate, instead of what the job's strategy makes");
  flags.add_option("--routing", options->routing, kRoutingHelp)->capture_default_str();
  flags
      .add_option(
          "--tiles", options->tiles,
          "experts compute in so many tiles, and begin when the rows of the first are there, as fused "
          "kernels would; a run does not [default: none]")
      ->range(between(1, 1024));
  flags.add_flag("--json", options->json, "print the result as JSON");
  allow_overrides(flags);
  flags.add_to_footer(
      "\nWith --output DIR: plan, schedule, timeline and Perfetto trace are written there. Exit code 1: the "
      "plan does "
      "not fit.");
  return [options, flags] { return simulate(*options, overrides_of(flags)); };
}

}  // namespace hetermoe
