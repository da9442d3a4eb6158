#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <set>
#include <utility>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/version.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/cli/plan_notes.h"
#include "hetermoe/cli/routing.h"
#include "hetermoe/cluster/assumed_links.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/estimate/rates.h"
#include "hetermoe/planner/planner.h"
#include "hetermoe/planner/run_cost.h"
#include "hetermoe/planner/words/ways_out.h"
#include "hetermoe/report/table.h"
#include "hetermoe/report/waits_text.h"
#include "hetermoe/train/job/job.h"
#include "hetermoe/train/session/ranks.h"

namespace hetermoe {
namespace {

struct PlanArguments {
  std::string model, cluster, output, dtype = "fp16", wire, wire_reduce = "fp32", master = "fp32",
                                      moments = "fp32", routing = "uniform", gradients;
  double memory_reserve_gib = 0, routing_margin = 0, run_tokens = 0;
  i64 seq_len = 4096, sequences = 0, tokens = 0, max_microbatches = PlanLimits().max_microbatches;
  std::vector<DeviceId> idle;
  TrainOptions train;  // what is trained of the model
  bool shard_optimizer = true, node_rows = true, offload = true, json = false;
};

PlanRequest make_request(const PlanArguments& options) {
  check_step_size(options.sequences, options.tokens, options.seq_len);
  if (options.model.empty())
    fail<ConfigError>("--model", "is missing.{}", known_names_hint("", known_models()));
  if (options.cluster.empty())
    fail<ConfigError>("--cluster", "is missing: expected a cluster file, a hostfile or a name.{}",
                      known_names_hint("", known_clusters()));
  PlanRequest request;
  request.model = load_model(options.model);
  request.cluster = load_cluster(options.cluster);
  request.seq_len = options.seq_len;
  request.sequences = options.sequences;
  request.tokens = options.tokens > 0 || options.sequences > 0 ? options.tokens : i64{1} << 20;
  request.dtype = parse_dtype(options.dtype);
  if (!options.wire.empty()) request.wire = enum_from<Wire>(options.wire, "--wire");
  request.master = enum_from<Master>(options.master, "--master");
  if (const Dtype moments = parse_dtype(options.moments); moments != Dtype::kFp32)
    request.moments_dtype = moments;
  if (!options.gradients.empty()) request.grad_dtype = parse_dtype(options.gradients);
  request.wire_reduce = enum_from<WireReduce>(options.wire_reduce, "--wire-reduce");
  if (options.train.lora.rank == 0 && !options.train.lora.targets.empty())
    fail<ConfigError>("--lora-targets",
                      "is given without --lora-rank, expected the rank of their adapters, as 8");
  Job job;
  job.train = options.train;
  const StepOptions step = step_options(job, request.model);
  request.trained = {step.frozen, step.lora};
  const std::vector<std::string> faults = dtype_faults(blank_plan(request, Recompute::kLocal));
  if (!faults.empty()) fail<ConfigError>("plan", "{}", faults[0]);
  request.limits.max_microbatches = options.max_microbatches;
  request.limits.shard_optimizer = options.shard_optimizer;
  request.limits.node_rows = options.node_rows;
  request.limits.offload = options.offload;
  request.limits.memory_reserve = options.memory_reserve_gib * kGiB;
  const bool even = options.routing == "uniform" || options.routing == "even";
  if (!even) request.routing = {.load = routing_load_of(options.routing, request.model)};
  if (options.routing_margin > 0) request.routing.margin = options.routing_margin;
  request.limits.idle = options.idle;
  request.limits.weigh_newer = true;
  for (const DeviceId device : options.idle) {
    if (device < 0 || device >= request.cluster.num_devices()) {
      fail<ConfigError>("--idle", "device {} does not exist: cluster {} has devices 0 to {}", device,
                        request.cluster.name, request.cluster.num_devices() - 1);
    }
  }
  return request;
}

void print_types(const Candidate& best) {
  Table table({"type", "devices", "used", "role", "busy, mean", "memory of the fullest", "limit", "of"});
  for (const TypeUse& use : best.types) {
    table.add_row({use.type, std::to_string(use.devices), std::to_string(use.used), use.role,
                   format_percent(use.busy), format_bytes(use.memory),
                   format_digits(use.limit_gib, 3) + " GiB", format_digits(use.memory_gib, 3) + " GiB"});
  }
  std::cout << table.str() << "\n";
}

void print_tried(const PlanResult& result) {
  Table table({"plan", "step", "tokens/s", "against best", "why (busy: mean of a type)"});
  for (const Candidate& candidate : result.tried) {
    if (!candidate.infeasible.empty()) {
      table.add_row({candidate.name, "-", "-", "-", "does not fit: " + candidate.infeasible});
      continue;
    }
    const double share = candidate.prediction.tokens_per_s / result.best().prediction.tokens_per_s;
    table.add_row({candidate.name, format_seconds(candidate.prediction.step),
                   format_count(candidate.prediction.tokens_per_s), format_percent(share),
                   candidate.verdict});
  }
  std::cout << table.str();
}

std::string or_dash(std::optional<double> figure) { return figure ? format_count(*figure) : "-"; }

/// Days, money and energy of a run: of the plans between which time and money decide, else of the best.
void print_run_cost(const PlanRequest& request, const PlanResult& result, double run_tokens) {
  std::vector<std::size_t> rows = time_and_money(request.cluster, result);
  const bool priced = !rows.empty();
  if (!priced && run_tokens <= 0) return;
  if (std::find(rows.begin(), rows.end(), 0) == rows.end()) rows.insert(rows.begin(), 0);
  Table table({"time and money", "tokens/s", "per hour", "tokens per unit", "days", "cost", "kWh"});
  const RunCost best = run_cost_of(request.cluster, result.best());
  for (const std::size_t i : rows) {
    const RunCost cost = run_cost_of(request.cluster, result.tried[i]);
    const bool whole = run_tokens > 0;
    table.add_row({result.tried[i].name, format_count(cost.tokens_per_s), or_dash(cost.per_hour),
                   or_dash(cost.tokens_per_unit()),
                   whole ? format_digits(cost.seconds(run_tokens) / 86400, 3) : "-",
                   or_dash(whole ? cost.money(run_tokens) : std::nullopt),
                   or_dash(whole ? cost.kilowatt_hours(run_tokens) : std::nullopt)});
  }
  std::cout << "\n" << table.str();
  if (run_tokens > 0)
    std::cout << fmt::format("Days, cost and kWh are those of a run of {} tokens.\n",
                             format_count(run_tokens));
  std::cout << "Money is in the unit of price_per_hour, of the devices that a plan uses.\n";
  if (best.kilowatts) std::cout << "kWh take each of them at its tdp_w, an upper figure.\n";
  if (!best.unpriced.empty())
    std::cout << fmt::format("The cost is not known: no price_per_hour for {} in the cluster file.\n",
                             fmt::join(best.unpriced, ", "));
  if (!best.unrated.empty())
    std::cout << fmt::format("The energy is not known: no tdp_w for {} in the cluster file.\n",
                             fmt::join(best.unrated, ", "));
}

/// What is trained where it is not the whole model; empty = all.
std::string trained_text(const Trained& trained) {
  if (trained.lora != nullptr)
    return fmt::format(", adapters of rank {} of {} {}", trained.lora->rank, trained.lora->targets.size(),
                       agree(trained.lora->targets.size(), "matrix", "matrices"));
  return trained.frozen.empty() ? "" : fmt::format(", {} frozen", counted(trained.frozen.size(), "unit"));
}

/// What the figures of memory are.
std::string memory_text(const PlanResult& result, const ModelConfig& model) {
  const std::string what = result.best().extrapolated
                               ? "by an estimate: the plan is too large to simulate whole"
                               : "the peak of the simulated step";
  const double margin = result.routing_margin;
  if (model.num_moe_layers() == 0) return fmt::format("Memory is {}.", what);
  return fmt::format(
      "Memory is {}, {}.", what,
      margin > 1
          ? fmt::format("with room for {:.3g} times the tokens that routing gives to a device's experts",
                        margin)
          : "with the assumed routing and no margin");
}

/// Flags of a job that trains as little of the model.
std::string flags_of(const TrainOptions& train) {
  std::string flags;
  if (!train.freeze.empty()) flags += fmt::format(" --train.freeze '{}'", fmt::join(train.freeze, ","));
  if (train.lora.rank > 0) flags += fmt::format(" --train.lora.rank {}", train.lora.rank);
  if (train.lora.rank > 0 && !train.lora.targets.empty())
    flags += fmt::format(" --train.lora.targets '{}'", fmt::join(train.lora.targets, ","));
  return flags;
}

void print_plan(const PlanRequest& request, const PlanResult& result, const std::string& assumed) {
  const i64 sequences = total_sequences(result.best().plan);
  std::cout << fmt::format("{} on {}, {} of {} ({} tokens) a step, {}{}{} (all figures simulated)\n",
                           request.model.name, request.cluster.name, counted(sequences, "sequence"),
                           counted(request.seq_len, "token"), sequences * request.seq_len,
                           name_of(request.dtype),
                           request.wire ? fmt::format(", rows travel in {}", name_of(*request.wire)) : "",
                           trained_text(request.trained));
  if (!request.model.assumed.empty()) std::cout << request.model.assumed << ".\n";
  if (!assumed.empty()) std::cout << assumed << ".\n";
  if (const std::string borrowed = borrowed_rates(request.cluster, result.best().plan.dtype);
      !borrowed.empty())
    std::cout << borrowed << ".\n";
  std::cout << "\n";
  for (const std::string& line : result.explanation) std::cout << line << "\n";
  std::cout << memory_text(result, request.model) << "\n";
  std::cout << longest_wait_text(group_use(result.best().timeline)) << "\n";
  if (const std::string hiding = hiding_text(request); !hiding.empty()) std::cout << hiding << "\n";
  std::cout << "\n";
  print_types(result.best());
  print_tried(result);
  print_depth_roles(request, result);
}

Json money_json(const PlanRequest& request, const PlanResult& result, double run_tokens) {
  Json json = {{"run_tokens", run_tokens > 0 ? Json(run_tokens) : Json()}, {"plans", Json::array()}};
  const std::vector<std::size_t> chosen = time_and_money(request.cluster, result);
  for (std::size_t i = 0; i < result.tried.size(); ++i) {
    if (!result.tried[i].infeasible.empty()) continue;
    Json row = to_json(run_cost_of(request.cluster, result.tried[i]), run_tokens);
    row["name"] = result.tried[i].name;
    row["on_frontier"] = std::find(chosen.begin(), chosen.end(), i) != chosen.end();
    json["plans"].push_back(std::move(row));
  }
  return json;
}

/// Cards that can be bought: those of the demo are a thousandth of one.
bool has_gpus(const Cluster& cluster) {
  constexpr double kSlowestTflops = 1;
  return std::ranges::all_of(cluster.types, [](const DeviceType& type) {
    return type.compute_capability > 0 && type.fp32_tflops >= kSlowestTflops;
  });
}

/// What starts the processes that train a plan on GPUs: one, one for each GPU, or one for each node where
/// devices of a node share its host.
std::string launcher_of(const Cluster& cluster, const Plan& plan) {
  std::set<NodeId> nodes;
  const std::vector<DeviceId> devices = working_devices(plan);
  for (const DeviceId device : devices) nodes.insert(cluster.devices[idx(device)].node);
  if (nodes.size() == 1) return "";
  return fmt::format("mpirun -np {} ", uses_hosts(plan) ? nodes.size() : devices.size());
}

/// What else a machine needs that trains on old cards: the usual torch has no code for them. Empty = nothing.
std::string old_cards_note(const Cluster& cluster, const Plan& plan) {
  constexpr double kOldestOfCuda13 = 7.5;
  std::set<std::string> old;
  for (const DeviceId device : working_devices(plan))
    if (const DeviceType& type = cluster.type_of(device); type.compute_capability < kOldestOfCuda13)
      old.insert(type.name);
  return old.empty() ? ""
                     : fmt::format(
                           "  {} {} torch for CUDA 12.6: `./dev setup cu126` and `./dev build` on those "
                           "machines (docs/gpu.md)\n",
                           fmt::join(old, " and "), agree(old.size(), "needs", "need"));
}

/// What to do with a plan: look at it, train with it.
void print_next(const PlanArguments& options, const PlanRequest& request, const Plan& plan) {
  const bool written = !options.output.empty();
  const std::string common = fmt::format("--model {} --cluster {} --plan {}", options.model, options.cluster,
                                         written ? options.output : "plan.json");
  if (written)
    std::cout << fmt::format("\nplan: {}\n", options.output);
  else
    std::cout << "\nwith -o plan.json the plan is written; then\n";
  // A run of a plan is emulated in 16 bits unless it says otherwise.
  const std::string dtype =
      bytes_of(request.dtype) == 2 ? "" : fmt::format(" --clock.emulated_dtype {}", name_of(request.dtype));
  const std::string trained = dtype + flags_of(options.train);
  const std::string routing = request.routing.load == nullptr ? "" : " --routing " + options.routing;
  std::cout << fmt::format("simulate: {} simulate {}{}{}\n", program(), common, trained, routing);
  if (!request.model.unsupported.empty()) return;
  const std::string train = fmt::format("{} train {} --train.seq_len {} --train.sequences {}{}", program(),
                                        common, request.seq_len, total_sequences(plan), trained);
  if (has_gpus(request.cluster))
    std::cout << fmt::format("train on its GPUs: {}{} --run.device cuda\n{}",
                             launcher_of(request.cluster, plan), train,
                             old_cards_note(request.cluster, plan));
  std::cout << fmt::format("train: {}\n", train);
}

using Ways = std::optional<std::vector<std::string>>;
constexpr std::size_t kLineWidth = 120;

/// What is short, what would help, and the ways out that were found.
std::vector<std::string> why_none_fits(const PlanResult& result, const Ways& ways) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& text) {
    for (std::string& line : wrap_words(text, kLineWidth)) lines.push_back(std::move(line));
  };
  add(result.infeasible + ".");
  add(result.advice + ".");
  if (!ways) return lines;
  if (ways->empty())
    add("None of these alone makes room: 4 TiB of main memory a node, smaller states, adapters, shorter "
        "sequences (512 tokens at least), 8 times as many devices.");
  else
    add("Each of these alone makes room:");
  for (const std::string& way : *ways) {
    std::string indent = "  ";
    for (const std::string& line : wrap_words(way, kLineWidth - 4))
      lines.push_back(std::exchange(indent, "    ") + line);
  }
  return lines;
}

