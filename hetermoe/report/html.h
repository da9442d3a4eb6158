#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hetermoe/report/heat_map.h"
#include "hetermoe/report/loss_svg.h"
#include "hetermoe/report/metrics_file.h"
#include "hetermoe/report/page_table.h"
#include "hetermoe/report/plan_layout.h"
#include "hetermoe/sim/memory.h"
#include "hetermoe/timeline/timeline.h"

namespace hetermoe {

struct DeviceMemory {
  std::string device;   ///< as in Timeline::devices
  MemoryUse predicted;  ///< at the worst moment of the step; all 0 = unknown
  Bytes measured = 0;   ///< peak of the step; 0 = unknown
  Bytes capacity = 0;   ///< 0 = unknown
  Bytes used() const { return measured > 0 ? measured : predicted.total(); }
};

/// One strategy of the report. The page leaves out what a strategy does not have.
struct StrategyReport {
  std::string name;  ///< "zebra"
  std::optional<PlanLayout> plan;
  std::optional<Timeline> simulated;  ///< the prediction
  std::optional<Timeline> executed;   ///< the measurement, of the same schedule if the two are to be joined
  Seconds simulated_step = 0;         ///< 0 = that of the timeline
  Seconds executed_step = 0;          ///< 0 = that of the timeline; else say a median over steps
  Seconds replayed_step = 0;          ///< simulation of what the executed steps routed; 0 = there is none
  double executed_over_replayed = 0;  ///< median of the steps; 0 = not told, the ratio of both is taken
  bool kept_pace = true;              ///< false: executed times are longer than the clock meant them to be
  std::vector<DeviceMemory> memory;   ///< in any order, may be empty
  std::string note;                   ///< "chosen by the planner", "does not fit: device 2 ..."
};

/// Key and value: model, cluster, command, date, ...
using Fact = std::pair<std::string, std::string>;

struct ReportInput {
  std::string title;
  std::vector<Fact> facts;
  /// Conditions that a reader must not miss, such as "emulated". The page shows them as badges on top. It
  /// adds by itself those that the sources of the timelines name ("simulated", "emulated").
  std::vector<std::string> labels;
  std::vector<StrategyReport> strategies;  ///< the first one that has a timeline is shown when the page opens
  std::vector<LossPlot> losses;            ///< drawn one below the other
  std::vector<ExpertLoad> expert_loads;    ///< drawn as heat maps, one below the other
  std::vector<LossPlot> routing;           ///< curves of the routing, below them
  std::vector<LossPlot> run;               ///< curves of the run: speed, waiting, memory
  std::vector<PageTable> tables;           ///< below the head
  std::vector<StepNote> events;            ///< what changed in the run, and what it warned of
};

/// A section of the page, or several that belong together.
struct PagePart {
  std::string id;
  std::string html;  ///< empty where the input has nothing for it
};

/// The parts of the page that are not drawn by its script: head, tables, plan, strategies (their table),
/// memory, losses, experts, run, events.
std::vector<PagePart> page_parts(const ReportInput& input);

enum class PageKind {
  kFile,  ///< self-contained: style, script and data inline, no network, opens from a file
  kLive,  ///< asks its server for its parts and data every other second
};

/// A line of every page that says who wrote it.
inline constexpr const char* kGenerator = "<meta name=\"generator\" content=\"hetermoe\">\n";

/// One page. Shows for each strategy and device the predicted lanes directly above the measured ones, bubbles
/// hatched, with zoom, pan and tooltips; below, who waits for whom; around it the parts. Appending #zebra to
/// its address selects a strategy.
std::string html_report(const ReportInput& input, PageKind kind = PageKind::kFile);

/// The script element that lets plots be pointed at and zoomed, for the end of any page that has some.
std::string plot_script();

/// The data of the page, as embedded in its element <script id="report-data">; docs of the members stand in
/// html.cpp.
Json report_data(const ReportInput& input);

}  // namespace hetermoe
