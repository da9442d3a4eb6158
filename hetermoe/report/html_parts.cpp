#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "hetermoe/base/index.h"
#include "hetermoe/report/device_classes.h"
#include "hetermoe/report/escape.h"
#include "hetermoe/report/html_steps.h"
#include "hetermoe/report/table.h"
#include "hetermoe/report/waits.h"

// The parts of the page that are text, tables and standalone pictures.
namespace hetermoe {
namespace {

bool contains(const std::string& text, const char* word) { return text.find(word) != std::string::npos; }

void add_once(std::vector<std::string>& labels, const std::string& label) {
  if (std::find(labels.begin(), labels.end(), label) == labels.end()) labels.push_back(label);
}

/// The labels of the input, and those that follow from the sources of the timelines. No label appears twice.
std::vector<std::string> all_labels(const ReportInput& input) {
  std::vector<std::string> labels = input.labels;
  for (const StrategyReport& strategy : input.strategies) {
    if (strategy.simulated) add_once(labels, "predicted times are simulated");
    if (strategy.executed && contains(strategy.executed->source, "emulated")) {
      add_once(labels, "executed times are emulated: real computation, in the time of the named GPUs");
    }
    if (is_elsewhere(strategy)) {
      const std::string& source = strategy.executed->source;
      add_once(labels, "executed times are " + source.substr(source.find(kOnThisCpu),
                                                             source.rfind(')') - source.find(kOnThisCpu)));
    }
  }
  return labels;
}

/// Relative to its capacity, else in bytes.
double fill_of(const DeviceMemory& m) { return m.capacity > 0 ? m.used() / m.capacity : m.used(); }

std::string memory_cell(const StrategyReport& strategy) {
  const DeviceMemory* fullest = nullptr;
  for (const DeviceMemory& memory : strategy.memory) {
    if (fullest == nullptr || fill_of(memory) > fill_of(*fullest)) fullest = &memory;
  }
  if (fullest == nullptr) return "";
  std::string text = format_bytes(fullest->used());
  if (fullest->capacity > 0) text += " of " + format_bytes(fullest->capacity);
  return text + " on " + fullest->device;
}

/// Busy share of each group as a small bar with its number.
std::string use_cell(const StrategyReport& strategy) {
  const std::optional<Timeline>& timeline = strategy.executed ? strategy.executed : strategy.simulated;
  if (!timeline) return "";
  std::string html;
  const std::vector<double> busy = busy_share(*timeline);
  for (const DeviceGroup& group : device_groups(*timeline)) {
    double share = 0;
    for (const DeviceId device : group.devices)
      share += 100 * busy[idx(device)] / static_cast<double>(group.devices.size());
    html += fmt::format(
        "<span class=\"use\"><span class=\"use-name\">{}</span><span class=\"bar\"><i "
        "style=\"width:{:.1f}%\"></i></span>"
        "<b>{:.0f} %</b></span>",
        escape_markup(group.label()), share, share);
  }
  return html;
}

/// Steps of a strategy; 0 = none.
struct Steps {
  Seconds simulated = 0, replayed = 0, executed = 0;
  Seconds by(Basis basis) const {
    return basis == Basis::kExecuted ? executed : basis == Basis::kReplayed ? replayed : simulated;
  }
};

Steps steps_of(const StrategyReport& strategy) {
  return {step_of(strategy.simulated_step, strategy.simulated), strategy.replayed_step,
          step_of(strategy.executed_step, strategy.executed)};
}

/// What the rows of strategies are compared with.
struct Rivals {
  Basis basis = Basis::kSimulated;
  Steps fastest;
  Seconds slowest = 0;
  bool has_replays = false;
};

Seconds smaller(Seconds a, Seconds b) { return a <= 0 ? b : b <= 0 ? a : std::min(a, b); }

Rivals rivals_of(const std::vector<StrategyReport>& strategies) {
  Rivals out{.basis = basis_of(strategies), .fastest = {}};
  for (const StrategyReport& strategy : strategies) {
    const Steps own = steps_of(strategy);
    out.slowest = std::max({out.slowest, own.simulated, own.replayed, own.executed});
    out.fastest.simulated = smaller(out.fastest.simulated, own.simulated);
    out.fastest.replayed = smaller(out.fastest.replayed, own.replayed);
    out.fastest.executed = smaller(out.fastest.executed, own.executed);
    out.has_replays = out.has_replays || own.replayed > 0;
  }
  return out;
}

/// Times of one kind are compared with each other: of a strategy that has none of the basis, the predicted
/// ones.
std::string factor_cell(const Steps& own, const Rivals& rivals) {
  const Basis basis = own.by(rivals.basis) > 0 ? rivals.basis : Basis::kSimulated;
  const Seconds time = own.by(basis), best = rivals.fastest.by(basis);
  if (time <= 0) return "&ndash;";
  const std::string text = time <= best ? "fastest" : format_factor(time / best) + " slower";
  if (basis == Basis::kReplayed) return text + " (replayed)";
  return text + (basis == Basis::kExecuted || rivals.fastest.executed <= 0 ? "" : " (predicted)");
}

std::string time_cell(Seconds time, Seconds slowest, const char* kind) {
  if (time <= 0) return "<td class=\"none\">&ndash;</td>";
  return fmt::format(
      "<td class=\"time\"><b>{}</b><span class=\"bar {}\"><i style=\"width:{:.1f}%\"></i></span></td>",
      format_seconds(time), kind, 100 * time / slowest);
}

/// The executed step over another one, 0 = there are not both; a dash where they are of different machines.
std::string against_cell(const StrategyReport& strategy, double ratio, bool as_factor) {
  if (ratio <= 0 || is_elsewhere(strategy)) return "&ndash;";
  const std::string text =
      as_factor ? fmt::format("{:.3f}", ratio) : fmt::format("{:+.1f} %", 100 * (ratio - 1));
  return strategy.kept_pace ? text : text + " (lost its pace)";
}

double ratio_of(Seconds executed, Seconds other) { return executed > 0 && other > 0 ? executed / other : 0; }

double over_replayed(const StrategyReport& strategy, const Steps& own) {
  return strategy.executed_over_replayed > 0 ? strategy.executed_over_replayed
                                             : ratio_of(own.executed, own.replayed);
}

std::string strategy_row(const StrategyReport& strategy, std::size_t index, const Rivals& rivals) {
  const Steps own = steps_of(strategy);
  const std::string name = escape_markup(strategy.name);
  std::string html =
      has_timeline(strategy)
          ? fmt::format("<tr data-row=\"{0}\"><th scope=\"row\"><button>{1}</button></th>", index, name)
          : fmt::format("<tr><th scope=\"row\"><span class=\"plain\">{}</span></th>", name);
  html += time_cell(own.simulated, rivals.slowest, "sim");
  if (rivals.has_replays) html += time_cell(own.replayed, rivals.slowest, "sim");
  html += time_cell(own.executed, rivals.slowest, "exe");
  std::vector<std::string> cells = {against_cell(strategy, ratio_of(own.executed, own.simulated), false)};
  if (rivals.has_replays) cells.push_back(against_cell(strategy, over_replayed(strategy, own), true));
  cells.insert(cells.end(),
               {factor_cell(own, rivals), use_cell(strategy), escape_markup(memory_cell(strategy))});
  for (const std::string& cell : cells) html += "<td>" + cell + "</td>";
  html += "</tr>\n";
  if (strategy.note.empty()) return html;
  return html + fmt::format("<tr class=\"note\"><td></td><td colspan=\"{}\">{}</td></tr>\n",
                            rivals.has_replays ? 8 : 6, escape_markup(strategy.note));
}

std::string basis_text(Basis basis) {
  switch (basis) {
    case Basis::kExecuted:
      return "Strategies are compared by executed steps.";
    case Basis::kReplayed:
      return "Strategies are compared by replayed steps: executed times of at least one run are not those of "
             "the "
             "named devices at their pace.";
    case Basis::kSimulated:
      return "Strategies are compared by predicted steps.";
  }
  return "";
}

/// The model has none, as far as plans say.
bool lacks_experts(const ReportInput& input) {
  return std::any_of(input.strategies.begin(), input.strategies.end(), [](const StrategyReport& strategy) {
    return strategy.plan && strategy.plan->num_experts == 0;
  });
}

std::string strategies_table(const ReportInput& input) {
  const Rivals rivals = rivals_of(input.strategies);
  std::string html = "<section><h2>Strategies</h2><p class=\"how\">" + basis_text(rivals.basis);
  if (rivals.has_replays && lacks_experts(input))
    html += " Exec/replay is the pace: 1.000 where the run kept it.";
  else if (rivals.has_replays)
    html +=
        " Replayed: a simulation of the experts that the run chose, so that replayed against predicted is "
        "the "
        "unevenness of routing, and exec/replay is the pace: 1.000 where the run kept it.";
  html +=
      "</p><div class=\"scroll\"><table><thead><tr><th>strategy</th><th>predicted step</th>" +
      std::string(rivals.has_replays ? "<th>replayed step</th>" : "") +
      "<th>executed step</th><th>executed against predicted</th>" +
      std::string(rivals.has_replays ? "<th>exec/replay</th>" : "") +
      "<th>against the fastest</th><th>devices computing</th><th>fullest device</th></tr></thead><tbody>\n";
  for (std::size_t s = 0; s < input.strategies.size(); ++s)
    html += strategy_row(input.strategies[s], s, rivals);
  return html + "</tbody></table></div></section>\n";
}

std::string facts_html(const std::vector<Fact>& facts) {
  if (facts.empty()) return "";
  std::string html = "<dl class=\"facts\">\n";
  for (const Fact& fact : facts) {
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escape_markup(fact.first),
                        escape_markup(fact.second));
  }
  return html + "</dl>\n";
}

std::string head_html(const ReportInput& input) {
  std::string html = fmt::format("<header><h1>{}</h1>\n<p class=\"headline\" id=\"headline\"></p>\n",
                                 escape_markup(input.title));
  const std::vector<std::string> labels = all_labels(input);
  if (!labels.empty()) html += "<p class=\"labels\">";
  for (const std::string& label : labels)
    html += fmt::format("<span class=\"label\">{}</span> ", escape_markup(label));
  return html + (labels.empty() ? "" : "</p>\n") + facts_html(input.facts) + "</header>\n";
}

/// Of each strategy a part, the first unfolded, or just the part where there is one.
std::string of_strategies(const ReportInput& input,
                          const std::function<std::string(const StrategyReport&)>& html_of) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const StrategyReport& strategy : input.strategies) {
    std::string html = html_of(strategy);
    if (!html.empty()) all.emplace_back(strategy.name, std::move(html));
  }
  if (all.size() == 1) return all[0].second;
  std::string html;
  for (std::size_t i = 0; i < all.size(); ++i)
    html += fmt::format("<details{}><summary>{}</summary>\n{}</details>\n", i == 0 ? " open" : "",
                        escape_markup(all[i].first), all[i].second);
  return html;
}

