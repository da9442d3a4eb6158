#include "hetermoe/schedule/expected_ops.h"

#include <algorithm>

#include "hetermoe/schedule/residency.h"

namespace hetermoe {
namespace {

class Collector {
 public:
  explicit Collector(const Placement& placement) : p_(placement), states_(placement.states()) {}

  std::vector<ExpectedOp> run() {
    for (group_ = 0; group_ < p_.num_groups(); ++group_) {
      for (microbatch_ = 0; microbatch_ < p_.num_microbatches(group_); ++microbatch_) add_microbatch();
    }
    if (p_.options().backward) add_step_end();
    std::sort(out_.begin(), out_.end());
    return std::move(out_);
  }

 private:
  bool backward() const { return p_.options().backward; }

  void add_microbatch() {
    add_on_shares(OpKind::kEmbed, Phase::kForward, -1);
    if (backward()) add_on_shares(OpKind::kEmbed, Phase::kBackward, -1);
    for (i32 l = 0; l < p_.num_layers(); ++l) add_layer(l);
    add_moves(p_.num_layers());
    add_on_shares(OpKind::kHead, Phase::kForward, -1);
    const i32 set = p_.balance_set_of(group_, microbatch_);
    if (set >= 0 && p_.balance_set(set).back() == MicrobatchRef{group_, microbatch_}) {
      add(OpKind::kBalance, Phase::kForward, -1);
    }
  }

  void add_layer(i32 l) {
    add_moves(l);
    add_round(Phase::kForward, l);
    if (!backward()) return;
    add_round(Phase::kBackward, l);
    if (p_.recompute(group_, l) == Recompute::kAhead) add_computes(Phase::kRecompute, l);
    if (p_.is_moe(l) && p_.recompute(group_, l) == Recompute::kResend) add_round(Phase::kRecompute, l);
    if (p_.is_moe(l) && p_.recompute(group_, l) == Recompute::kSelect) add_rows_again(l);
    if (p_.plan().weight_gradients == WeightGradients::kAfter) add_computes(Phase::kWeights, l);
  }

  /// Attention part, experts and the transfers between them.
  void add_round(Phase phase, i32 l) {
    add_computes(phase, l);
    if (phase == Phase::kForward && p_.tallies(group_, l)) add(OpKind::kTally, phase, l);
    if (p_.lends(group_, l)) add(OpKind::kLend, phase, l);
    if (p_.lends(group_, l) && phase == Phase::kBackward) add(OpKind::kSettle, phase, l);
    for (i32 c = 0; p_.is_moe(l) && c < p_.plan().chunks; ++c) {
      add(OpKind::kDispatch, phase, l, -1, c);
      add(OpKind::kCombine, phase, l, -1, c);
    }
  }
  /// Nothing but the rows travels, and experts compute nothing.
  void add_rows_again(i32 l) {
    add_on_shares(OpKind::kAttention, Phase::kRecompute, l);
    for (i32 c = 0; c < p_.plan().chunks; ++c) add(OpKind::kDispatch, Phase::kRecompute, l, -1, c);
  }
  void add_computes(Phase phase, i32 l) {
    add_on_shares(OpKind::kAttention, phase, l);
    for (i32 c = 0; p_.is_moe(l) && c < p_.plan().chunks; ++c) {
      for (const DeviceId device : p_.owners(group_, l, microbatch_, phase))
        add(OpKind::kExperts, phase, l, device, c);
    }
  }

  void add_moves(i32 stage) {
    if (backward() && p_.moves_into(group_, stage, microbatch_, Phase::kBackward))
      add(OpKind::kMove, Phase::kBackward, stage);
    if (p_.moves_saved(group_, stage, microbatch_)) add(OpKind::kMove, Phase::kRecompute, stage);
    if (!p_.moves_into(group_, stage, microbatch_)) return;
    if (stage > 0) add_on_shares(OpKind::kMerge, Phase::kForward, stage);
    add(OpKind::kMove, Phase::kForward, stage);
  }

  void add_step_end() {
    group_ = 0;
    microbatch_ = -1;
    for (const OpTraits& row : kOpTraits) {
      if (row.occurs == Occurs::kPerStep) add(row.kind, Phase::kForward, -1);
      for (std::size_t s = 0; s < states_.size(); ++s) add_of_state(row, static_cast<i32>(s));
    }
  }

  void add_of_state(const OpTraits& row, i32 state) {
    const State& s = states_[idx(state)];
    if (!s.trainable) return;
    const Op op = {.kind = row.kind, .state = state};
    const bool once = (row.occurs == Occurs::kPerSharedState && s.reduced() && !s.sharded) ||
                      (row.occurs == Occurs::kPerShardedState && s.gathered_after_update()) ||
                      (row.occurs == Occurs::kAfterUpdate && s.gathered_after_update());
    if (once) out_.push_back({op, -1});
    if (row.kind == OpKind::kStore) add_all(stores_once(p_, state));
    if (row.kind == OpKind::kFetch) add_all(fetches_once(p_, state));
    const bool lagging = row.occurs == Occurs::kPerLaggingState && p_.lags(state);
    if (row.occurs != Occurs::kPerState && !lagging) return;
    for (const PlaceId place : s.updaters()) out_.push_back({op, place});
  }

  void add_all(const std::vector<Op>& ops) {
    for (const Op& op : ops) out_.push_back({op, -1});
  }

  void add_on_shares(OpKind kind, Phase phase, i32 layer) {
    const i32 stage = stage_of({.kind = kind, .layer = layer}, p_.num_layers());
    for (const Share& share : p_.shares(group_, stage, microbatch_, phase))
      add(kind, phase, layer, share.device);
  }
  void add(OpKind kind, Phase phase, i32 layer, DeviceId device = -1, i32 chunk = 0) {
    const Op op = {.kind = kind,
                   .phase = phase,
                   .chunk = static_cast<std::int16_t>(chunk),
                   .group = static_cast<std::int16_t>(group_),
                   .layer = layer,
                   .microbatch = microbatch_};
    if (p_.in_step(op)) out_.push_back({op, device});
  }

  const Placement& p_;
  const std::vector<State>& states_;
  i32 group_ = 0, microbatch_ = 0;
  std::vector<ExpectedOp> out_;
};

}  // namespace

std::vector<ExpectedOp> expected_ops(const Placement& placement) { return Collector(placement).run(); }

}  // namespace hetermoe
