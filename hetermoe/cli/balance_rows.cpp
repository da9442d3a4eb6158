#include "hetermoe/cli/balance_rows.h"

#include <algorithm>
#include <iostream>

#include "hetermoe/balance/locality.h"
#include "hetermoe/balance/trace_balance.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cli/routing.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/planner.h"
#include "hetermoe/report/balance_page.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/job/job.h"

namespace hetermoe {
namespace {

struct Row {
  std::string balancer;
  TraceBalanceResult result;
};

/// What the rows are about.
struct Case {
  ModelConfig model;
  Cluster cluster;
  Plan plan;
  RoutingTrace trace;
  Knows knows = Knows::kHistory;
  std::vector<i64> steps = {};  ///< numbers of those that are looked at

  TraceRouting routing(std::size_t step) const {
    return TraceRouting(trace.header(), trace.read(steps[step]), model, trace.path().string());
  }
};

/// A step and what is moved before it: the weights of the moved experts are not there sooner.
Seconds step_with_moves(const Row& row) { return row.result.step + row.result.move; }

/// Simulated, moves included, over the first row, which is `none` unless asked otherwise.
double over_first(const std::vector<Row>& rows, const Row& row) {
  return step_with_moves(row) / step_with_moves(rows[0]);
}

/// The device that has least room left.
struct Fullest {
  std::string device;
  Bytes used = 0, capacity = 0;
};
Fullest fullest_of(const TraceBalanceResult& result, const Cluster& cluster) {
  Fullest fullest;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const Bytes used = result.memory[idx(d)].use.total(), capacity = usable_memory(cluster.type_of(d));
    if (fullest.device.empty() || used / capacity > fullest.used / fullest.capacity)
      fullest = {cluster.device_name(d), used, capacity};
  }
  return fullest;
}

/// As simulate tells it; empty = all devices have room.
std::string overfilled_under(const TraceBalanceResult& result, const Cluster& cluster) {
  std::vector<Bytes> memory;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) memory.push_back(result.memory[idx(d)].use.total());
  return overfilled_device(memory, cluster);
}

/// The last line where the plan fits under no balancer, and the exit code: 1 then, else 0.
int say_whether_any_fits(const std::vector<Row>& rows, const Cluster& cluster, bool json) {
  for (const Row& row : rows)
    if (overfilled_under(row.result, cluster).empty()) return 0;
  if (!json) std::cout << "\nthe plan does not fit: " << overfilled_under(rows[0].result, cluster) << "\n";
  return 1;
}

std::vector<std::string> header_of_rows(const std::vector<Row>& rows) {
  return {"balancer",
          "time ratio",
          "worst",
          "count ratio",
          "node rows",
          "owners",
          "guests",
          "moved a step",
          "moving takes",
          "step and moves",
          "over " + rows[0].balancer,
          "kept",
          "fullest device",
          ""};
}

std::vector<std::string> cells_of(const std::vector<Row>& rows, const Row& row, const Cluster& cluster) {
  const TraceBalanceResult& r = row.result;
  const Fullest fullest = fullest_of(r, cluster);
  return {row.balancer,
          fmt::format("{:.3f}", r.time_ratio.mean),
          fmt::format("{:.2f}", r.time_ratio.high),
          fmt::format("{:.3f}", r.rank_ratio.mean),
          fmt::format("{:.3f}", r.node_rows),
          format_digits(r.owners, 4),
          format_digits(r.guests, 3),
          r.moved_bytes > 0 ? format_bytes(r.moved_bytes) : "-",
          r.move > 0 ? format_seconds(r.move) : "-",
          format_seconds(step_with_moves(row)),
          fmt::format("{:.3f}", over_first(rows, row)),
          r.kept > 0 ? fmt::format("{} of {}", r.kept, r.steps.size()) : "-",
          format_bytes(fullest.used) + " of " + format_bytes(fullest.capacity),
          overfilled_under(r, cluster).empty() ? "" : "does not fit"};
}

