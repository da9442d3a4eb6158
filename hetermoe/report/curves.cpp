#include "hetermoe/report/curves.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string_view>

#include "hetermoe/base/error.h"
#include "hetermoe/report/metrics.h"

namespace hetermoe {
namespace {

constexpr int kWidth = 640, kHeight = 290;  ///< two fit side by side
constexpr std::size_t kMostCurves = 6;      ///< of layers; more hide each other

/// Of several strategies each has its name before the curve's.
std::string curve_name(const std::vector<StrategyMetrics>& runs, const StrategyMetrics& run,
                       const std::string& name) {
  return runs.size() > 1 ? run.strategy + " " + name : name;
}

LossPlot plot_like(const std::vector<StrategyMetrics>& runs, const std::string& title,
                   const std::string& label) {
  LossPlot plot;
  plot.title = title, plot.y_label = label;
  plot.width = kWidth, plot.height = kHeight;
  for (const StrategyMetrics& run : runs) {
    for (const StepNote& mark : run.file->marks())
      plot.marks.push_back({mark.step, curve_name(runs, run, mark.text)});
  }
  return plot;
}

/// Adds what `value` is at this step, or each number inside of it.
void add_points(std::map<std::string, LossSeries>& lines, const std::string& name, double step, double unit,
                const Json& value) {
  if (value.is_number()) lines[name].train.push_back({step, value.get<double>() / unit});
  if (!value.is_object()) return;
  for (const auto& [key, inside] : value.items())
    add_points(lines, name.empty() ? key : name + " " + key, step, unit, inside);
}

LossPlot metric_plot(const std::vector<StrategyMetrics>& runs, const MetricPlot& of) {
  LossPlot plot = plot_like(runs, of.title, of.label);
  for (const StrategyMetrics& run : runs) {
    for (const Metric& metric : metrics()) {
      if (std::string_view(metric.plot) != of.name) continue;
      std::map<std::string, LossSeries> lines;
      for (const Json& line : run.file->lines()) {
        if (line.contains(metric.key))
          add_points(lines, metric.line, number_in(line, "step"), of.unit, line.at(metric.key));
      }
      for (auto& [name, series] : lines) {
        series.name = curve_name(runs, run, name);
        plot.runs.push_back(std::move(series));
      }
    }
  }
  return plot;
}

/// A curve for each layer; of many layers one of the largest figure.
LossPlot layer_plot(const std::vector<StrategyMetrics>& runs, const std::string& title,
                    const std::string& label, const char* key) {
  LossPlot plot = plot_like(runs, title, label);
  for (const StrategyMetrics& run : runs) {
    std::map<i64, LossSeries> of_layer;
    LossSeries worst{curve_name(runs, run, "layer with most"), {}, {}};
    for (const Json& line : run.file->lines()) {
      if (!line.contains("layers")) continue;
      double most = 0;
      for (const Json& layer : line["layers"]) {
        of_layer[static_cast<i64>(number_in(layer, "layer"))].train.push_back(
            {number_in(line, "step"), number_in(layer, key)});
        most = std::max(most, number_in(layer, key));
      }
      worst.train.push_back({number_in(line, "step"), most});
    }
    if (of_layer.size() * runs.size() > kMostCurves) {
      plot.runs.push_back(std::move(worst));
      continue;
    }
    for (auto& [layer, series] : of_layer) {
      series.name = curve_name(runs, run, fmt::format("layer {}", layer));
      plot.runs.push_back(std::move(series));
    }
  }
  return plot;
}

bool is_zero(const LossPlot& plot) {
  return std::all_of(plot.runs.begin(), plot.runs.end(), [](const LossSeries& series) {
    return std::all_of(series.train.begin(), series.train.end(),
                       [](const LossPoint& p) { return p.loss == 0; });
  });
}

/// The largest difference of two lines over the size of their values; infinite where they are not of the same
/// steps.
double relative_difference(const std::vector<LossPoint>& a, const std::vector<LossPoint>& b) {
  double most = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const bool gaps = std::isnan(a[i].loss) && std::isnan(b[i].loss);
    if (a[i].step != b[i].step || std::isnan(a[i].loss) != std::isnan(b[i].loss))
      most = std::numeric_limits<double>::infinity();
    else if (!gaps)
      most = std::max(most, std::abs(a[i].loss - b[i].loss) / std::max(1e-30, std::abs(a[i].loss)));
  }
  return most;
}

/// Losses that nobody can tell apart are one line, which says whose it is.
void join_equal(LossPlot& plot) {
  constexpr double kEqual = 1e-4;
  std::vector<LossSeries> out;
  std::vector<i64> joined;
  double most = 0;
  for (LossSeries& run : plot.runs) {
    bool found = false;
    for (std::size_t i = 0; !found && i < out.size(); ++i) {
      const double difference = std::max(relative_difference(out[i].train, run.train),
                                         relative_difference(out[i].validation, run.validation));
      if (difference > kEqual) continue;
      found = true;
      most = std::max(most, difference);
      out[i].name += ", " + run.name;
      ++joined[i];
    }
    if (found) continue;
    out.push_back(std::move(run));
    joined.push_back(1);
  }
  plot.runs = std::move(out);
  for (std::size_t i = 0; i < plot.runs.size(); ++i) {
    if (joined[i] == 1) continue;
    plot.note += fmt::format("{}The losses of {} are equal at every step that is drawn{}.",
                             plot.note.empty() ? "" : " ", plot.runs[i].name,
                             most == 0 ? "" : fmt::format(" (largest difference {:.1g} of the loss)", most));
    plot.runs[i].name = fmt::format("{} strategies, equal", joined[i]);
  }
}

void add_metric_plots(const std::vector<StrategyMetrics>& runs, MetricPlot::Section section,
                      std::vector<LossPlot>& plots) {
  for (const MetricPlot& plot : metric_plots()) {
    if (plot.section == section) plots.push_back(metric_plot(runs, plot));
  }
}

/// Without those that say nothing.
std::vector<LossPlot> telling(std::vector<LossPlot> plots) {
  std::erase_if(plots, is_zero);
  return plots;
}

}  // namespace

