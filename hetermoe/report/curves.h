#pragma once
#include <string>
#include <vector>

#include "hetermoe/report/loss_svg.h"
#include "hetermoe/report/metrics_file.h"

namespace hetermoe {

/// The metrics of one strategy.
struct StrategyMetrics {
  std::string strategy;
  const MetricsFile* file = nullptr;
};

/// Loss of training and validation, of several sources each; empty without a step.
std::vector<LossPlot> loss_curves(const std::vector<StrategyMetrics>& runs, const std::string& token_word);
/// How evenly experts and their owners are loaded.
std::vector<LossPlot> expert_curves(const std::vector<StrategyMetrics>& runs);
/// Speed, waiting, utilisation, gradient norm, learning rate, memory.
std::vector<LossPlot> run_curves(const std::vector<StrategyMetrics>& runs);

}  // namespace hetermoe
