#include "hetermoe/train/job/slow_team.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "hetermoe/plan/teams.h"
#include "hetermoe/report/table.h"

namespace hetermoe {
namespace {

/// Of the attention part of one layer, forward.
class TeamTimes {
 public:
  TeamTimes(const Placement& placement, const ModelConfig& model, const Cluster& cluster,
            const CostModel& cost)
      : placement_(placement), work_(placement, model, cluster), cost_(cost) {}

  /// Seconds that no other microbatch hides.
  struct Parts {
    Seconds compute = 0, exchanges = 0;
    Seconds all() const { return compute + exchanges; }
  };
  Parts together(Op op) const {
    const Team team = placement_.team_of(op);
    Parts out;
    for (const OpKind kind : {OpKind::kProject, OpKind::kScores, OpKind::kAttention}) {
      op.kind = kind;
      Seconds slowest = 0;
      for (const TeamMember& member : team.members)
        slowest = std::max(slowest, cost_.compute(work_.compute_work(op, member.device, nullptr)));
      out.compute += slowest;
    }
    for (const OpKind kind : {OpKind::kToHeads, OpKind::kToTokens}) {
      op.kind = kind;
      const std::vector<DeviceId> among = participants(op, placement_);
      const std::vector<PortBytes> bytes = work_.port_bytes(op, among, nullptr);
      out.exchanges += cost_.transfer({op, among, bytes}).seconds();
    }
    return out;
  }
  Seconds alone(Op op, DeviceId device) const {
    op.kind = OpKind::kAttention;
    ComputeWork work;
    work.op = op, work.device = device;
    work.seq_len = placement_.plan().seq_len;
    work.tokens = real(placement_.team_of(op).tokens);
    return cost_.compute(work);
  }

 private:
  const Placement& placement_;
  WorkModel work_;
  const CostModel& cost_;
};

}  // namespace

std::string slow_team_note(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                           const CostModel& cost) {
  if (!has_teams(plan)) return "";
  const Placement placement(plan, model, {});
  const TeamTimes times(placement, model, cluster, cost);
  for (i32 g = 0; g < placement.num_groups(); ++g) {
    if (!placement.has_teams(g, 0)) continue;
    Op op{.kind = OpKind::kScores, .group = static_cast<std::int16_t>(g), .layer = 0, .microbatch = 0};
    for (op.team = 0; op.team < placement.num_teams(g, 0, 0); ++op.team) {
      const Team team = placement.team_of(op);
      if (team.tokens == 0) continue;
      const TeamTimes::Parts together = times.together(op);
      DeviceId fastest = team.members.front().device;
      std::vector<std::string> names;
      for (const TeamMember& member : team.members) {
        names.push_back(cluster.device_name(member.device));
        if (times.alone(op, member.device) < times.alone(op, fastest)) fastest = member.device;
      }
      const Seconds alone = times.alone(op, fastest);
      if (together.all() <= alone) continue;
      constexpr std::size_t kNamed = 8;
      if (names.size() > kNamed) names.resize(kNamed), names.emplace_back("...");
      return fmt::format(
          "the team of {} takes {} for the attention part of a layer, of which its rows travel for {}; {} "
          "alone would take {}. Make teams of devices with faster links (plan.team, plan.attention)",
          fmt::join(names, ", "), format_seconds(together.all()), format_seconds(together.exchanges),
          cluster.device_name(fastest), format_seconds(alone));
    }
  }
  return "";
}

}  // namespace hetermoe
