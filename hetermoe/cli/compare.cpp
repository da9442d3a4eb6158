#include "hetermoe/train/run/compare.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <numeric>

#include "hetermoe/base/version.h"
#include "hetermoe/cli/balance_rows.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/cli/plan_notes.h"
#include "hetermoe/cli/routing.h"
#include "hetermoe/cluster/assumed_links.h"
#include "hetermoe/planner/strategies/baselines.h"
#include "hetermoe/planner/strategies/compare.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/report/progress.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/checkpoint/output_lock.h"
#include "hetermoe/train/job/epochs.h"
#include "hetermoe/train/job/gpu_run.h"
#include "hetermoe/train/job/usual_choices.h"
#include "hetermoe/train/run/stop.h"

namespace hetermoe {
namespace {

/// What is compared where nothing is asked for.
std::vector<std::string> usual_strategies(const ModelConfig& model) {
  if (model.num_moe_layers() == 0) return {"ep", "ep-overlap", "single"};
  return {"zebra", "ep", "ep-overlap", "dist-ep", "single"};
}

struct CompareArguments {
  std::string job;
  std::vector<std::string> strategies;
  i64 timed_steps = 3;
  bool simulate_only = false, json = false;
  // Predictions for GPUs, without a job:
  std::vector<i64> seq_lens;
  i64 sequences = 0, tokens = 0;
  std::string dtype = "fp16", wire, wire_reduce = "fp32", grad_dtype;
  PlanLimits limits;
  bool no_asym_ea = false, published = false;
  // Balancers on a routing trace:
  BalanceRowsOptions balance;
  std::string routing;
};

// ---- predictions for GPUs ----

constexpr std::size_t kListedLayers = 12;

/// By layer; of deep models the range, which --json has in full.
std::string moved_by_layer(const std::vector<i64>& moved) {
  if (moved.empty()) return "-";
  const auto [least, most] = std::minmax_element(moved.begin(), moved.end());
  if (*least == *most) return std::to_string(*least);
  return moved.size() <= kListedLayers ? fmt::format("{}", fmt::join(moved, " "))
                                       : fmt::format("{} to {}", *least, *most);
}

std::string note_of(const CompareRow& row) {
  std::vector<std::string> notes;
  if (!row.plan.empty()) notes.push_back(row.plan);
  if (row.roles) notes.push_back(roles_text(*row.roles));
  if (!row.on_hosts.empty()) notes.push_back("on hosts: " + row.on_hosts);
  if (row.from_first_microbatches) notes.emplace_back("extrapolated from its first microbatches");
  return fmt::format("{}", fmt::join(notes, "; "));
}

/// What the two busy columns are of, and what they are called: without two types there is no newer one.
struct BusyNames {
  const char *first, *second, *key;
};
BusyNames busy_names(const Cluster& cluster) {
  const auto same_type = [&](const Device& device) { return device.type == cluster.devices[0].type; };
  if (std::all_of(cluster.devices.begin(), cluster.devices.end(), same_type))
    return {"first half", "second half",
            "first half, second half: share of the step in which these devices compute"};
  return {"newer busy", "older busy",
          "newer busy, older busy: share of the step in which newer and older devices compute"};
}

void print_rows(const std::vector<CompareRow>& rows, const Cluster& cluster) {
  const BusyNames busy = busy_names(cluster);
  const bool priced = std::any_of(
      rows.begin(), rows.end(), [](const CompareRow& row) { return row.cost.tokens_per_unit().has_value(); });
  std::vector<std::string> header = {
      "seq",       "sequences", "strategy",     "tokens/s", rows[0].strategy + " = 1", "step", busy.first,
      busy.second, "moved",     "microbatches", "chunks",   "fullest device"};
  if (priced) header.push_back("tokens/money");
  const std::size_t figures = header.size();
  header.push_back("note");
  Table table(header);
  table.keys(3);
  for (const CompareRow& row : rows) {
    const std::string& why = row.infeasible.empty() ? row.over_memory : row.infeasible;
    std::vector<std::string> cells = {std::to_string(row.seq_len), std::to_string(row.sequences),
                                      row.strategy};
    if (!why.empty()) {
      cells.resize(figures, "-");
      cells.push_back("does not run: " + why);
      table.add_row(cells);
      continue;
    }
    cells.insert(
        cells.end(),
        {format_digits(row.tokens_per_s, 4),
         row.speed_over_first > 0 ? format_factor(row.speed_over_first) : "-", format_seconds(row.step_s),
         format_percent(row.utilization_attention), format_percent(row.utilization_expert),
         moved_by_layer(row.experts_moved), std::to_string(row.microbatches), std::to_string(row.chunks),
         format_bytes(*std::max_element(row.memory_bytes.begin(), row.memory_bytes.end()))});
    const std::optional<double> tokens = row.cost.tokens_per_unit();
    if (priced) cells.push_back(tokens ? format_count(*tokens) : "-");
    cells.push_back(note_of(row));
    table.add_row(cells);
  }
  const bool has_roles =
      std::any_of(rows.begin(), rows.end(), [](const CompareRow& row) { return row.roles.has_value(); });
  std::cout
      << table.str() << (has_roles ? std::string(kRolesMeaning) + "\n" : "")
      << fmt::format(
             "All figures are simulated. {} = 1: speed over the first row of that length; above 1 is "
             "faster.\n"
             "{}.\n"
             "moved: experts that each older device gives up, per layer. chunks: parts of a layer's rows.\n"
             "fullest device: its peak memory.{}\n",
             rows[0].strategy, busy.key,
             priced ? " tokens/money: for one unit of price_per_hour, by the used devices." : "");
}

Expected expected_of_all(const Cluster& cluster, bool links_assumed) {
  std::vector<DeviceId> all(static_cast<std::size_t>(cluster.num_devices()));
  std::iota(all.begin(), all.end(), 0);
  return expected_of(cluster, all, links_assumed);
}

/// Dtype in which gradients are kept and summed.
Dtype kept_gradients(const CompareOptions& options) {
  const Setting setting{
      .dtype = options.dtype, .grad_dtype = options.grad_dtype, .published = options.published};
  return grad_dtype_of(setting).value_or(Dtype::kFp32);
}

/// What holds for all rows.
std::string rules_text(const CompareOptions& options) {
  const std::string gradients = name_of(kept_gradients(options));
  const std::string sums = options.wire_reduce == WireReduce::kBf16 ? ", summed from bf16" : "";
  const std::string wire = options.wire ? fmt::format(", rows travel in {}", name_of(*options.wire)) : "";
  if (!options.published)
    return fmt::format(
        "Same rules for every row: {}{}, gradients in {}{}, a token travels once per device, or per node "
        "where that is faster.",
        name_of(options.dtype), wire, gradients, sums);
  return fmt::format(
      "As published: {}{}, gradients in {}{}, a row travels per expert copy, EP sends again for "
      "recomputation. "
      "The "
      "row best has these gradients, but its rows travel once per device.",
      name_of(options.dtype), wire, gradients, sums);
}

/// Else no row would have a plan.
void check_wire_reduce(const CompareOptions& options) {
  const Dtype kept = kept_gradients(options);
  if (options.wire_reduce == WireReduce::kBf16 && bytes_of(kept) == 2)
    fail<ConfigError>("--wire-reduce", "got bf16, but gradients are kept in {} and travel so: expected fp32",
                      name_of(kept));
}

int compare_predicted(const CompareArguments& options, const Job& job) {
  const std::vector<i64>& lengths = options.seq_lens;
  check_step_size(options.sequences, options.tokens, *std::min_element(lengths.begin(), lengths.end()));
  CompareOptions fixed;
  if (!options.strategies.empty()) fixed.strategies = options.strategies;
  fixed.asym_ea = !options.no_asym_ea;
  fixed.sequences = options.sequences;
  fixed.tokens = options.tokens;
  fixed.dtype = parse_dtype(options.dtype);
  if (!options.wire.empty()) fixed.wire = enum_from<Wire>(options.wire, "--wire");
  if (!options.grad_dtype.empty()) fixed.grad_dtype = parse_dtype(options.grad_dtype);
  fixed.wire_reduce = enum_from<WireReduce>(options.wire_reduce, "--wire-reduce");
  fixed.published = options.published;
  check_wire_reduce(fixed);
  fixed.limits = options.limits;
  const Cluster cluster = load_cluster(job.cluster);
  const std::vector<CompareRow> rows =
      compare_strategies(load_model(job.model), cluster, options.seq_lens, fixed);
  const bool any_runs = std::any_of(rows.begin(), rows.end(), [](const CompareRow& row) {
    return row.infeasible.empty() && row.over_memory.empty();
  });
  const std::string assumed = assumed_links(job.cluster);
  const std::string borrowed =
      borrowed_rates(cluster, std::vector<Dtype>(cluster.devices.size(), fixed.dtype));
  const Expected expected = expected_of_all(cluster, !assumed.empty());
  if (options.json) {
    Json json = to_json(rows);
    json["published"] = options.published;
    json["rate_factors"] = {expected.low, expected.high};
    json["constants"] = constants_json(expected);
    if (!assumed.empty()) json["assumed_links"] = assumed;
    if (!borrowed.empty()) json["borrowed_rates"] = borrowed;
    print_json(json);
    return any_runs ? 0 : 2;
  }
  if (const std::string taken = taken_by_default(job); !taken.empty()) std::cout << taken << "\n";
  if (!assumed.empty()) std::cout << assumed << ".\n";
  if (!borrowed.empty()) std::cout << borrowed << ".\n";
  std::cout << rules_text(fixed)
            << fmt::format(" Expect {:.2f} to {:.2f} times these tokens/s: {}.\n\n", expected.low,
                           expected.high, constants_text(expected));
  print_rows(rows, cluster);
  if (options.sequences == 0 && options.tokens == 0)
    std::cout
        << "sequences: as many as zebra has room for, at most 2^20 tokens or 8 a device; where zebra cannot "
           "run, the fewest\nthat all devices can share. --sequences asks for others.\n";
  if (std::any_of(rows.begin(), rows.end(), [](const CompareRow& row) { return row.strategy == "best"; }))
    std::cout << fmt::format(
        "best leaves no memory for uneven routing. `{} plan` leaves some for {:.3g} times the tokens: it may "
        "take\n"
        "another plan, and finds this one with --routing-margin 1 and the same --sequences.\n",
        program(), kRoutingMargin);
  if (!any_runs) std::cout << fmt::format("\nno strategy runs; `{} plan` names what is missing\n", program());
  return any_runs ? 0 : 2;
}

// ---- balancers on a routing trace ----

int compare_balancers(const CompareArguments& options, Overrides overrides) {
  BalanceRowsOptions balance = options.balance;
  const auto refuse = [](const std::string& key, const std::string& got, const std::string& expected) {
    fail<ConfigError>(key, "got {} with --balancers, expected {}", got, expected);
  };
  if (balance.balancers.empty()) balance.balancers = {"none", "lpt", "eplb", "relibra", "oracle"};
  if (options.routing.empty())
    refuse("--routing", "nothing", "a routing trace: FILE, FILE:STEP or FILE:A..B");
  if (options.strategies.size() > 1)
    refuse("--strategies", fmt::format("{} of them", options.strategies.size()),
           "one, under whose plan all are");
  const std::string strategy = options.strategies.empty() ? "" : options.strategies[0];
  balance.tuned = strategy == "best";
  if (!balance.tuned && !strategy.empty()) overrides.emplace_back("strategy", strategy);
  const auto [trace, steps] = trace_and_steps(options.routing);
  if (!std::filesystem::exists(trace))
    refuse("--routing", options.routing, "a routing trace that is there: FILE, FILE:STEP or FILE:A..B");
  balance.trace = trace;
  balance.steps = steps;
  balance.job = options.job;
  balance.json = options.json;
  for (const auto& [key, value] : overrides) {
    if (key == "output") balance.output = value;
  }
  return run_balance_rows(balance, std::move(overrides));
}

// ---- a job, predicted and executed ----

/// A strategy that is named twice is compared once.
void keep_first_of_each(std::vector<std::string>& names) {
  std::vector<std::string> kept;
  for (std::string& name : names)
    if (std::find(kept.begin(), kept.end(), name) == kept.end()) kept.push_back(std::move(name));
  names = std::move(kept);
}

/// Predictions for GPUs tune each strategy on a model and a cluster, and take nothing else of a job.
void check_predicted(const CompareArguments& options, const Overrides& overrides) {
  if (!options.routing.empty())
    fail<ConfigError>("--routing", "got {} with --seq, which assumes even routing: it is for --balancers",
                      options.routing);
  for (const auto& [key, value] : overrides) {
    if (key != "model" && key != "cluster")
      fail<ConfigError>("--" + key,
                        "got {} with --seq, where each strategy is tuned and no job is run: leave it out",
                        value);
  }
}

void refuse_baselines(const std::vector<std::string>& strategies) {
  for (const std::string& strategy : strategies) {
    for (const Baseline& baseline : baselines()) {
      if (strategy == baseline.name)
        fail<ConfigError>("--strategy",
                          "got {}, which is predicted and not trained: expected --seq with it, or for the "
                          "best plan `{} plan` and `{} train --plan`",
                          strategy, program(), program());
    }
  }
}

int compare(CompareArguments options, const Overrides& overrides) {
  end_on_interrupt();
  keep_first_of_each(options.strategies);
  if (!options.seq_lens.empty() && options.balance.balancers.empty()) check_predicted(options, overrides);
  if (!options.balance.balancers.empty() || !options.routing.empty())
    return compare_balancers(options, overrides);
  Job job = options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides);
  if (!options.seq_lens.empty()) return compare_predicted(options, job);
  refuse_baselines(options.strategies);
  const std::vector<std::string> strategies =
      options.strategies.empty() ? usual_strategies(load_model(job.model)) : options.strategies;
  const std::string chosen = set_gpu_defaults(job, strategies, Processes());
  if (!chosen.empty()) std::cerr << chosen << std::endl;
  if (!gives(overrides, "output") && holds_training(job.output)) {
    std::cerr << fmt::format("{0} holds the results of a training: writes to {0}-compare", job.output)
              << std::endl;
    job.output += "-compare";
  }
  const OutputLock lock(job.output);
  if (!lock.note().empty()) std::cerr << lock.note() << std::endl;
  stop_on_interrupt();
  ProgressOptions style;
  if (options.json) style.style = ProgressStyle::kNone;
  JobOfSteps of_steps = with_steps(std::move(job));
  job = std::move(of_steps.job);
  const i64 steps = job.train.steps + options.timed_steps;
  Progress progress("comparing", static_cast<i64>(strategies.size()) * steps, style);
  i64 done = 0;
  const auto on_step = [&](const std::string& strategy, const StepRecord& record) {
    progress.update(++done, fmt::format("{} step {} loss {:.4f}", strategy, record.step, record.loss));
  };
  const std::vector<StrategyRun> runs =
      compare_job(job, strategies,
                  {.execute = !options.simulate_only,
                   .timed_steps = options.timed_steps,
                   .on_left_out = [](const std::string& text) { std::cerr << text << std::endl; },
                   .data = of_steps.data},
                  on_step);
  progress.finish();
  const std::string moved = lock.lost();
  if (!moved.empty()) std::cerr << moved << std::endl;
  const std::filesystem::path report =
      write_results(job, load_model(job.model), load_cluster(job.cluster), runs);
  if (options.json) {
    Json rows = Json::array();
    for (const StrategyRun& run : runs) rows.push_back(to_json(run, job));
    print_json({{"rows", rows}});
  } else {
    if (const std::string taken = taken_by_default(job); !taken.empty()) std::cout << taken << "\n";
    std::cout << strategy_table(runs) << "report: " << report.string() << "\n";
  }
  const int code = code_of_end(runs, steps, "", Processes());
  return code == 0 && !moved.empty() ? 1 : code;
}

/// "ep-ideal (...), tp (...)"
std::string baselines_help() {
  std::string text;
  for (const Baseline& baseline : baselines())
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", baseline.name, baseline.summary);
  return text;
}

std::string strategies_help() {
  return fmt::format(
      "strategies, separated by commas: {} [default: zebra,ep,ep-overlap,dist-ep,single; with --seq "
      "zebra,ep,ep-ideal,dist-ep,pp-ep,best]",
      fmt::join(strategy_names(), ", "));
}

}  // namespace

