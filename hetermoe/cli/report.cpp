#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include "hetermoe/base/error.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/report/run_page.h"
#include "hetermoe/report/table.h"
#include "hetermoe/timeline/timeline.h"

namespace hetermoe {
namespace {
namespace fs = std::filesystem;

struct ReportArguments {
  std::vector<std::string> timelines, with;
  std::string output, trace;
  bool json = false;
};

bool is_simulated(const Timeline& timeline) { return timeline.source.starts_with("simulated"); }

/// Spans are joined by op, so both sides must come from one schedule.
bool same_schedule(const Timeline& a, const Timeline& b) {
  const auto same_op = [](const TimelineOp& x, const TimelineOp& y) {
    return x.kind == y.kind && x.phase == y.phase && x.layer == y.layer && x.microbatch == y.microbatch;
  };
  return a.devices.size() == b.devices.size() &&
         std::equal(a.ops.begin(), a.ops.end(), b.ops.begin(), b.ops.end(), same_op);
}

std::string name_of_timeline(const Timeline& timeline, const fs::path& path) {
  return timeline.title.empty() ? path.stem().string() : timeline.title;
}

/// Puts a timeline beside the prediction (or the run) of the same schedule, or on its own.
void add_timeline(std::vector<StrategyReport>& strategies, Timeline timeline, const fs::path& path) {
  const bool simulated = is_simulated(timeline);
  for (StrategyReport& strategy : strategies) {
    std::optional<Timeline>& own = simulated ? strategy.simulated : strategy.executed;
    const std::optional<Timeline>& other = simulated ? strategy.executed : strategy.simulated;
    if (!own && other && same_schedule(*other, timeline)) {
      own = std::move(timeline);
      return;
    }
  }
  StrategyReport strategy;
  strategy.name = name_of_timeline(timeline, path);
  const auto taken = [&] {
    return std::any_of(strategies.begin(), strategies.end(),
                       [&](const auto& s) { return s.name == strategy.name; });
  };
  if (taken()) strategy.name = path.string();
  for (int number = 2; taken(); ++number) strategy.name = fmt::format("{} ({})", path.string(), number);
  (simulated ? strategy.simulated : strategy.executed) = std::move(timeline);
  strategies.push_back(std::move(strategy));
}

/// --with asks for two sides of one schedule; what has no other side is drawn all the same, but not without a
/// word.
void tell_of_lonely(const std::vector<StrategyReport>& strategies) {
  for (const StrategyReport& strategy : strategies) {
    if (strategy.simulated && strategy.executed) continue;
    const Timeline& timeline = strategy.simulated ? *strategy.simulated : *strategy.executed;
    std::cerr << fmt::format(
        "[--with] {} ({}) is drawn by itself: no other file is the {} of the same schedule\n", strategy.name,
        timeline.source, strategy.simulated ? "run" : "prediction");
  }
}

/// The page of timelines, each by itself or beside the other side of its schedule.
ReportInput page_of_timelines(const std::vector<std::string>& paths) {
  ReportInput input;
  input.title = "hetermoe report";
  for (const std::string& path : paths) {
    Timeline timeline = load_timeline(path);
    input.facts.emplace_back(path, timeline.source);
    add_timeline(input.strategies, std::move(timeline), path);
  }
  return input;
}

/// The page of a run's folder, as the run leaves it.
ReportInput page_of_folder(const std::string& folder) {
  ReportInput input = run_page(folder);
  if (input.strategies.empty())
    fail<ConfigError>(
        folder,
        "has no run: expected summary.json or metrics.jsonl, as `train` and `simulate --output` leave them");
  return input;
}

/// What a trace shows: a run, or else a prediction.
const Timeline* traced_of(const ReportInput& input) {
  for (const StrategyReport& strategy : input.strategies) {
    if (strategy.executed) return &*strategy.executed;
  }
  for (const StrategyReport& strategy : input.strategies) {
    if (strategy.simulated) return &*strategy.simulated;
  }
  return nullptr;
}

/// Where the page of a run goes by itself: beside the files that it is made of. What is there and not a page
/// of ours stays.
std::string usual_page(const fs::path& folder) {
  const fs::path page = folder / "report.html";
  if (fs::exists(page) && read_text(page).find(kGenerator) == std::string::npos)
    fail<ConfigError>(page.string(),
                      "is there, and this version of hetermoe did not write it: name a page with -o");
  check_output_file(page);
  return page.string();
}

int report(ReportArguments options) {
  std::vector<std::string> paths = options.timelines;
  paths.insert(paths.end(), options.with.begin(), options.with.end());
  const bool is_folder = paths.size() == 1 && fs::is_directory(paths[0]);
  if (paths.size() == 1 && !fs::exists(paths[0]))
    fail<ConfigError>(paths[0], "No such file or folder: expected a run's folder, or its timelines");
  if (options.output.empty() && !is_folder)
    fail<ConfigError>("-o", "is missing: name the page to write. Only a run's folder has a page of its own");
  const ReportInput input = is_folder ? page_of_folder(paths[0]) : page_of_timelines(paths);
  if (options.output.empty()) options.output = usual_page(paths[0]);
  if (!options.with.empty()) tell_of_lonely(input.strategies);
  const Timeline* traced = traced_of(input);
  if (!options.trace.empty() && traced == nullptr)
    fail<ConfigError>(paths[0], "has no timeline to trace: expected timeline.json or predicted.json");
  const std::string page = html_report(input);
  const std::string trace = options.trace.empty() ? "" : perfetto_trace(*traced).dump() + "\n";
  write_text(options.output, page);
  if (!options.trace.empty()) write_text(options.trace, trace);
  Json rows = Json::array();
  for (const StrategyReport& strategy : input.strategies) {
    Json row = {{"name", strategy.name}};
    if (strategy.simulated) row["simulated_step_s"] = strategy.simulated->step;
    if (strategy.executed) row["executed_step_s"] = strategy.executed->step;
    rows.push_back(std::move(row));
  }
  if (options.json) {
    print_json({{"report", options.output}, {"trace", options.trace}, {"rows", rows}});
    return 0;
  }
  Table table({"name", "simulated step", "executed step"});
  for (const StrategyReport& s : input.strategies) {
    table.add_row({s.name, s.simulated ? format_seconds(s.simulated->step) : "-",
                   s.executed ? format_seconds(s.executed->step) : "-"});
  }
  const bool executed =
      std::any_of(input.strategies.begin(), input.strategies.end(),
                  [](const StrategyReport& strategy) { return strategy.executed.has_value(); });
  std::cout << table.str()
            << (executed ? "executed step: the one that is drawn; `train` tells the median\n" : "")
            << "wrote " << options.output << "\n";
  if (!options.trace.empty())
    std::cout << "wrote " << options.trace << " (for ui.perfetto.dev or chrome://tracing)\n";
  return 0;
}

}  // namespace

std::function<int()> make_report(Flags& flags) {
  const auto options = std::make_shared<ReportArguments>();
  flags.add_option("timeline", options->timelines, "timeline files, or the output folder of a run")
      ->required();
  flags.add_option(
      "--with", options->with,
      "another timeline; a prediction and a run of the same schedule are drawn above each other");
  flags
      .add_option("-o,--output", options->output,
                  "the page to write [default: report.html in the folder of a run]")
      ->is_output();
  flags
      .add_option("--trace", options->trace,
                  "also write a Chrome/Perfetto trace of the run (else of the prediction)")
      ->is_output();
  flags.add_flag("--json", options->json, "print step times as JSON");
  return [options] { return report(*options); };
}

}  // namespace hetermoe
