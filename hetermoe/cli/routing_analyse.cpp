#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>

#include "hetermoe/balance/trace_balance.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cli/routing.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/report/html.h"
#include "hetermoe/report/table.h"
#include "hetermoe/routing/analysis.h"
#include "hetermoe/routing/plan_figures.h"
#include "hetermoe/routing/tiles.h"
#include "hetermoe/train/job/job.h"

namespace hetermoe {
namespace {

struct RoutingAnalyseArguments {
  std::string trace, job, plan, against, steps, output;
  std::vector<std::string> windows = {"step"};
  std::vector<i64> degrees;
  i64 tile = 0, sources = 8;
  bool json = false;
};

/// What the routing costs under the plan of a job.
struct UnderPlan {
  std::string title;
  PlanFigures figures;
  FigureRange history_cost;  ///< of the steps
};

struct Analysis {
  std::vector<TraceFigures> windows;  ///< as asked for
  std::optional<UnderPlan> plan;
  std::optional<TileAnalyser> tiles;
};

/// 1, 2, 4, ... up to 32 and the number of experts.
std::vector<i64> usual_degrees(i64 num_experts) {
  std::vector<i64> out;
  for (i64 degree = 1; degree <= std::min<i64>(32, num_experts); degree *= 2) out.push_back(degree);
  return out;
}

/// The steps of a trace through all windows, one step in memory at a time.
std::vector<TraceFigures> analyse(const RoutingTrace& trace, const RoutingAnalyseArguments& options,
                                  const std::function<void(TraceStep)>& on_step = {}) {
  const StepRange range = parse_steps(options.steps, "--steps");
  std::vector<TraceAnalyser> analysers;
  const std::vector<i64> degrees =
      options.degrees.empty() ? usual_degrees(trace.header().num_experts) : options.degrees;
  for (const std::string& window : options.windows)
    analysers.emplace_back(trace.header(), window_from(window, "--window"), degrees);
  for (const i64 number : trace.steps()) {
    if (number < range.first || number > range.last) continue;
    TraceStep step = trace.read(number);
    for (TraceAnalyser& analyser : analysers) analyser.add(step);
    if (on_step) on_step(std::move(step));
  }
  std::vector<TraceFigures> out;
  for (TraceAnalyser& analyser : analysers) out.push_back(analyser.finish(trace.path().string()));
  return out;
}

TileAnalyser analyse_tiles(const RoutingTrace& trace, const RoutingAnalyseArguments& options) {
  const StepRange range = parse_steps(options.steps, "--steps");
  TileAnalyser tiles(trace.header(), options.tile, options.sources);
  for (const i64 number : trace.steps())
    if (number >= range.first && number <= range.last) tiles.add(trace.read(number));
  return tiles;
}

Analysis analyse_under(const RoutingTrace& trace, const RoutingAnalyseArguments& options, const Job& job) {
  const ModelConfig model = load_model(job.model);
  const Cluster cluster = load_cluster(job.cluster);
  check_model(trace.header(), model, options.trace);
  const Plan plan = emulated_plan(job, make_job_plan(job, model, cluster));
  const Placement placement(plan, model, step_options(job, model));
  const std::unique_ptr<CostModel> cost = make_cost(model, cluster, plan, load_profiles(cluster));
  const TraceBalance balance(model, cluster, plan, step_options(job, model), load_profiles(cluster));
  FigureRange history_cost;
  PlanAnalyser under(*cost, placement, model, cluster);
  Analysis out;
  bool told = false;
  out.windows = analyse(trace, options, [&](TraceStep step) {
    const FigureRange costs = balance.history_cost(step);
    if (costs.count > 0) history_cost.add(costs.mean);
    const TraceRouting routing(trace.header(), std::move(step), model, options.trace);
    if (!std::exchange(told, true)) tell_unused(routing, plan);
    under.add(routing);
  });
  out.plan = UnderPlan{fmt::format("{} on {}", plan.strategy, cluster.name), under.finish(), history_cost};
  return out;
}

std::string range_cell(const FigureRange& range, int digits = 3) {
  return range.count == 0 ? "-" : fmt::format("{:.{}f}", range.mean, digits);
}

std::vector<std::string> figure_cells(const FigureRange& g, const FigureRange& floor,
                                      const FigureRange& excess, const FigureRange& straggler) {
  const bool noise = g.mean < kNoiseFactor * floor.mean;
  return {range_cell(g, 4), range_cell(floor, 4), noise ? "noise" : range_cell(excess, 4),
          range_cell(straggler, 2)};
}

/// The figures of each layer, and their means; under a plan also those of its owners.
PageTable layers_table(const TraceFigures& figures, const std::optional<UnderPlan>& plan) {
  PageTable table{"Layer by layer", {"layer", "Gini", "noise floor", "beyond noise", "max/mean"}, {}};
  for (const i64 degree : figures.degrees) table.header.push_back(counted(degree, "rank"));
  table.header.push_back("drift");
  if (plan) table.header.insert(table.header.end(), {"plan's ranks", "time ratio"});
  const auto add = [&](const std::string& name, std::vector<std::string> cells,
                       const std::function<FigureRange(std::size_t)>& ratio, const FigureRange& drift,
                       const FigureRange& ranks, const FigureRange& time) {
    cells.insert(cells.begin(), name);
    for (std::size_t d = 0; d < figures.degrees.size(); ++d) cells.push_back(range_cell(ratio(d), 2));
    cells.push_back(range_cell(drift, 2));
    if (plan) cells.insert(cells.end(), {range_cell(ranks, 2), range_cell(time, 2)});
    table.rows.push_back(cells);
  };
  for (std::size_t l = 0; l < figures.layers.size(); ++l) {
    const LayerFigures& f = figures.layers[l];
    const PlanLayerFigures under = plan ? plan->figures.layers[l] : PlanLayerFigures{};
    add(
        std::to_string(f.layer), figure_cells(f.gini, f.noise, f.excess, f.straggler),
        [&](std::size_t d) { return f.rank_ratio[d]; }, f.drift, under.rank_ratio, under.time_ratio);
  }
  const auto over = [&](FigureRange LayerFigures::*figure) { return figures.over_layers(figure); };
  const auto under = [&](FigureRange PlanLayerFigures::*figure) {
    return plan ? plan->figures.over_layers(figure) : FigureRange{};
  };
  add(
      "mean",
      figure_cells(over(&LayerFigures::gini), over(&LayerFigures::noise), over(&LayerFigures::excess),
                   over(&LayerFigures::straggler)),
      [&](std::size_t d) { return figures.rank_ratio(d); }, over(&LayerFigures::drift),
      under(&PlanLayerFigures::rank_ratio), under(&PlanLayerFigures::time_ratio));
  return table;
}

/// What the columns mean, in the terminal and on the page.
std::vector<std::string> keys_of_layers(const std::optional<UnderPlan>& plan) {
  std::vector<std::string> keys = {
      "Gini: of the copies of experts in a window; 0 is even, 1 is all to one expert.",
      "noise floor: the Gini of a router that is even in truth; beyond noise: what is left.",
      "max/mean: the busiest expert over the mean, whatever the number of ranks.",
      "N ranks: the busiest of N ranks over the mean, experts dealt out in order.",
      "drift: share of the 8 busiest experts that change between microbatches; - where there are no more."};
  if (plan)
    keys.insert(keys.end(), {"plan's ranks: the busiest of the devices that own experts, over the mean.",
                             "time ratio: the slowest of them over a perfect division by speed, simulated."});
  return keys;
}

std::vector<std::string> conclusions(const TraceFigures& figures, const std::optional<UnderPlan>& plan) {
  const FigureRange g = figures.over_layers(&LayerFigures::gini);
  std::vector<std::string> out = {
      fmt::format("band by the Gini coefficient: {} ({} of layers resilient, {} between, {} concentrated)",
                  name_of(band_of(g.mean)), format_percent(figures.share_in(RoutingBand::kResilient)),
                  format_percent(figures.share_in(RoutingBand::kBetween)),
                  format_percent(figures.share_in(RoutingBand::kConcentrated)))};
  if (!plan) return out;
  out.push_back(fmt::format("{}, by simulated rates: slowest owner over a perfect division {}", plan->title,
                            range_cell(plan->figures.over_layers(&PlanLayerFigures::time_ratio))));
  out.push_back(fmt::format("rows between nodes per token and layer: {:.3f}, one for each copy {:.3f}",
                            plan->figures.node_rows, plan->figures.node_copies));
  out.push_back(
      fmt::format("history costs: placed by the microbatch before, owners take {} times as long as by its "
                  "own copies (lpt)",
                  range_cell(plan->history_cost)));
  return out;
}

void print_layers(const TraceFigures& figures, const std::optional<UnderPlan>& plan) {
  const PageTable page = layers_table(figures, plan);
  Table table(page.header);
  for (const std::vector<std::string>& row : page.rows) table.add_row(row);
  std::cout << table.str();
}

void print_figures(const TraceFigures& figures, const std::optional<UnderPlan>& plan) {
  std::cout << "\n";
  for (const std::string& line : conclusions(figures, plan)) std::cout << line << "\n";
  for (const std::string& line : keys_of_layers(plan)) std::cout << line << "\n";
}

void print_windows(const std::vector<TraceFigures>& all) {
  Table table({"window", "windows", "Gini", "noise floor", "beyond noise", "max/mean"});
  for (const TraceFigures& figures : all) {
    std::vector<std::string> cells = figure_cells(
        figures.over_layers(&LayerFigures::gini), figures.over_layers(&LayerFigures::noise),
        figures.over_layers(&LayerFigures::excess), figures.over_layers(&LayerFigures::straggler));
    cells.insert(cells.begin(), {to_string(figures.window), std::to_string(figures.windows)});
    table.add_row(cells);
  }
  std::cout << table.str();
}

void print_against(const RoutingAnalyseArguments& options, const TraceFigures& one,
                   const TraceFigures& other) {
  std::cout << fmt::format("\nagainst {}: window {}\n", options.against, to_string(other.window));
  Table table({"layer", "Gini", "Gini there", "there / here", "max/mean", "max/mean there"});
  for (std::size_t l = 0; l < one.layers.size(); ++l) {
    const LayerFigures &a = one.layers[l], &b = other.layers[l];
    table.add_row({std::to_string(a.layer), range_cell(a.gini, 4), range_cell(b.gini, 4),
                   fmt::format("{:.2f}", b.gini.mean / a.gini.mean), range_cell(a.straggler, 2),
                   range_cell(b.straggler, 2)});
  }
  const FigureRange a = one.over_layers(&LayerFigures::gini), b = other.over_layers(&LayerFigures::gini);
  table.add_row({"mean", range_cell(a, 4), range_cell(b, 4), fmt::format("{:.2f}", b.mean / a.mean),
                 range_cell(one.over_layers(&LayerFigures::straggler), 2),
                 range_cell(other.over_layers(&LayerFigures::straggler), 2)});
  std::cout << table.str();
}

Json plan_json(const UnderPlan& plan) {
  const auto mean = [&](FigureRange PlanLayerFigures::*figure) {
    return plan.figures.over_layers(figure).mean;
  };
  Json layers = Json::array();
  for (const PlanLayerFigures& layer : plan.figures.layers)
    layers.push_back({{"layer", layer.layer},
                      {"time_ratio", layer.time_ratio.mean},
                      {"worst_time_ratio", layer.time_ratio.high},
                      {"rank_max_over_mean", layer.rank_ratio.mean}});
  return {{"plan", plan.title},
          {"source", "simulated"},
          {"time_ratio", mean(&PlanLayerFigures::time_ratio)},
          {"rank_max_over_mean", mean(&PlanLayerFigures::rank_ratio)},
          {"history_cost", plan.history_cost.count > 0 ? Json(plan.history_cost.mean) : Json(nullptr)},
          {"node_rows_per_token", plan.figures.node_rows},
          {"node_copies_per_token", plan.figures.node_copies},
          {"layers", layers}};
}

/// routing.html and routing.csv.
std::vector<std::filesystem::path> write_analysis(const RoutingAnalyseArguments& options,
                                                  const RoutingTrace& trace, const Analysis& analysis) {
  const TraceFigures& figures = analysis.windows[0];
  ReportInput page;
  const TraceHeader& header = trace.header();
  page.title = fmt::format("Routing of {}", header.model.value_or(options.trace));
  page.facts = {
      {"trace", options.trace},
      {"condition", header.condition.value_or("-")},
      {"steps", std::to_string(figures.steps.size())},
      {"tokens", std::to_string(figures.tokens)},
      {"experts of a layer, of a token", fmt::format("{}, {}", header.num_experts, header.top_k)},
      {"Gini coefficient, mean over layers", range_cell(figures.over_layers(&LayerFigures::gini), 4)},
      {"of a router that is even in truth", range_cell(figures.over_layers(&LayerFigures::noise), 4)}};
  ExpertLoad load{"Copies of each expert, whole trace", {}, {}};
  LossPlot steps{"Gini coefficient of each step", "step", "Gini", {}, 640, 290};
  LossPlot ranks{"Largest over mean of ranks, mean over layers",
                 "ranks",
                 "max/mean",
                 {{"experts in order", {}, {}}},
                 640,
                 290};
  LossSeries mean{"mean over layers", {}, {}};
  for (const LayerFigures& layer : figures.layers) {
    load.layers.push_back(layer.layer);
    load.copies.push_back(layer.copies);
  }
  for (std::size_t s = 0; s < figures.steps.size(); ++s) {
    double sum = 0;
    for (const LayerFigures& layer : figures.layers) sum += layer.gini_of_step[s];
    mean.train.push_back(
        {static_cast<double>(figures.steps[s]), sum / static_cast<double>(figures.layers.size())});
  }
  steps.runs = {mean};
  for (std::size_t d = 0; d < figures.degrees.size(); ++d)
    ranks.runs[0].train.push_back({static_cast<double>(figures.degrees[d]), figures.rank_ratio(d).mean});
  page.tables = {layers_table(figures, analysis.plan)};
  page.tables[0].notes = conclusions(figures, analysis.plan);
  const std::vector<std::string> keys = keys_of_layers(analysis.plan);
  page.tables[0].notes.insert(page.tables[0].notes.end(), keys.begin(), keys.end());
  page.expert_loads = {load};
  page.routing = {steps, ranks};
  const std::filesystem::path folder = options.output;
  write_text(folder / "routing.html", html_report(page));
  write_text(folder / "routing.csv", copies_csv(figures));
  return {folder / "routing.html", folder / "routing.csv"};
}

void print_tiles(const TileAnalyser& tiles) {
  Table table({"layer", "tiles", "sources of a tile, sorted", "most", "unsorted"});
  for (const LayerTiles& layer : tiles.layers())
    table.add_row({std::to_string(layer.layer), std::to_string(layer.sorted.count),
                   range_cell(layer.sorted, 2),
                   layer.sorted.count > 0 ? std::to_string(std::lround(layer.sorted.high)) : "-",
                   range_cell(layer.shuffled, 2)});
  std::cout << fmt::format(
      "\ntiles of {} rows of an expert; the sequences of a microbatch are on {} in order\n{}sorted: rows of "
      "an "
      "expert in the order of sources, as runs have them; unsorted: in random order\n",
      tiles.tile(), counted(tiles.sources(), "source"), table.str());
}

void print_analysis(const RoutingAnalyseArguments& options, const RoutingTrace& trace,
                    const Analysis& analysis) {
  const TraceFigures& figures = analysis.windows[0];
  const TraceHeader& header = trace.header();
  std::cout << fmt::format("{}: {}{}, {}, {}, {} with {} (top {})\nwindow: {} ({} of them)\n\n",
                           options.trace, header.model ? *header.model + ", " : "",
                           counted(figures.steps.size(), "step"), counted(figures.sequences, "sequence"),
                           counted(figures.tokens, "token"), counted(header.layers.size(), "layer"),
                           counted(header.num_experts, "expert"), header.top_k, to_string(figures.window),
                           figures.windows);
  print_layers(figures, analysis.plan);
  if (analysis.windows.size() > 1) {
    std::cout << "\n";
    print_windows(analysis.windows);
  }
  print_figures(figures, analysis.plan);
  if (analysis.tiles) print_tiles(*analysis.tiles);
}

int run_analyse(const RoutingAnalyseArguments& options, Overrides overrides) {
  if (!options.output.empty()) check_output_folder(options.output);
  const RoutingTrace trace = open_trace(options.trace);
  if (!options.plan.empty()) overrides.emplace_back("plan.file", options.plan);
  const bool has_job = !options.job.empty() || !overrides.empty();
  Analysis analysis;
  if (has_job)
    analysis =
        analyse_under(trace, options,
                      options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides));
  else
    analysis.windows = analyse(trace, options);
  std::optional<std::vector<TraceFigures>> other;
  if (!options.against.empty()) {
    const RoutingTrace against = open_trace(options.against);
    if (against.header().layers != trace.header().layers)
      fail<InputError>("--against", "layers of {}: got {}, expected {} as {} has", options.against,
                       Json(against.header().layers).dump(), Json(trace.header().layers).dump(),
                       options.trace);
    const auto shape = [](const TraceHeader& header) {
      return fmt::format("{} experts, {} of them for a token", header.num_experts, header.top_k);
    };
    if (shape(against.header()) != shape(trace.header()))
      fail<InputError>("--against", "{} has {}, expected {} as {} has", options.against,
                       shape(against.header()), shape(trace.header()), options.trace);
    other = analyse(against, options);
  }
  if (options.tile > 0) analysis.tiles = analyse_tiles(trace, options);
  std::vector<std::filesystem::path> files;
  if (!options.output.empty()) files = write_analysis(options, trace, analysis);
  if (options.json) {
    Json json = to_json(analysis.windows[0]);
    for (std::size_t w = 1; w < analysis.windows.size(); ++w)
      json["more_windows"].push_back(to_json(analysis.windows[w]));
    if (analysis.plan) json["under_plan"] = plan_json(*analysis.plan);
    if (analysis.tiles) json["tiles"] = to_json(*analysis.tiles);
    if (other) json["against"] = to_json((*other)[0]);
    json["notes"] = trace.notes();
    print_json(json);
    return 0;
  }
  print_analysis(options, trace, analysis);
  if (other) print_against(options, analysis.windows[0], (*other)[0]);
  for (const std::filesystem::path& file : files) std::cout << "wrote " << file.string() << "\n";
  return 0;
}

}  // namespace