int plan(const PlanArguments& options) {
  PlanRequest request = make_request(options);
  const std::string assumed = assumed_links(options.cluster);
  request.links_assumed = !assumed.empty();
  const PlanResult result = find_plan(request);
  if (!result.feasible() && isatty(STDERR_FILENO) != 0)
    std::cerr << "no plan fits; searching for what would make room" << std::endl;
  const Ways ways = result.feasible() ? std::nullopt : ways_out(request);
  if (options.json) {
    Json json = to_json(result);
    if (ways) json["ways_out"] = *ways;
    if (!assumed.empty()) json["assumed_links"] = assumed;
    if (result.feasible()) json["borrowed_rates"] = borrowed_rates(request.cluster, result.best().plan.dtype);
    if (!request.model.assumed.empty()) json["assumed_model"] = request.model.assumed;
    json["hiding"] = hiding_json(request);
    if (result.feasible()) json["depth_roles"] = depth_roles_json(request, result);
    if (result.feasible()) json["roles"] = roles_json(result.best().timeline);
    if (result.feasible()) json["time_and_money"] = money_json(request, result, options.run_tokens);
    print_json(json);
  }
  if (!result.feasible()) {
    if (options.json) return 2;  // as below, the reason is in the output
    fail<InputError>("plan", "no plan of {} on {} fits.\n{}", request.model.name, request.cluster.name,
                     fmt::join(why_none_fits(result, ways), "\n"));
  }
  if (!options.json) print_plan(request, result, assumed);
  if (!options.json) print_run_cost(request, result, options.run_tokens);
  if (!options.output.empty()) write_text(options.output, to_json(result.best().plan).dump(1) + "\n");
  if (!options.json) print_next(options, request, result.best().plan);
  return 0;
}

