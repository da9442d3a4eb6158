#include "hetermoe/schedule/waves.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

Wave compute_wave(OpKind kind, Phase phase, i32 layer, i32 level) {
  Wave wave;
  wave.level = level;
  wave.has_compute = true;
  wave.compute = {.kind = kind, .phase = phase, .layer = layer};
  return wave;
}

}  // namespace

std::vector<Wave> make_waves(const Placement& placement, i32 group) {
  std::vector<Wave> waves;
  const i32 head = placement.num_layers();
  const auto exchange = [&](Phase phase, i32 layer) {
    waves.back().has_exchange = true;
    waves.back().phase = phase;
    waves.back().layer = layer;
  };
  for (i32 l = 0; l < placement.num_layers(); ++l) {
    waves.push_back(compute_wave(OpKind::kAttention, Phase::kForward, l, l));
    if (placement.is_moe(l)) exchange(Phase::kForward, l);
  }
  waves.push_back(compute_wave(OpKind::kHead, Phase::kForward, -1, head));
  if (!placement.options().backward) return waves;
  for (i32 l = placement.num_layers() - 1; l >= 0; --l) {
    const i32 level = 2 * head - l;
    if (placement.is_moe(l)) {
      if (resends_rows(placement.recompute(group, l))) {
        waves.push_back(compute_wave(OpKind::kAttention, Phase::kRecompute, l, level));
        exchange(Phase::kRecompute, l);
      }
      // After a recompute wave, and at the border of a pipeline stage, the way to the experts is a wave of
      // its own.
      if (waves.back().has_exchange || placement.may_move_into(l + 1)) {
        waves.emplace_back();
        waves.back().level = level;
      }
      exchange(Phase::kBackward, l);
    }
    waves.push_back(compute_wave(OpKind::kAttention, Phase::kBackward, l, level));
  }
  return waves;
}

bool brings_rows_alone(const Placement& placement, i32 group, const Wave& wave) {
  return wave.phase == Phase::kRecompute && placement.recompute(group, wave.layer) == Recompute::kSelect;
}

void WaveRunner::run(const Wave& wave, i32 first, i32 last) {
  const std::span<const Part> parts = parts_of(wave);
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    for (i32 m = first; m < last; ++m) {
      if (i == 0) finish_returns_of(m);
      (this->*parts[i])(wave, m);
    }
  }
  for (i32 m = first; m < last; ++m) {
    if (parts.size() <= 1) finish_returns_of(m);
    if (!parts.empty()) (this->*parts.back())(wave, m);
    if (wave.has_exchange) {
      send_to_experts(wave, m);
      expect_back(wave, m);
    }
    while (!pending_.empty() && !pending_.front().waits) pop_return();
    weights(wave, m);
  }
  if (!wave.has_exchange || brings_rows_alone(p_, group_, wave)) return;
  // Experts on devices that also compute in this wave run after its compute ops of all microbatches
  // (Asym-EA).
  for (i32 m = first; m < last; ++m) run_experts(wave, m, true);
  for (Return& r : pending_) r.waits = false;
}

void WaveRunner::compute(const Wave& wave, i32 m) {
  for (const Part part : parts_of(wave)) (this->*part)(wave, m);
}

/// Between the parts of a microbatch its rows travel inside of teams.
std::span<const WaveRunner::Part> WaveRunner::parts_of(const Wave& wave) const {
  using R = WaveRunner;
  static constexpr Part kWhole[] = {&R::compute_whole};
  static constexpr Part kForward[] = {&R::team_project, &R::team_scores, &R::compute_whole};
  static constexpr Part kBackward[] = {&R::compute_whole, &R::team_scores_back, &R::team_project_back};
  static constexpr Part kAgain[] = {&R::team_project, &R::team_scores, &R::compute_whole,
                                    &R::team_scores_back, &R::team_project_back};
  if (!wave.has_compute) return {};
  if (!is_of_team(wave)) return kWhole;
  if (wave.compute.phase == Phase::kForward) return kForward;
  // Forward may have kept what the backward pass of the scores needs.
  if (keeps_activations(p_.recompute(group_, wave.compute.layer))) return kBackward;
  return kAgain;
}

