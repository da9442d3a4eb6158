#pragma once
#include <string>
#include <vector>

#include "hetermoe/routing/metrics.h"
#include "hetermoe/routing/trace.h"

namespace hetermoe {

/// Over what copies are counted before a figure is made: a microbatch, a step, the whole trace, or so many
/// sequences in a row of a step.
struct TraceWindow {
  enum Kind { kMicrobatch, kStep, kAll, kSequences } kind = kStep;
  i64 sequences = 0;  ///< of kSequences
};
/// "microbatch", "step", "all" or a number. Throws ConfigError.
TraceWindow window_from(const std::string& text, const std::string& where);
std::string to_string(const TraceWindow& window);

/// Figures of one layer over all windows of a trace.
struct LayerFigures {
  i64 layer = 0;
  FigureRange gini, noise, excess, straggler, drift;
  std::vector<FigureRange> rank_ratio;  ///< [degrees]
  std::vector<double> copies;           ///< [experts] of the whole trace
  std::vector<double> gini_of_step;     ///< [steps] for curves
  bool is_noise() const { return gini.mean < kNoiseFactor * noise.mean; }
};

struct TraceFigures {
  TraceWindow window;
  std::vector<i64> degrees;  ///< expert-parallel degrees of rank_ratio
  std::vector<i64> steps;
  i64 sequences = 0, tokens = 0, windows = 0;
  std::vector<LayerFigures> layers;

  /// Over layers: of the means of a figure.
  FigureRange over_layers(FigureRange LayerFigures::*figure) const;
  FigureRange rank_ratio(std::size_t degree) const;
  double share_in(RoutingBand band) const;  ///< of layers
};

/// Adds up a trace step by step.
class TraceAnalyser {
 public:
  /// degrees: each from 1 to the number of experts, else InputError.
  TraceAnalyser(const TraceHeader& header, TraceWindow window, std::vector<i64> degrees);
  void add(const TraceStep& step);
  /// Throws InputError when no window had a token: `where` names the trace.
  TraceFigures finish(const std::string& where);

 private:
  void add_window(const TraceStep& step, i64 begin, i64 end);
  void close(std::size_t layer, CopyCounts counts);
  void add_drift(const TraceStep& step);

  TraceHeader header_;
  TraceFigures figures_;
  std::vector<std::vector<double>> last_microbatch_;  // [layers][experts]
};

/// [experts] copies of sequences [begin, end) of a step, in layer number `layer` of the header.
std::vector<double> copies_of(const TraceStep& step, std::size_t layer, i64 num_experts, i64 begin, i64 end);
/// Sequences [begin, end) of each microbatch as recorded.
std::vector<std::pair<i64, i64>> microbatches_of(const TraceStep& step);

Json to_json(const TraceFigures& figures);
/// One line per layer and expert: layer, expert, copies, share of the layer's copies.
std::string copies_csv(const TraceFigures& figures);

}  // namespace hetermoe