std::string section(const char* id, const char* title, const std::string& how, const std::string& html) {
  if (html.empty()) return "";
  return fmt::format("<section id=\"{}-section\"><h2>{}</h2>\n{}{}</section>\n", id, title,
                     how.empty() ? "" : "<p class=\"how\">" + how + "</p>\n", html);
}

/// Devices with the same prediction, and the fullest of them.
struct MemoryRow {
  std::vector<std::string> devices;
  DeviceMemory fullest;
};

bool same_prediction(const DeviceMemory& a, const DeviceMemory& b) {
  const MemoryUse &x = a.predicted, &y = b.predicted;
  return a.capacity == b.capacity && x.total() == y.total() && x.state() == y.state() && x.saved == y.saved &&
         x.in_flight == y.in_flight && (a.measured > 0) == (b.measured > 0);
}

/// In the order of devices; of many devices those with the same prediction together, and the fullest first
/// where these still are many.
std::vector<MemoryRow> memory_rows(const std::vector<DeviceMemory>& memories) {
  const bool few = memories.size() <= kFewDevices;
  std::vector<MemoryRow> rows;
  for (const DeviceMemory& memory : memories) {
    const auto like = few ? rows.end() : std::find_if(rows.begin(), rows.end(), [&](const MemoryRow& row) {
      return same_prediction(row.fullest, memory);
    });
    if (like == rows.end()) {
      rows.push_back({{memory.device}, memory});
      continue;
    }
    like->devices.push_back(memory.device);
    if (fill_of(memory) > fill_of(like->fullest)) like->fullest = memory;
  }
  if (rows.size() > 2 * kFewDevices)
    std::stable_sort(rows.begin(), rows.end(), [](const MemoryRow& a, const MemoryRow& b) {
      return fill_of(a.fullest) > fill_of(b.fullest);
    });
  return rows;
}

