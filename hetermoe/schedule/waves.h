#pragma once
#include <deque>
#include <optional>
#include <vector>

#include "hetermoe/schedule/builder.h"

namespace hetermoe {

/// The ops of a microbatch between two visits of the experts: a compute op, then a round trip to the experts.
struct Wave {
  bool has_compute = false;
  Op compute;                  ///< without group and microbatch
  bool sends_input = true;     ///< the wave merges and moves its input, if that moves
  bool sends_gradient = true;  ///< and the gradient of its input, if that moves
  bool sends_saved = true;     ///< what its backward pass starts from, if that is elsewhere
  bool has_exchange = false;
  Phase phase = Phase::kForward;  ///< of the exchange
  i32 layer = -1;                 ///< of the exchange
  i32 level = 0;                  ///< ascends: one for each layer forward, the head, each layer backward
};

/// The waves of a step of one group, forward then backward. Every level has waves in all groups, though not
/// equally many: layers may recompute differently.
std::vector<Wave> make_waves(const Placement& placement, i32 group);

/// The exchange of the wave ends at the experts, which have kept the rest and give nothing back before
/// backward.
bool brings_rows_alone(const Placement& placement, i32 group, const Wave& wave);

/// Appends the ops of waves for one group. All orders are made of waves; they differ in which wave of which
/// microbatches comes next.
class WaveRunner {
 public:
  WaveRunner(ScheduleBuilder& builder, i32 group) : b_(builder), p_(builder.placement()), group_(group) {}

  /// Appends `wave` for microbatches first..last-1.
  void run(const Wave& wave, i32 first, i32 last);

  // The parts of a wave, for orders that append them one by one.
  /// The compute op, and what moves with it. Weight gradients are weights().
  void compute(const Wave& wave, i32 m);
  /// Phase W of the compute op, where it has one that is not appended with it.
  void weights(const Wave& wave, i32 m);
  /// The way to the experts.
  void send_to_experts(const Wave& wave, i32 m);
  void experts(const Wave& wave, i32 m);
  /// The way back from the experts.
  void send_back(const Wave& wave, i32 m);

  /// Merges the output of the layer before `stage` and moves it there, if it moves as a whole.
  void send_input(i32 stage, i32 m);
  /// Moves the gradient of the input of `stage` to the devices before it, if it moves.
  void send_gradient(i32 stage, i32 m);
  /// Moves what backward of the layer starts from to the devices of backward, if they are others.
  void send_saved(i32 layer, i32 m);
  /// Appends the return transfers that are still due.
  void finish_returns();
  /// Tells the builder that no more gradients come from this wave's compute op.
  void report_done(const Wave& wave);

 private:
  struct Return {
    Phase phase;
    i32 layer, microbatch, chunk;
    bool waits;  ///< some of its experts are not appended yet
  };
  using Part = void (WaveRunner::*)(const Wave&, i32);
  std::span<const Part> parts_of(const Wave& wave) const;
  bool is_of_team(const Wave& wave) const;
  void compute_whole(const Wave& wave, i32 m);
  void enter(const Wave& wave, i32 m);
  void leave(const Wave& wave, i32 m);
  void send_residual(i32 stage, i32 m);
  void team_transfer(OpKind kind, Phase phase, i32 layer, i32 m, i32 part);
  void team_project(const Wave& wave, i32 m);
  void team_scores(const Wave& wave, i32 m);
  void team_scores_back(const Wave& wave, i32 m);
  void team_project_back(const Wave& wave, i32 m);
  bool backward_of_ahead(const Op& op) const;
  void append_weights(const Op& op, i32 m);
  void expect_back(const Wave& wave, i32 m);
  void run_experts(const Wave& wave, i32 m, std::optional<bool> computing);
  static constexpr i32 kNoStage = -2;
  /// Whose shares the wave's compute op follows; kNoStage where it has none.
  i32 computed_stage(const Wave& wave) const;
  bool computes(const Wave& wave, i32 stage, i32 m, DeviceId device) const;
  void send_back(const Return& due);
  void pop_return();
  void finish_returns_of(i32 m);
  void settle_after(i32 layer, i32 m);
  void finish_settles();
  Op at(OpKind kind, Phase phase, i32 layer, i32 m, i32 chunk = 0) const;

  ScheduleBuilder& b_;
  const Placement& p_;
  i32 group_;
  std::deque<Return> pending_;  // round trips whose way back is not appended yet
  std::deque<Op> settles_;      // gradients of guests that are not sent home yet
};

}  // namespace hetermoe