std::function<int()> make_compare(Flags& flags) {
  const auto options = std::make_shared<CompareArguments>();
  flags.add_option("job", options->job, "job file (YAML); every key of it is also a flag: --train.steps 5");
  flags.add_option("--strategies,--strategy", options->strategies, strategies_help())->delimiter(',');
  flags.add_option("--timed-steps", options->timed_steps, "steps under the paced clock after training")
      ->capture_default_str()
      ->range(at_least(0));
  flags
      .add_option(
          "--seq", options->seq_lens,
          "predict GPU training of --model on --cluster at these sequence lengths, each strategy tuned; "
          "--strategies also takes " +
              baselines_help())
      ->delimiter(',')
      ->range(at_least(1));
  flags
      .add_option("--sequences", options->sequences,
                  "with --seq: sequences of a step [default: the most that zebra can hold, of at most 2^20 "
                  "tokens or 8 a device]")
      ->range(at_least(1));
  flags.add_option("--tokens", options->tokens, "with --seq: tokens of a step, instead of --sequences")
      ->range(at_least(1));
  flags.add_option("--dtype", options->dtype, "with --seq: compute and transfers: fp16, bf16 or fp32")
      ->capture_default_str();
  add_wire_options(flags, "with --seq: ", options->wire, options->wire_reduce);
  flags
      .add_option("--idle", options->limits.idle,
                  "with --seq: devices that must stay out, separated by commas")
      ->delimiter(',')
      ->range(at_least(0));
  flags.add_option("--max-microbatches", options->limits.max_microbatches, "with --seq: bound of best")
      ->range(at_least(1));
  flags.add_option("--grad-dtype", options->grad_dtype,
                   "with --seq: of gradients, kept and reduced: fp32, or that of --dtype [default: fp32]");
  flags.add_flag(
      "--published", options->published,
      "with --seq: the strategies as their authors measured them: 16-bit gradients, a row per expert "
      "copy, EP sends again for recomputation");
  flags.add_flag("--no-asym-ea", options->no_asym_ea, "with --seq: zebra moves no experts");
  flags
      .add_option(
          "--balancers", options->balance.balancers,
          "balancers on the routing trace --routing instead, each simulated under the plan of one strategy "
          "(--strategy NAME, or best: the tuned one): none, lpt, eplb, lplb, relibra, locality, oracle, and "
          "with a + another split, as none+guests; with --output DIR also as balance.html there")
      ->delimiter(',');
  flags.add_option("--routing", options->routing,
                   "with --balancers: FILE (all its steps), FILE:STEP or FILE:A..B, each step by itself");
  flags.add_option("--plan", options->balance.plan,
                   "with --balancers: a plan.json instead of a strategy's plan");
  add_balance_options(flags, options->balance);
  flags.add_flag("--simulate-only", options->simulate_only, "predict and do not train");
  flags.add_flag("--json", options->json, "print rows as JSON");
  allow_overrides(flags);
  return [options, flags] { return compare(*options, overrides_of(flags)); };
}

}  // namespace hetermoe