std::string plan_html(const StrategyReport& strategy) {
  if (!strategy.plan) return "";
  std::string html = "<ul class=\"how\">\n";
  for (const std::string& sentence : strategy.plan->sentences)
    html += "<li>" + escape_markup(sentence) + "</li>\n";
  return html + "</ul>\n<div class=\"plot\">" + plan_svg(*strategy.plan) + "</div>\n";
}

/// A bar up to `full`: the capacity of the device where it is known.
std::string bytes_cell(Bytes bytes, Bytes full, const char* kind) {
  if (bytes <= 0) return "<td class=\"none\">&ndash;</td>";
  return fmt::format(
      "<td class=\"time\"><b>{}</b><span class=\"bar {}{}\"><i style=\"width:{:.1f}%\"></i></span></td>",
      format_bytes(bytes), kind, bytes > full ? " over" : "", std::min(100.0, 100 * bytes / full));
}

std::string memory_row(const MemoryRow& row, Bytes most) {
  const DeviceMemory& memory = row.fullest;
  const MemoryUse& use = memory.predicted;
  const Bytes predicted = use.total(), full = memory.capacity > 0 ? memory.capacity : most;
  std::string html = "<tr><th scope=\"row\">" + escape_markup(name_ranges(row.devices)) + "</th>" +
                     bytes_cell(predicted, full, "sim") + bytes_cell(memory.measured, full, "exe");
  const std::string error = predicted > 0 && memory.measured > 0
                                ? fmt::format("{:+.1f} %", 100 * (memory.measured / predicted - 1))
                                : "&ndash;";
  for (const std::string& cell :
       {error, format_bytes(use.state()), format_bytes(use.saved), format_bytes(use.in_flight),
        format_bytes(use.workspace),
        memory.capacity > 0 ? format_bytes(memory.capacity) : std::string("&ndash;")})
    html += "<td class=\"num\">" + cell + "</td>";
  return html + "</tr>\n";
}