/// Its attention part is cut into ops. Phase R of a wave of its own sends rows to experts again, for which it
/// needs no scores.
bool WaveRunner::is_of_team(const Wave& wave) const {
  const Op& op = wave.compute;
  return op.kind == OpKind::kAttention && op.phase != Phase::kRecompute && p_.has_teams(group_, op.layer);
}

void WaveRunner::team_transfer(OpKind kind, Phase phase, i32 layer, i32 m, i32 part) {
  Op op = at(kind, phase, layer, m, part);
  // Of hundreds of teams a folded step lists one.
  const LayerPlacement& placed = p_.plan().groups[idx(group_)].layers[idx(layer)];
  for (const Share& share : share_row(placed.attention, m)) {
    if (share.team == op.team || !b_.lists(share.device)) continue;
    op.team = static_cast<std::int16_t>(share.team);
    b_.transfer(op);
  }
}

void WaveRunner::team_project(const Wave& wave, i32 m) {
  const bool forward = wave.compute.phase == Phase::kForward;
  if (forward) enter(wave, m);
  const Phase phase = forward ? Phase::kForward : Phase::kRecompute;
  const i32 layer = wave.compute.layer;
  b_.compute_on_shares(at(OpKind::kProject, phase, layer, m), layer);
  for (i32 part = 0; part < p_.plan().head_parts; ++part)
    team_transfer(OpKind::kToHeads, phase, layer, m, part);
}

void WaveRunner::team_scores(const Wave& wave, i32 m) {
  const bool forward = wave.compute.phase == Phase::kForward;
  const i32 layer = wave.compute.layer;
  const Phase phase = forward ? Phase::kForward : Phase::kRecompute;
  for (i32 part = 0; part < p_.plan().head_parts; ++part) {
    b_.compute_on_shares(at(OpKind::kScores, phase, layer, m, part), layer);
    if (forward) team_transfer(OpKind::kToTokens, Phase::kForward, layer, m, part);
  }
}

void WaveRunner::team_scores_back(const Wave& wave, i32 m) {
  const i32 layer = wave.compute.layer;
  for (i32 part = p_.plan().head_parts - 1; part >= 0; --part) {
    b_.compute_on_shares(at(OpKind::kScores, Phase::kBackward, layer, m, part), layer);
    team_transfer(OpKind::kToHeads, Phase::kBackward, layer, m, part);
  }
}

void WaveRunner::team_project_back(const Wave& wave, i32 m) {
  b_.compute_on_shares(at(OpKind::kProject, Phase::kBackward, wave.compute.layer, m), wave.compute.layer);
  leave(wave, m);
}

/// What comes before the first op of a layer.
void WaveRunner::enter(const Wave& wave, i32 m) {
  const i32 stage = stage_of(wave.compute, p_.num_layers());
  if (stage == 0) b_.compute_on_shares(at(OpKind::kEmbed, Phase::kForward, -1, m), -1);
  if (wave.sends_input) send_input(stage, m);
}

/// What comes after the last op of a layer's backward pass: the gradient of its input goes on.
void WaveRunner::leave(const Wave& wave, i32 m) {
  const i32 stage = stage_of(wave.compute, p_.num_layers());
  if (wave.sends_gradient) send_gradient(stage, m);
  if (stage != 0) return;
  append_weights(wave.compute, m);  // no transfer waits for embed.B
  b_.compute_on_shares(at(OpKind::kEmbed, Phase::kBackward, -1, m), -1);
}

void WaveRunner::compute_whole(const Wave& wave, i32 m) {
  Op op = wave.compute;
  op.group = static_cast<std::int16_t>(group_);
  op.microbatch = m;
  const i32 stage = stage_of(wave.compute, p_.num_layers());
  const bool forward = op.phase == Phase::kForward, of_team = is_of_team(wave);
  if (forward && !of_team) enter(wave, m);
  if (backward_of_ahead(op)) b_.compute_on_shares(at(OpKind::kAttention, Phase::kRecompute, stage, m), stage);
  b_.compute_on_shares(op, stage);
  if (forward && op.kind == OpKind::kAttention) {
    send_residual(op.layer + 1, m);
    if (wave.sends_saved) send_saved(op.layer, m);
  }
  if (forward && stage == p_.last_moe_layer()) b_.routed(group_, m);
  const bool makes_gradient =
      op.phase == Phase::kBackward || (op.kind == OpKind::kHead && p_.options().backward);
  if (!makes_gradient) return;
  if (!of_team) return leave(wave, m);
  for (i32 part = p_.plan().head_parts - 1; part >= 0; --part)
    team_transfer(OpKind::kToTokens, Phase::kBackward, op.layer, m, part);
}