/// What the columns mean, on the page and in the terminal.
std::vector<std::string> keys_of_rows(const std::vector<Row>& rows) {
  return {"time ratio: the slowest owner of an exchange over a perfect division by speed; 1 is perfect.",
          "count ratio: copies of the fullest owner over the mean.",
          "node rows: rows that travel between nodes, per token and layer.",
          "owners: devices with experts of a layer, copies counted too. guests: experts lent in an exchange.",
          "moved a step: weights and moments that change their device. moving takes: the time of that.",
          fmt::format(
              "step and moves: the last step and the moves before it. over {0}: that over the one of {0}.",
              rows[0].balancer),
          "kept: steps in which the plan's own owners stay, as they are as fast without moves.",
          "fullest device: memory of the device with least room, of what tensors may use there."};
}

void print_rows(const std::vector<Row>& rows, const Cluster& cluster) {
  Table table(header_of_rows(rows));
  for (const Row& row : rows) table.add_row(cells_of(rows, row, cluster));
  std::cout << table.str() << "Times are simulated.\n";
  for (const std::string& key : keys_of_rows(rows)) std::cout << key << "\n";
  for (const Row& row : rows) {
    const Lent& lent = row.result.lent;
    if (lent.seconds == 0) continue;
    std::cout << fmt::format(
        "{}: {} of weights lent and {} of gradients sent home in the last step, {} on the wire, "
        "for {} of which no other work waited\n",
        row.balancer, format_bytes(lent.weights), format_bytes(lent.gradients), format_seconds(lent.seconds),
        format_percent(lent.hidden_share()));
  }
}

Json json_of_rows(const std::vector<Row>& rows, const Cluster& cluster) {
  Json json = Json::array();
  for (const Row& row : rows) {
    const TraceBalanceResult& r = row.result;
    const Fullest fullest = fullest_of(r, cluster);
    json.push_back({{"balancer", row.balancer},
                    {"source", "simulated"},
                    {"time_ratio", r.time_ratio.mean},
                    {"worst_time_ratio", r.time_ratio.high},
                    {"time_ratio_of_step", r.time_ratio_of_step},
                    {"bound_of_nodes", r.node_ratio.mean},
                    {"steps", r.steps},
                    {"rank_max_over_mean", r.rank_ratio.mean},
                    {"node_rows_per_token", r.node_rows},
                    {"owners", r.owners},
                    {"guests", r.guests},
                    {"moved", r.moved},
                    {"moved_bytes", r.moved_bytes},
                    {"move_s", r.move},
                    {"kept_steps", r.kept},
                    {"lent_bytes", r.lent.weights},
                    {"settled_bytes", r.lent.gradients},
                    {"lent_s", r.lent.seconds},
                    {"lent_hidden_share", r.lent.hidden_share()},
                    {"plan_s", r.plan},
                    {"step_s", r.step},
                    {"step_and_moves_s", step_with_moves(row)},
                    {"exchanges_s", r.exchanges},
                    {"over_first", over_first(rows, row)},
                    {"fullest_device", fullest.device},
                    {"memory_bytes", fullest.used},
                    {"fits", overfilled_under(r, cluster).empty()}});
  }
  return {{"rows", json}};
}

double worst_time(const DeviceLoads& loads) {
  const std::vector<double> times = device_times(loads);
  return *std::max_element(times.begin(), times.end());
}

/// A layer of the first plan group under all balancers that give devices particular experts.
LayerMaps maps_of(const std::vector<Row>& rows, std::size_t at, const Cluster& cluster) {
  LayerMaps out;
  for (const Row& row : rows) {
    if (row.result.loads.empty()) continue;
    const DeviceLoads& loads = row.result.loads[at];
    out.layer = loads.layer;
    DeviceMap map{.title = row.balancer,
                  .devices = {},
                  .copies = loads.copies,
                  .times = device_times(loads),
                  .lent = loads.lent};
    for (const DeviceId device : loads.devices) map.devices.push_back(cluster.device_name(device));
    out.maps.push_back(std::move(map));
  }
  return out;
}

