#include "hetermoe/schedule/expected_ops.h"

#include <algorithm>

#include "hetermoe/schedule/residency.h"

namespace hetermoe {
namespace {

class Collector {
 public:
  explicit Collector(const Placement& placement) : p_(placement) {}

  std::vector<ExpectedOp> run() {
    for (i32 kind = 0; kind < kNumOpKinds; ++kind) {
      kind_ = static_cast<OpKind>(kind);
      const Occurs occurs = row().occurs;
      if (occurs == Occurs::kInMicrobatch) add_in_microbatches();
      if (occurs == Occurs::kPerBalanceSet) add_balance_sets();
      if (p_.options().backward) add_step_end(occurs);
    }
    std::sort(out_.begin(), out_.end());
    return std::move(out_);
  }

 private:
  const OpRow& row() const { return row_of(kind_); }

  void add_in_microbatches() {
    const i32 first = row().has_layer ? 0 : -1;
    const i32 last = !row().has_layer ? -1 : p_.num_layers() - (row().of_inputs ? 0 : 1);
    for (i32 g = 0; g < p_.num_groups(); ++g) {
      for (i32 m = 0; m < p_.num_microbatches(g); ++m) {
        for (i32 layer = first; layer <= last; ++layer) add_phases(g, layer, m);
      }
    }
  }

  void add_phases(i32 group, i32 layer, i32 microbatch) {
    for (i32 phase = 0; phase < kEnumCount<Phase>; ++phase) {
      Op op = {.kind = kind_,
               .phase = static_cast<Phase>(phase),
               .group = static_cast<std::int16_t>(group),
               .layer = layer,
               .microbatch = microbatch};
      if (op.phase != Phase::kForward && !p_.options().backward) break;
      if (!has_phase(kind_, op.phase) || (row().occurs_in != nullptr && !row().occurs_in(op, p_))) continue;
      if (!in_step(op, p_)) continue;
      const i32 parts = row().has_chunk ? p_.plan().chunks : row().has_part ? p_.plan().head_parts : 1;
      for (op.chunk = 0; op.chunk < parts; ++op.chunk) add_op(op);
    }
  }

  void add_op(const Op& op) {
    if (row().participants == Participants::kTeam) {
      Op of_team = op;
      for (; ++of_team.team < p_.num_teams(op.group, op.layer, op.microbatch);) out_.push_back({of_team, -1});
    } else if (!is_compute(kind_)) {
      out_.push_back({op, -1});
    } else if (row().stage == Stage::kNone) {
      for (const DeviceId device : p_.owners(op)) out_.push_back({op, device});
    } else {
      const i32 stage = stage_of(op, p_.num_layers());
      for (const TokenRange range : p_.ranges(op.group, stage, op.microbatch, op.phase))
        out_.push_back({op, range.device});
    }
  }

  void add_balance_sets() {
    for (i32 set = 0; set < p_.balance_sets().size(); ++set) {
      const MicrobatchRef last = p_.balance_sets()[set].back();
      const Op op = {
          .kind = kind_, .group = static_cast<std::int16_t>(last.group), .microbatch = last.microbatch};
      out_.push_back({op, -1});
    }
  }

  void add_step_end(Occurs occurs) {
    if (occurs == Occurs::kPerStep) out_.push_back({{.kind = kind_}, -1});
    for (std::size_t s = 0; s < p_.states().size(); ++s) {
      if (p_.states().trains(static_cast<i32>(s))) add_of_state(occurs, static_cast<i32>(s));
    }
  }

  void add_of_state(Occurs occurs, i32 state) {
    const State& s = p_.states()[idx(state)];
    const Op op = {.kind = kind_, .state = state};
    const bool once = (occurs == Occurs::kPerSharedState && s.reduced() && !s.sharded) ||
                      (occurs == Occurs::kPerShardedState && s.gathered_after_update()) ||
                      (occurs == Occurs::kAfterUpdate && s.gathered_after_update());
    if (once) out_.push_back({op, -1});
    if (occurs == Occurs::kOfResidence)
      add_all(row().from_host ? fetches_once(p_, state) : stores_once(p_, state));
    const bool lagging = occurs == Occurs::kPerLaggingState && p_.states().lags(state);
    if (occurs != Occurs::kPerState && !lagging) return;
    for (const PlaceId place : s.updaters()) out_.push_back({op, place});
  }

  void add_all(const std::vector<Op>& ops) {
    for (const Op& op : ops) out_.push_back({op, -1});
  }

  const Placement& p_;
  OpKind kind_ = OpKind::kEmbed;
  std::vector<ExpectedOp> out_;
};

}  // namespace

std::vector<ExpectedOp> expected_ops(const Placement& placement) { return Collector(placement).run(); }

}  // namespace hetermoe