bool WaveRunner::backward_of_ahead(const Op& op) const {
  return op.kind == OpKind::kAttention && op.phase == Phase::kBackward &&
         p_.recompute(group_, op.layer) == Recompute::kAhead;
}

/// The transfer that waits for the wave's gradients of inputs is appended.
void WaveRunner::weights(const Wave& wave, i32 m) {
  if (wave.has_compute && wave.compute.layer != 0) append_weights(wave.compute, m);
}

void WaveRunner::append_weights(const Op& op, i32 m) {
  if (op.kind != OpKind::kAttention || op.phase != Phase::kBackward) return;
  b_.compute_on_shares(at(OpKind::kAttention, Phase::kWeights, op.layer, m), op.layer);
}

/// Beside the way of the rows to the experts and on to the next layer, which needs the routing that comes
/// with it.
void WaveRunner::send_residual(i32 stage, i32 m) {
  if (p_.joins_at(group_, stage, m)) b_.transfer(at(OpKind::kMove, Phase::kForward, stage, m));
}

void WaveRunner::send_input(i32 stage, i32 m) {
  if (!p_.moves_into(group_, stage, m) || p_.joins_at(group_, stage, m)) return;
  if (stage > 0) b_.compute_on_shares(at(OpKind::kMerge, Phase::kForward, stage, m), stage - 1);
  b_.transfer(at(OpKind::kMove, Phase::kForward, stage, m));
}

void WaveRunner::send_gradient(i32 stage, i32 m) {
  if (p_.moves_into(group_, stage, m, Phase::kBackward))
    b_.transfer(at(OpKind::kMove, Phase::kBackward, stage, m));
}

void WaveRunner::send_saved(i32 layer, i32 m) {
  if (p_.moves_saved(group_, layer, m)) b_.transfer(at(OpKind::kMove, Phase::kRecompute, layer, m));
}

void WaveRunner::send_to_experts(const Wave& wave, i32 m) {
  const OpKind out = wave.phase == Phase::kBackward ? OpKind::kCombine : OpKind::kDispatch;
  if (wave.phase == Phase::kForward && p_.tallies(group_, wave.layer))
    b_.transfer(at(OpKind::kTally, Phase::kForward, wave.layer, m));
  if (p_.lends(group_, wave.layer)) b_.transfer(at(OpKind::kLend, wave.phase, wave.layer, m));
  for (i32 c = 0; c < p_.plan().chunks; ++c) b_.transfer(at(out, wave.phase, wave.layer, m, c));
}

/// Runs experts on devices that do not compute in this wave, and remembers the way back.
void WaveRunner::expect_back(const Wave& wave, i32 m) {
  if (brings_rows_alone(p_, group_, wave)) return;
  const std::vector<DeviceId>& owners = p_.owners(group_, wave.layer, m, wave.phase);
  const i32 stage = computed_stage(wave);
  const bool waits =
      std::any_of(owners.begin(), owners.end(), [&](DeviceId d) { return computes(wave, stage, m, d); });
  for (i32 c = 0; c < p_.plan().chunks; ++c) pending_.push_back({wave.phase, wave.layer, m, c, waits});
  run_experts(wave, m, false);
}

void WaveRunner::experts(const Wave& wave, i32 m) { run_experts(wave, m, {}); }

void WaveRunner::send_back(const Wave& wave, i32 m) {
  for (i32 c = 0; c < p_.plan().chunks; ++c) send_back({wave.phase, wave.layer, m, c, false});
}