std::vector<LossPlot> loss_curves(const std::vector<StrategyMetrics>& runs, const std::string& token_word) {
  LossPlot plot = plot_like(runs, fmt::format("Loss (nats per {})", token_word), "loss");
  plot.width = 1100, plot.height = 400;
  for (const StrategyMetrics& run : runs) {
    LossSeries series{run.strategy, {}, {}};
    std::map<std::string, LossSeries> sources;
    for (const Json& line : run.file->lines()) {
      const bool updated = line.value("updated", true);  // a skipped step leaves a gap
      series.train.push_back({number_in(line, "step"),
                              updated ? number_in(line, "loss") : std::numeric_limits<double>::quiet_NaN()});
    }
    for (const Json& line : run.file->validations()) {
      series.validation.push_back({number_in(line, "step"), number_in(line, "validation_loss")});
      const Json of_sources = line.value("validation_losses", Json::object());
      for (const auto& [source, loss] : of_sources.items()) {
        if (loss.is_number())
          sources[source].validation.push_back({number_in(line, "step"), loss.get<double>()});
      }
    }
    if (series.train.empty()) continue;
    plot.runs.push_back(std::move(series));
    for (auto& [source, of_source] : sources) {
      of_source.name = curve_name(runs, run, source);
      plot.runs.push_back(std::move(of_source));
    }
  }
  if (plot.runs.empty()) return {};
  join_equal(plot);
  return {std::move(plot)};
}

std::vector<LossPlot> expert_curves(const std::vector<StrategyMetrics>& runs) {
  std::vector<LossPlot> plots = {
      layer_plot(runs, "Busiest expert of each layer over the mean", "max/mean", "max_over_mean"),
      layer_plot(runs, "Spread of the experts' copies in each layer (CV)", "CV", "cv"),
      layer_plot(runs, "Dead experts of each layer", "experts", "dead_experts"),
      layer_plot(runs, "Copies dropped in each layer", "share", "dropped_share")};
  add_metric_plots(runs, MetricPlot::Section::kExperts, plots);
  return telling(std::move(plots));
}

std::vector<LossPlot> run_curves(const std::vector<StrategyMetrics>& runs) {
  std::vector<LossPlot> plots;
  add_metric_plots(runs, MetricPlot::Section::kRun, plots);
  return telling(std::move(plots));
}

}  // namespace hetermoe
