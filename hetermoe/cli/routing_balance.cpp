#include <iostream>
#include <memory>

#include "hetermoe/base/words.h"
#include "hetermoe/cli/routing.h"
#include "hetermoe/planner/balance/trace_balance.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/job.h"

namespace hetermoe {
namespace {

struct Options {
  std::string trace, job, plan, steps, knows = "history", topology;
  std::vector<std::string> balancers = {"none", "lpt", "eplb"};
  i64 replicas = 0, guests = 2, guest_cost = -1;
  bool json = false;
};

struct Row {
  std::string balancer;
  TraceBalanceResult result;
};

/// Simulated over the first row, which is `none` unless asked otherwise.
double over_first(const std::vector<Row>& rows, const Row& row) {
  return row.result.step / rows[0].result.step;
}

/// The device that has least room left.
struct Fullest {
  std::string device;
  Bytes used = 0, capacity = 0;
};
Fullest fullest_of(const TraceBalanceResult& result, const Cluster& cluster) {
  Fullest fullest;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const Bytes used = result.memory[static_cast<std::size_t>(d)].use.total(),
                capacity = cluster.type_of(d).memory_bytes();
    if (fullest.device.empty() || used / capacity > fullest.used / fullest.capacity)
      fullest = {cluster.device_name(d), used, capacity};
  }
  return fullest;
}

void print(const std::vector<Row>& rows, const Cluster& cluster) {
  Table table({"balancer", "time ratio", "worst", "max/mean", "node rows", "owners", "guests", "moved",
               "simulated step", "over " + rows[0].balancer, "fullest device", ""});
  for (const Row& row : rows) {
    const TraceBalanceResult& r = row.result;
    const Fullest fullest = fullest_of(r, cluster);
    table.add_row({row.balancer, fmt::format("{:.3f}", r.time_ratio.mean),
                   fmt::format("{:.2f}", r.time_ratio.high), fmt::format("{:.3f}", r.rank_ratio.mean),
                   fmt::format("{:.3f}", r.node_rows), format_digits(r.owners, 4), format_digits(r.guests, 3),
                   fmt::format("{:.2f}", r.moved), format_seconds(r.step),
                   fmt::format("{:.3f}", over_first(rows, row)),
                   format_bytes(fullest.used) + " of " + format_bytes(fullest.capacity),
                   fullest.used > fullest.capacity ? "does not fit" : ""});
  }
  std::cout << table.str();
  std::cout
      << "time ratio: slowest owner of an exchange over a perfect division of its copies. owners: of a "
         "layer's experts.\nguests: lent in an exchange. moved: owners per layer that an expert had not in "
         "the step before. Moving is not priced. Times are simulated.\n";
}

Json json_of(const std::vector<Row>& rows, const Cluster& cluster) {
  Json json = Json::array();
  for (const Row& row : rows) {
    const TraceBalanceResult& r = row.result;
    const Fullest fullest = fullest_of(r, cluster);
    json.push_back({{"balancer", row.balancer},
                    {"source", "simulated"},
                    {"time_ratio", r.time_ratio.mean},
                    {"worst_time_ratio", r.time_ratio.high},
                    {"rank_max_over_mean", r.rank_ratio.mean},
                    {"node_rows_per_token", r.node_rows},
                    {"owners", r.owners},
                    {"guests", r.guests},
                    {"moved", r.moved},
                    {"plan_s", r.plan},
                    {"step_s", r.step},
                    {"over_first", over_first(rows, row)},
                    {"fullest_device", fullest.device},
                    {"memory_bytes", fullest.used},
                    {"fits", fullest.used <= fullest.capacity}});
  }
  return {{"rows", json}};
}

int run(const Options& options, Overrides overrides) {
  const Knows knows = enum_from<Knows>(options.knows, "--knows");
  for (const std::string& name : options.balancers) {
    balancer_choice(name);
  }
  if (!options.plan.empty()) overrides.emplace_back("plan.file", options.plan);
  const Job job = options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides);
  const ModelConfig model = load_model(job.model);
  const Cluster cluster = load_cluster(job.cluster);
  const RoutingTrace trace = open_trace(options.trace);
  check_trace_model(trace.header(), model, options.trace);
  const Plan plan = emulated_plan(job, make_job_plan(job, model, cluster));
  const TraceBalance balance(model, cluster, plan, step_options(job, model), load_profiles(cluster));
  const StepRange range = parse_steps(options.steps, "--steps");
  std::vector<TraceRouting> steps;
  for (const i64 step : trace.steps()) {
    if (step < range.first || step > range.last) continue;
    steps.emplace_back(trace.header(), trace.read(step), model, options.trace);
    steps.back().check_plan(plan);
  }
  std::vector<Row> rows;
  for (const std::string& name : options.balancers)
    rows.push_back(
        {name,
         balance.run({.balancer = name,
                      .knows = knows,
                      .replicas = options.replicas,
                      .guests = options.guests,
                      .guest_cost = options.guest_cost < 0 ? std::nullopt : std::optional(options.guest_cost),
                      .topology = options.topology},
                     steps)});
  if (options.json) {
    print_json(json_of(rows, cluster));
    return 0;
  }
  std::cout << fmt::format("{} under {} on {}, {}, owners chosen by {}\n\n", options.trace, plan.strategy,
                           cluster.name, counted(steps.size(), "step"),
                           knows == Knows::kHistory ? "the steps before" : "the step's own choices");
  print(rows, cluster);
  return 0;
}

}  // namespace

std::function<int()> make_routing_balance(Flags& flags) {
  const auto options = std::make_shared<Options>();
  flags
      .add_option("trace", options->trace,
                  "a routing trace with choices: a file, or a folder with one for each rank")
      ->required();
  flags.add_option("job", options->job,
                   "a job whose plan says which devices own experts; every key of it is also a flag");
  flags.add_option("--plan", options->plan, "a plan.json instead of what the job's strategy makes");
  flags
      .add_option("--balancers", options->balancers,
                  "rows of the table: none (the plan's own owners), lpt, eplb, lplb, relibra, oracle (a "
                  "bound: copies "
                  "divided at will); +shares, +exact or +guests say how copies are divided within a step, as "
                  "none+guests or eplb+exact [default: none,lpt,eplb]")
      ->delimiter(',');
  flags
      .add_option("--replicas", options->replicas,
                  "copies of experts in a layer beyond one of each (eplb, lplb)")
      ->capture_default_str()
      ->range(between(0, 1e6));
  flags
      .add_option("--guests", options->guests,
                  "slots for guests on each device: copies of weights for one exchange (relibra, +guests)")
      ->capture_default_str()
      ->range(between(0, 1e6));
  flags
      .add_option(
          "--guest-cost", options->guest_cost,
          "copies that a guest must take off the latest device; -1 = as many as it costs by the cost model")
      ->capture_default_str()
      ->range(between(-1, 1e9));
  flags.add_option(
      "--topology", options->topology,
      "who copies from whom with lplb: cube, hypercube, ring, torus, torus:MxN, or columns as "
      "[[1,2,3,0]] [default: torus where the number of owners has two divisors above 2, else ring]");
  flags
      .add_option("--knows", options->knows,
                  "what a balancer goes by: history (the steps before) or foresight (the "
                  "step's own choices)")
      ->capture_default_str();
  flags.add_option("--steps", options->steps, "steps of the trace, as 10..20 [default: all]");
  flags.add_flag("--json", options->json, "print the table as JSON");
  allow_overrides(flags);
  return [options, flags] { return run(*options, overrides_of(flags)); };
}

}  // namespace hetermoe