std::function<int()> make_routing_analyse(Flags& flags) {
  const auto options = std::make_shared<RoutingAnalyseArguments>();
  flags.add_option("trace", options->trace, "a routing trace: a file, or a folder with one for each rank")
      ->required();
  flags.add_option("job", options->job,
                   "a job under whose plan the routing is priced; every key of it is also a flag");
  flags.add_option("--plan", options->plan, "a plan.json instead of what the job's strategy makes");
  flags.add_option("--against", options->against, "a second trace, put beside the first");
  flags
      .add_option(
          "--window", options->windows,
          "over what copies are counted: microbatch, step, all or a number of sequences; several are put "
          "below each other, the first is shown layer by layer [default: step]")
      ->delimiter(',');
  flags
      .add_option("--ep", options->degrees,
                  "numbers of ranks over which experts are dealt out in order "
                  "[default: 1,2,4,... up to 32]")
      ->delimiter(',')
      ->range(at_least(1));
  flags
      .add_option("--tile", options->tile,
                  "also for how many sources a tile of so many rows of an expert waits [default: not]")
      ->range(at_least(1));
  flags
      .add_option("--sources", options->sources,
                  "with --tile: devices on which the sequences of a microbatch are, in order")
      ->capture_default_str()
      ->range(at_least(1));
  flags.add_option("--steps", options->steps, "steps of the trace, as 10..20 [default: all]");
  flags.add_option("--output", options->output, "folder for routing.html and routing.csv");
  flags.add_flag("--json", options->json, "print all figures as JSON");
  allow_overrides(flags);
  return [options, flags] { return run_analyse(*options, overrides_of(flags)); };
}

}  // namespace hetermoe