/// Experts of the wave's layer: those on devices that also compute in this wave, those on the others, or all.
void WaveRunner::run_experts(const Wave& wave, i32 m, std::optional<bool> computing) {
  const i32 stage = computed_stage(wave);
  const bool ahead = wave.phase == Phase::kBackward && p_.recompute(group_, wave.layer) == Recompute::kAhead;
  for (i32 c = 0; c < p_.plan().chunks; ++c) {
    for (const DeviceId device : p_.owners(group_, wave.layer, m, wave.phase)) {
      if (!b_.lists(device) || (computing && computes(wave, stage, m, device) != *computing)) continue;
      if (ahead) b_.compute(at(OpKind::kExperts, Phase::kRecompute, wave.layer, m, c), device);
      b_.compute(at(OpKind::kExperts, wave.phase, wave.layer, m, c), device);
    }
  }
}

i32 WaveRunner::computed_stage(const Wave& wave) const {
  return wave.has_compute ? stage_of(wave.compute, p_.num_layers()) : kNoStage;
}

/// The device runs the wave's compute op, or merges its input.
bool WaveRunner::computes(const Wave& wave, i32 stage, i32 m, DeviceId device) const {
  if (stage == kNoStage) return false;
  if (p_.has_range(group_, stage, m, device, wave.compute.phase)) return true;
  return wave.compute.phase == Phase::kForward && wave.sends_input && p_.moves_into(group_, stage, m) &&
         !p_.joins_at(group_, stage, m) && p_.has_range(group_, stage - 1, m, device);
}

void WaveRunner::pop_return() {
  const Return due = pending_.front();
  HM_CHECK(!due.waits, "a return of layer {} is due before its experts", due.layer);
  pending_.pop_front();
  send_back(due);
}

void WaveRunner::send_back(const Return& due) {
  const OpKind kind = due.phase == Phase::kBackward ? OpKind::kDispatch : OpKind::kCombine;
  b_.transfer(at(kind, due.phase, due.layer, due.microbatch, due.chunk));
  if (due.phase != Phase::kBackward) return;
  if (p_.leaves_weights(UnitPart::kExperts, due.layer)) {
    for (const DeviceId device : p_.owners(group_, due.layer, due.microbatch, Phase::kWeights))
      b_.compute(at(OpKind::kExperts, Phase::kWeights, due.layer, due.microbatch, due.chunk), device);
  }
  if (due.chunk + 1 == p_.plan().chunks && p_.lends(group_, due.layer))
    settle_after(due.layer, due.microbatch);
}

/// Gradients of guests are added to those that experts of the next microbatch add to: appended at once, they
/// would make these wait for the way home.
void WaveRunner::settle_after(i32 layer, i32 m) {
  if (!settles_.empty() && settles_.front().layer != layer) finish_settles();
  settles_.push_back(at(OpKind::kSettle, Phase::kBackward, layer, m));
  if (settles_.size() < 2) return;
  b_.transfer(settles_.front());
  settles_.pop_front();
}

void WaveRunner::finish_settles() {
  for (const Op& settle : settles_) b_.transfer(settle);
  settles_.clear();
}

/// Returns leave in the order they were asked for, so those before the last one of `m` go too.
void WaveRunner::finish_returns_of(i32 m) {
  const auto last =
      std::find_if(pending_.rbegin(), pending_.rend(), [&](const Return& r) { return r.microbatch == m; });
  for (auto due = pending_.rend() - last; due > 0; --due) pop_return();
}

void WaveRunner::finish_returns() {
  while (!pending_.empty()) pop_return();
  finish_settles();
}

void WaveRunner::report_done(const Wave& wave) {
  if (!wave.has_compute || !p_.options().backward) return;
  if (wave.compute.kind == OpKind::kHead) b_.state_done(UnitPart::kHead, -1);
  if (wave.compute.kind != OpKind::kAttention || wave.compute.phase != Phase::kBackward) return;
  finish_settles();
  b_.state_done(UnitPart::kExperts, wave.compute.layer);
  b_.state_done(UnitPart::kAttention, wave.compute.layer);
  if (wave.compute.layer == 0) b_.state_done(UnitPart::kEmbed, -1);
}

Op WaveRunner::at(OpKind kind, Phase phase, i32 layer, i32 m, i32 chunk) const {
  return {.kind = kind,
          .phase = phase,
          .chunk = static_cast<std::int16_t>(chunk),
          .group = static_cast<std::int16_t>(group_),
          .layer = layer,
          .microbatch = m};
}

}  // namespace hetermoe