BalancePage page_of(const std::vector<Row>& rows, const Case& c, const std::string& trace) {
  constexpr std::size_t kMostLayers = 8;
  BalancePage page;
  page.title = fmt::format("Balancers: {} on {}", c.model.name, c.cluster.name);
  page.facts = {
      {"trace", trace},
      {"plan", c.plan.strategy},
      {"steps", std::to_string(rows[0].result.steps.size())},
      {"owners chosen by", c.knows == Knows::kHistory ? "the steps before" : "the step's own choices"}};
  PageTable table{"Balancers", header_of_rows(rows), {}, keys_of_rows(rows)};
  page.curves = {
      "Time ratio of each step, mean over layers and microbatches", "step", "time ratio", {}, 1100, 300};
  for (const Row& row : rows) {
    const TraceBalanceResult& r = row.result;
    table.rows.push_back(cells_of(rows, row, c.cluster));
    LossSeries series{row.balancer, {}, {}};
    for (std::size_t s = 0; s < r.steps.size(); ++s)
      series.train.push_back({real(r.steps[s]), r.time_ratio_of_step[s]});
    page.curves.runs.push_back(std::move(series));
    if (r.lent.seconds > 0)
      page.lent.push_back(
          {row.balancer, r.lent.weights, r.lent.gradients, r.lent.seconds, r.lent.hidden_share()});
  }
  page.tables = {std::move(table)};
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < rows[0].result.loads.size(); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return worst_time(rows[0].result.loads[a]) > worst_time(rows[0].result.loads[b]);
  });
  for (std::size_t i = 0; i < std::min(order.size(), kMostLayers); ++i)
    page.layers.push_back(maps_of(rows, order[i], c.cluster));
  if (order.size() > kMostLayers)
    page.maps_text += fmt::format(" Drawn are the {} of {} layers whose slowest device is latest under {}.",
                                  kMostLayers, order.size(), rows[0].balancer);
  return page;
}

Plan tuned_plan(const Job& job, const ModelConfig& model, const Cluster& cluster) {
  PlanRequest request;
  request.model = model;
  request.cluster = cluster;
  request.seq_len = job.train.seq_len;
  request.sequences = job.train.sequences;
  const PlanResult result = find_plan(request);
  if (!result.feasible())
    fail<InputError>("plan", "no plan of {} on {} fits: {}. {}", model.name, cluster.name, result.infeasible,
                     result.advice);
  return result.best().plan;
}

/// Reads every step once, so that a step that does not fit is told before any balancer works.
Case case_of(const BalanceRowsOptions& options, const Job& job) {
  Case c{.model = load_model(job.model),
         .cluster = load_cluster(job.cluster),
         .plan = {},
         .trace = open_trace(options.trace)};
  check_model(c.trace.header(), c.model, options.trace);
  c.plan = emulated_plan(
      job, options.tuned ? tuned_plan(job, c.model, c.cluster) : make_job_plan(job, c.model, c.cluster));
  const StepRange range = parse_steps(options.steps, "--steps");
  for (const i64 step : c.trace.steps()) {
    if (step < range.first || step > range.last) continue;
    c.steps.push_back(step);
    c.routing(c.steps.size() - 1).check_plan(c.plan);
  }
  if (c.steps.empty())
    fail<InputError>(options.trace, "has no step {}: got steps {} to {}", options.steps,
                     c.trace.steps().front(), c.trace.steps().back());
  tell_unused(c.routing(0), c.plan);
  const char* usual = c.steps.size() > 1 ? "history" : "foresight";
  c.knows = enum_from<Knows>(options.knows.empty() ? usual : options.knows, "--knows");
  return c;
}

/// One that cannot run here is left out by name, as `compare` leaves out strategies. Throws its error where
/// none can.
std::vector<Row> rows_of(const BalanceRowsOptions& options, const Job& job, const Case& c) {
  const TraceBalance balance(c.model, c.cluster, c.plan, step_options(job, c.model),
                             load_profiles(c.cluster));
  const RecordedSteps steps(c.steps.size(), [&c](std::size_t step) { return c.routing(step); });
  TraceBalanceOptions how{.balancer = {},
                          .parts = options.parts,
                          .knows = c.knows,
                          .replicas = options.replicas,
                          .guests = options.guests,
                          .topology = options.topology,
                          .guard = !options.no_guard,
                          .groups = options.groups,
                          .load_cap = options.load_cap,
                          .padded = options.padded};
  how.guest_cost = options.guest_cost < 0 ? std::nullopt : std::optional(options.guest_cost);
  std::vector<Row> rows;
  std::exception_ptr first_fault;
  std::string left_out;
  for (const std::string& name : options.balancers) {
    how.balancer = name;
    try {
      rows.push_back({name, balance.run(how, steps)});
    } catch (const Error& error) {
      if (!first_fault) first_fault = std::current_exception();
      left_out += fmt::format("{} does not run: {}\n", name, error.what());
    }
  }
  if (rows.empty()) std::rethrow_exception(first_fault);
  std::cerr << left_out << std::flush;
  return rows;
}

}  // namespace

