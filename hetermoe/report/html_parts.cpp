#include <fmt/format.h>

#include <algorithm>
#include <functional>

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
      add_once(labels, "measured times are emulated: real computation, in the time of the named GPUs");
    }
    if (is_elsewhere(strategy)) {
      const std::string& source = strategy.executed->source;
      add_once(labels, "executed times are " + source.substr(source.find(kOnThisCpu),
                                                             source.rfind(')') - source.find(kOnThisCpu)));
    }
  }
  return labels;
}

std::string memory_cell(const StrategyReport& strategy) {
  const DeviceMemory* fullest = nullptr;  // relative to its capacity, else in bytes
  const auto fill = [](const DeviceMemory& m) { return m.capacity > 0 ? m.used() / m.capacity : m.used(); };
  for (const DeviceMemory& memory : strategy.memory) {
    if (fullest == nullptr || fill(memory) > fill(*fullest)) fullest = &memory;
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
  for (const GroupUse& use : group_use(*timeline)) {
    html += fmt::format(
        "<span class=\"use\"><span class=\"use-name\">{}</span><span class=\"bar\"><i "
        "style=\"width:{:.1f}%\"></i></span>"
        "<b>{:.0f} %</b></span>",
        escape_markup(use.group.label()), 100 * use.computing, 100 * use.computing);
  }
  return html;
}

/// Steps of a strategy, and what they are compared with; 0 = none.
struct Steps {
  Seconds simulated = 0, executed = 0;
  bool comparable = true;
};

Steps steps_of(const StrategyReport& strategy) {
  return {step_of(strategy.simulated_step, strategy.simulated),
          step_of(strategy.executed_step, strategy.executed), !is_elsewhere(strategy)};
}

Seconds smaller(Seconds a, Seconds b) { return a <= 0 ? b : b <= 0 ? a : std::min(a, b); }

/// Compares a measured time with measured ones only, and a predicted time with predicted ones.
std::string factor_cell(const Steps& own, const Steps& fastest) {
  const bool is_measured = own.executed > 0 && own.comparable;
  const Seconds time = is_measured ? own.executed : own.simulated;
  const Seconds best = is_measured ? fastest.executed : fastest.simulated;
  if (time <= 0) return "&ndash;";
  const std::string text = time <= best ? "fastest" : format_factor(time / best) + " slower";
  return text + (is_measured || fastest.executed <= 0 ? "" : " (predicted)");
}

std::string time_cell(Seconds time, Seconds slowest, const char* kind) {
  if (time <= 0) return "<td class=\"none\">&ndash;</td>";
  return fmt::format(
      "<td class=\"time\"><b>{}</b><span class=\"bar {}\"><i style=\"width:{:.1f}%\"></i></span></td>",
      format_seconds(time), kind, 100 * time / slowest);
}

std::string strategy_row(const StrategyReport& strategy, std::size_t index, const Steps& fastest,
                         Seconds slowest) {
  const Steps own = steps_of(strategy);
  const bool is_pair = own.simulated > 0 && own.executed > 0 && own.comparable;
  const std::string error =
      is_pair ? fmt::format("{:+.1f} %", 100 * (own.executed / own.simulated - 1)) : "&ndash;";
  const std::string name = escape_markup(strategy.name);
  std::string html =
      has_timeline(strategy)
          ? fmt::format("<tr data-row=\"{0}\"><th scope=\"row\"><button>{1}</button></th>", index, name)
          : fmt::format("<tr><th scope=\"row\"><span class=\"plain\">{}</span></th>", name);
  html += time_cell(own.simulated, slowest, "sim") + time_cell(own.executed, slowest, "exe");
  for (const std::string& cell :
       {error, factor_cell(own, fastest), use_cell(strategy), escape_markup(memory_cell(strategy))}) {
    html += "<td>" + cell + "</td>";
  }
  html += "</tr>\n";
  if (strategy.note.empty()) return html;
  return html + "<tr class=\"note\"><td></td><td colspan=\"6\">" + escape_markup(strategy.note) +
         "</td></tr>\n";
}

std::string strategies_table(const ReportInput& input) {
  Steps fastest;
  Seconds slowest = 0;
  for (const StrategyReport& strategy : input.strategies) {
    const Steps own = steps_of(strategy);
    slowest = std::max({slowest, own.simulated, own.executed});
    fastest.simulated = smaller(fastest.simulated, own.simulated);
    if (own.comparable) fastest.executed = smaller(fastest.executed, own.executed);
  }
  std::string html =
      "<section><h2>Strategies</h2><div class=\"scroll\"><table><thead><tr><th>strategy</th><th>predicted "
      "step</th>"
      "<th>measured step</th><th>measured against predicted</th><th>against the fastest</th><th>devices "
      "computing</th>"
      "<th>fullest device</th></tr></thead><tbody>\n";
  for (std::size_t s = 0; s < input.strategies.size(); ++s)
    html += strategy_row(input.strategies[s], s, fastest, slowest);
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

std::string plan_html(const StrategyReport& strategy) {
  if (!strategy.plan) return "";
  std::string html = "<ul class=\"how\">\n";
  for (const std::string& sentence : strategy.plan->sentences)
    html += "<li>" + escape_markup(sentence) + "</li>\n";
  return html + "</ul>\n<div class=\"plot\">" + plan_svg(*strategy.plan) + "</div>\n";
}

std::string bytes_cell(Bytes bytes, Bytes most, const char* kind) {
  if (bytes <= 0) return "<td class=\"none\">&ndash;</td>";
  return fmt::format(
      "<td class=\"time\"><b>{}</b><span class=\"bar {}\"><i style=\"width:{:.1f}%\"></i></span></td>",
      format_bytes(bytes), kind, 100 * bytes / most);
}

std::string memory_row(const DeviceMemory& memory, Bytes most) {
  const MemoryUse& use = memory.predicted;
  const Bytes predicted = use.total();
  std::string html = "<tr><th scope=\"row\">" + escape_markup(memory.device) + "</th>" +
                     bytes_cell(predicted, most, "sim") + bytes_cell(memory.measured, most, "exe");
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
  Bytes most = 1;
  for (const DeviceMemory& memory : strategy.memory)
    most = std::max({most, memory.predicted.total(), memory.measured});
  std::string html =
      "<div class=\"scroll\"><table><thead><tr><th>device</th><th>predicted peak</th><th>measured "
      "peak</th><th>measured against predicted</th><th>predicted: state</th><th>saved</th><th>in "
      "flight</th><th>workspace</th><th>capacity</th></tr></thead><tbody>\n";
  for (const DeviceMemory& memory : strategy.memory) html += memory_row(memory, most);
  return html + "</tbody></table></div>\n";
}

std::string plots_html(const std::vector<LossPlot>& plots) {
  if (plots.empty()) return "";
  std::string html = "<div class=\"plots\">\n";
  for (const LossPlot& plot : plots) html += "<div class=\"plot\">" + loss_svg(plot) + "</div>\n";
  return html + "</div>\n";
}

std::string experts_html(const ReportInput& input) {
  std::string html;
  for (const ExpertLoad& load : input.expert_loads)
    html += "<div class=\"plot\">" + heat_map_svg(load) + "</div>\n";
  return html + plots_html(input.routing);
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
      {"plan",
       section("plan", "The plan", "How the model lies on the devices. Point at a cell for its numbers.",
               of_strategies(input, plan_html))},
      {"strategies", input.strategies.empty() ? "" : strategies_table(input)},
      {"memory",
       section("memory", "Memory of each device",
               "Predicted: at the worst moment of a simulated step, in the dtypes that the run computes in. "
               "Measured: the most bytes of tensors in the last step that was looked at; runs count them on "
               "GPUs and, where they train on CPUs, under the virtual clock.",
               of_strategies(input, memory_html))},
      {"losses", section("losses", "Loss", "", plots_html(input.losses))},
      {"experts", section("routing", "Load of the experts", "", experts_html(input))},
      {"run", section("run", "The run, step by step",
                      "Dashed upright lines: the plan, the owners of experts or the experts changed there.",
                      plots_html(input.run))},
      {"events", section("events", "What changed, and what the run warned of", "", events_html(input))},
  };
}

}  // namespace hetermoe