std::string memory_html(const StrategyReport& strategy) {
  if (strategy.memory.empty()) return "";
  constexpr std::size_t kMostRows = 64;
  Bytes most = 1;
  for (const DeviceMemory& memory : strategy.memory)
    most = std::max({most, memory.predicted.total(), memory.measured});
  const std::vector<MemoryRow> rows = memory_rows(strategy.memory);
  std::string html =
      "<div class=\"scroll\"><table><thead><tr><th>device</th><th>predicted peak</th><th>measured "
      "peak</th><th>measured against predicted</th><th>predicted: state</th><th>saved</th><th>in "
      "flight</th><th>workspace</th><th>capacity</th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) html += memory_row(rows[i], most);
  html += "</tbody></table></div>\n";
  if (rows.size() > kMostRows)
    html += fmt::format(
        "<p class=\"hint\">{} more devices or groups of them, which are less full, are in "
        "summary.json.</p>\n",
        rows.size() - kMostRows);
  return html;
}

std::string plots_html(const std::vector<LossPlot>& plots) {
  if (plots.empty()) return "";
  std::string html = "<div class=\"plots\">\n";
  for (const LossPlot& plot : plots) {
    const std::string note =
        plot.note.empty() ? "" : "<p class=\"hint\">" + escape_markup(plot.note) + "</p>";
    html += "<div class=\"plot\">" + loss_svg(plot) + note + "</div>\n";
  }
  return html +
         "</div>\n<p class=\"hint\">Point at a curve for its values. Drag over a part of it to see that "
         "part, "
         "double click to see all. A solid line over a pale one is its mean over a fiftieth of its "
         "points.</p>\n";
}

std::string experts_html(const ReportInput& input) {
  std::string html;
  for (const ExpertLoad& load : input.expert_loads)
    html += "<div class=\"plot\">" + heat_map_svg(load) + "</div>\n";
  return html + plots_html(input.routing);
}

std::string tables_html(const ReportInput& input) {
  std::string html;
  for (const PageTable& table : input.tables) html += page_table_html(table);
  return html;
}

std::string events_html(const ReportInput& input) {
  if (input.events.empty()) return "";
  std::string html =
      "<div class=\"scroll\"><table><thead><tr><th>step</th><th>what</th></tr></thead><tbody>\n";
  for (const StepNote& event : input.events)
    html += fmt::format("<tr><td class=\"num\">{:g}</td><td>{}</td></tr>\n", event.step,
                        escape_markup(event.text));
  return html + "</tbody></table></div>\n";
}

}  // namespace

std::vector<PagePart> page_parts(const ReportInput& input) {
  return {
      {"head", head_html(input)},
      {"tables", tables_html(input)},
      {"plan",
       section("plan", "The plan", "How the model lies on the devices. Point at a cell for its numbers.",
               of_strategies(input, plan_html))},
      {"strategies", input.strategies.empty() ? "" : strategies_table(input)},
      {"memory",
       section("memory", "Memory of each device",
               "Predicted: at the worst moment of a simulated step, in the dtypes that the run computes in. "
               "Measured: the most bytes of tensors in the last step that was looked at; runs count them on "
               "GPUs and, where they train on CPUs, under the virtual clock. Bars reach to the capacity of "
               "the device. "
               "Devices with the same prediction are one row, which shows the fullest.",
               of_strategies(input, memory_html))},
      {"losses", section("losses", "Loss", "", plots_html(input.losses))},
      {"experts", section("routing", "Load of the experts", "", experts_html(input))},
      {"run", section("run", "The run, step by step",
                      lacks_experts(input)
                          ? "Dashed upright lines: the plan changed there."
                          : "Dashed upright lines: the plan, the owners of experts or the experts changed "
                            "there.",
                      plots_html(input.run))},
      {"events", section("events", "What changed, and what the run warned of", "", events_html(input))},
  };
}

}  // namespace hetermoe
