#pragma once
#include <ATen/ATen.h>

#include <unordered_map>
#include <vector>

#include "hetermoe/routing/trace_routing.h"
#include "hetermoe/train/job/job.h"

namespace hetermoe {

/// Routing replay: gives each step the recorded choices of its sequences, found by their index in the data.
class RouteReplay {
 public:
  /// Opens routing.replay. text: see name_of_text(), empty = any. Throws IoError, and InputError when the
  /// trace is damaged, of another model or another text, or has a sequence twice.
  RouteReplay(const Job& job, const ModelConfig& model, const std::string& text = {});
  /// Missing parts of the trace, in words, and a note if it has another model's name.
  std::vector<std::string> notes(const ModelConfig& model) const;

  /// For StepInput::choices, of `count` sequences from number `first` of the run. Throws InputError that
  /// names sequence and layer for choices that are not there, unless routing.replay_gaps allows them.
  std::vector<at::Tensor> choices(i64 first, i64 count);
  /// [num_layers][experts] copies that these choices make; layers without experts are empty. Throws
  /// InputError where some token has none.
  std::vector<std::vector<double>> copies(i64 first, i64 count);
  /// Throws InputError where the last choices() or copies() lack some.
  void check_all() const;
  /// Those of the last choices() or copies() as a step of a trace.
  TraceRouting routing(const ModelConfig& model) const;
  /// Share of the choices of the last call that came from the trace.
  double coverage() const { return coverage_; }
  /// counts_LE: as the routers of the step counted them that took the last call's choices. Throws when they
  /// are others than the trace's: then the replay was none.
  void check_counts(const at::Tensor& counts_LE) const;

 private:
  struct Place {
    i64 step, position;  // of a sequence in the trace
  };
  const TraceStep& step_of(i64 sequence, const Place& place);
  void add_sequence(i64 sequence, i64 row, std::vector<at::Tensor>& out);
  void refuse_gap(const std::string& what) const;

  const RoutingOptions options_;
  const i64 num_layers_, seq_len_, num_experts_;
  RoutingTrace trace_;
  std::unordered_map<i64, Place> places_;  // by index in the data
  TraceStep step_;                         // the one that was read last
  std::vector<at::Tensor> taken_;          // what the last choices() gave
  double coverage_ = 0;
};

}  // namespace hetermoe