/// What a device has to have room for.
void add_memory_options(Flags& flags, PlanArguments& options) {
  flags
      .add_option("--memory-reserve", options.memory_reserve_gib,
                  "GiB of each device that stay free, besides the driver's and the allocator's part")
      ->capture_default_str()
      ->range(at_least(0));
  flags.add_option("--routing", options.routing, kRoutingHelp)->capture_default_str();
  flags
      .add_option("--routing-margin", options.routing_margin,
                  "a device has room for so many times the tokens that --routing gives its experts: routers "
                  "that have not been trained are uneven [default: 1.5, with --routing 1]")
      ->range(at_least(1));
}

}  // namespace

std::function<int()> make_plan(Flags& flags) {
  const auto options = std::make_shared<PlanArguments>();
  flags.add_option("--model", options->model, "a name of configs/models, a config.json or its folder");
  flags.add_option("--cluster", options->cluster, "a name of configs/clusters, a YAML file or a hostfile");
  flags.add_option("--seq", options->seq_len, "tokens per sequence")
      ->capture_default_str()
      ->range(at_least(1));
  flags.add_option("--sequences", options->sequences, "sequences of a step")->range(at_least(1));
  flags
      .add_option("--tokens", options->tokens, "tokens of a step, instead of --sequences [default: 1048576]")
      ->range(at_least(1));
  flags
      .add_option("--run-tokens", options->run_tokens,
                  "tokens of the whole run, 1e12 for example: adds days, cost (price_per_hour of the device "
                  "types) and energy (tdp_w)")
      ->range(above(0));
  flags.add_option("--dtype", options->dtype, "compute and transfers: fp16, bf16 or fp32")
      ->capture_default_str();
  add_wire_options(flags, "", options->wire, options->wire_reduce);
  flags
      .add_option("--master", options->master,
                  "fp32: copies of 16-bit weights that the optimizer updates; none (with --dtype bf16): the "
                  "weights themselves are updated and rounded stochastically")
      ->capture_default_str();
  flags.add_option("--moments-dtype", options->moments, "of the optimizer's moments: fp32 or bf16")
      ->capture_default_str();
  add_memory_options(flags, *options);
  flags.add_option("--grad-dtype", options->gradients,
                   "of gradients, kept and reduced: fp32, or that of --dtype [default: fp32]");
  flags.add_option("--idle", options->idle, "devices that must stay out, separated by commas")
      ->delimiter(',')
      ->range(at_least(0));
  flags
      .add_option("--max-microbatches", options->max_microbatches,
                  "bound of the search; the output says where it binds [default: none]")
      ->range(at_least(1));
  flags
      .add_option("--freeze", options->train.freeze,
                  "what train.freeze names is not trained: patterns of tensors")
      ->delimiter(',');
  flags
      .add_option("--lora-rank", options->train.lora.rank,
                  "adapters of this rank are trained, as train.lora has them [default: 0 = the model itself]")
      ->range(at_least(0));
  flags.add_option("--lora-targets", options->train.lora.targets, "matrices that have adapters: patterns")
      ->delimiter(',');
  flags.add_flag(
      "!--no-shard-optimizer", options->shard_optimizer,
      "every replica keeps all of the optimizer's state: such plans can follow each other in a run");
  flags.add_flag("!--no-node-dedup", options->node_rows,
                 "rows go straight to each owner of experts, even where once to each node is faster");
  flags.add_flag("!--no-offload", options->offload,
                 "no plan uses main memory, even where the cluster has hosts and nothing fits without");
  flags.add_option("-o,--output", options->output, "write the best plan to this file")->is_output();
  flags.add_flag("--json", options->json, "print all plans and figures as JSON");
  return [options] { return plan(*options); };
}

}  // namespace hetermoe
