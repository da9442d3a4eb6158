#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/report/step_record.h"

// The metrics of a step, one row each in metrics.cpp. metrics.jsonl, the tags of TensorBoard, the curves of
// the report and what ranks tell each other follow from the rows.
namespace hetermoe {

/// How the values of ranks become the value of the step.
enum class MetricMerge {
  kNone,     ///< all ranks have the same, or it is made of what they told
  kLargest,  ///< of all ranks
  kSum       ///< over all ranks
};

/// A plot of the report, with a line for each metric that names it.
struct MetricPlot {
  const char* name;
  const char* title;
  const char* label;  ///< of the y axis
  enum class Section { kExperts, kRun } section;
  double unit = 1;  ///< values are divided by it
};
/// In the order of the page.
const std::vector<MetricPlot>& metric_plots();

struct Metric {
  const char* key;   ///< in metrics.jsonl; the tag in TensorBoard, if it is a number or has numbers in it
  const char* unit;  ///< empty = it has none
  /// Null = this step has none.
  std::function<Json(const StepRecord&)> value;
  MetricMerge merge = MetricMerge::kNone;
  double StepRecord::*member = nullptr;  ///< where the value of all ranks goes; null for kNone
  const char* plot = "";                 ///< MetricPlot::name; empty = no curve
  const char* line = "";  ///< name of the curve; empty: the metric has numbers by name, each a curve
};
/// In the order of the keys in metrics.jsonl.
const std::vector<Metric>& metrics();

/// The line of metrics.jsonl.
Json metrics_json(const StepRecord& record);

/// A rank's values of the metrics that are merged, in their order.
std::vector<double> values_to_merge(const StepRecord& record);
/// Adds the values of another rank to those of all ranks.
void merge_values(std::vector<double>& all, const std::vector<double>& other);
void set_merged(StepRecord& record, const std::vector<double>& all);

}  // namespace hetermoe
