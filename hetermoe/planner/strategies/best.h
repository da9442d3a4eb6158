#pragma once
#include <utility>

#include "hetermoe/planner/strategies/baselines.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/schedule/schedule_error.h"

namespace hetermoe {

/// Keeps the fastest plan that fits.
class Best {
 public:
  Best(Predictor& predictor, const Setting& setting) : predictor_(predictor), setting_(setting) {}

  /// Returns true when this plan is the best so far.
  bool consider(Plan plan, const std::vector<i64>& moved = {}) {
    std::string over;
    std::optional<Plan> fitting = with_room(predictor_, setting_, std::move(plan), over);
    had_room_ = fitting.has_value();
    if (!fitting) {
      if (best_.plan.groups.empty()) best_.infeasible = over;
      return false;
    }
    Prediction prediction;
    try {
      prediction = predictor_.predict(*fitting);
    } catch (const ScheduleError& refused) {
      if (best_.plan.groups.empty()) best_.infeasible = refused.what();
      return false;
    }
    if (!best_.plan.groups.empty() && prediction.step >= best_.prediction.step) return false;
    fitting->predicted_step_s = prediction.step;
    best_ = {std::move(*fitting), std::move(prediction), moved, ""};
    return true;
  }
  bool had_room() const { return had_room_; }  ///< of the last plan
  Tuned take() { return std::move(best_); }

 private:
  Predictor& predictor_;
  const Setting& setting_;
  Tuned best_;
  bool had_room_ = false;
};

/// The request to a strategy by the setting.
inline StrategyRequest request_of(const Setting& setting, i64 microbatches) {
  StrategyRequest request;
  request.seq_len = setting.seq_len;
  request.sequences = setting.sequences;
  request.microbatches = microbatches;
  request.dtype = setting.dtype;
  return request;
}

}  // namespace hetermoe