int run_balance_rows(const BalanceRowsOptions& options, Overrides overrides) {
  for (const std::string& name : options.balancers) balancer_choice(name, options.parts);
  check_load_cap("--load-cap", options.load_cap);
  if (!options.plan.empty()) overrides.emplace_back("plan.file", options.plan);
  if (!options.output.empty()) check_output_folder(options.output);
  if (options.job.empty() && overrides.empty())
    fail<ConfigError>(
        "job",
        "got none, expected the job under whose plan devices own experts, or its keys: --model, "
        "--cluster, --strategy, --train.sequences and so on");
  const Job job = options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides);
  const Case c = case_of(options, job);
  const std::vector<Row> rows = rows_of(options, job, c);
  const std::filesystem::path file = std::filesystem::path(options.output) / "balance.html";
  if (!options.output.empty()) write_text(file, balance_page(page_of(rows, c, options.trace)));
  if (options.json) {
    print_json(json_of_rows(rows, c.cluster));
    return say_whether_any_fits(rows, c.cluster, true);
  }
  std::cout << fmt::format("{} under {} on {}, {}, owners chosen by {}\n\n", options.trace, c.plan.strategy,
                           c.cluster.name, counted(rows[0].result.steps.size(), "step"),
                           c.knows == Knows::kHistory ? "the steps before" : "the step's own choices");
  print_rows(rows, c.cluster);
  if (!options.output.empty()) std::cout << "wrote " << file.string() << "\n";
  return say_whether_any_fits(rows, c.cluster, false);
}

void add_balance_options(Flags& flags, BalanceRowsOptions& options) {
  flags
      .add_option("--replicas", options.replicas,
                  "copies of experts in a layer beyond one of each (eplb, lplb)")
      ->capture_default_str()
      ->range(between(0, 1e6));
  flags
      .add_option("--guests", options.guests,
                  "slots for guests on each device: copies of weights for one exchange (relibra, +guests)")
      ->capture_default_str()
      ->range(between(0, 1e6));
  flags
      .add_option(
          "--guest-cost", options.guest_cost,
          "copies that a guest must take off the latest device; -1 = as many as it costs by the cost model")
      ->capture_default_str()
      ->range(between(-1, 1e9));
  flags
      .add_option("--parts", options.parts,
                  "of relibra: reorder (owners), samples (the order of sequences), guests, split (copies "
                  "divided by the counts of an exchange)")
      ->capture_default_str();
  flags.add_option(
      "--topology", options.topology,
      "who copies from whom with lplb: cube, hypercube, ring, torus, torus:MxN, or columns as "
      "[[1,2,3,0]] [default: torus where the number of owners has two divisors above 2, else ring]");
  flags.add_option(
      "--knows", options.knows,
      "what a balancer goes by: history (the steps before) or foresight (the step's own choices) "
      "[default: history where there are several steps]");
  flags
      .add_option(
          "--groups", options.groups,
          "where sequences are ordered (locality, relibra): devices that share fast links: node, device, or "
          "lists as [[0,1],[2,3]]")
      ->capture_default_str();
  flags
      .add_option("--load-cap", options.load_cap,
                  "with locality: how much longer than a perfect division a device group may take, 0 = any")
      ->capture_default_str();
  flags.add_flag(
      "--padded", options.padded,
      "simulate as with kernels of fixed sizes, where every device sends as many rows to other nodes as "
      "the one that sends most");
  flags.add_flag("--no-guard", options.no_guard,
                 "take what a balancer chooses also where the simulated step is no shorter for it");
}

}  // namespace hetermoe
