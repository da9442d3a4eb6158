#include "hetermoe/balance/guest_cost.h"

#include <algorithm>
#include <cmath>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

class Pricer {
 public:
  Pricer(const CostModel& cost, const Placement& placement, const ModelConfig& model, const Cluster& cluster,
         i32 group, i32 layer)
      : cost_(cost),
        placement_(placement),
        work_(placement, model, cluster),
        cluster_(cluster),
        owners_(placement.owners(group, layer)),
        layer_{.kind = OpKind::kExperts,
               .group = static_cast<std::int16_t>(group),
               .layer = layer,
               .microbatch = 0} {}

  /// Of a device's expert work, forward and backward, with so many copies and so many experts more.
  Seconds experts(std::size_t owner, double copies, double more) const {
    ExchangeLoad load;
    load.tokens = {copies};
    load.rows_per_token.assign(owners_.size(), 1);
    load.copies_per_token.assign(owners_.size(), 1);
    Seconds sum = 0;
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      Op op = layer_;
      op.phase = phase;
      ComputeWork work = work_.compute_work(op, owners_[owner], &load);
      work.experts += more;
      sum += cost_.compute(work);
    }
    return sum;
  }

  /// Of the device's attention part, forward and backward.
  Seconds attention(std::size_t owner) const {
    Seconds sum = 0;
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      Op op = layer_;
      op.kind = OpKind::kAttention;
      op.phase = phase;
      const ComputeWork work = work_.compute_work(op, owners_[owner], nullptr);
      if (work.tokens > 0) sum += cost_.compute(work);
    }
    return sum;
  }

  /// Weights of a guest, forward.
  Seconds lend(std::size_t owner) const { return transfer(OpKind::kLend, Phase::kForward, owner); }

  /// Weights of a guest, forward and backward, and its gradients.
  Seconds whole_way(std::size_t owner) const {
    return lend(owner) + transfer(OpKind::kLend, Phase::kBackward, owner) +
           transfer(OpKind::kSettle, Phase::kBackward, owner);
  }

  /// Guests that an owner may lend at once: all that the others of its node have slots for.
  i64 most_lent(std::size_t owner, i64 slots) const {
    const auto is_peer = [&](DeviceId other) {
      return other != owners_[owner] && cluster_.node_of(other) == cluster_.node_of(owners_[owner]);
    };
    return std::max<i64>(1, slots * std::count_if(owners_.begin(), owners_.end(), is_peer));
  }

 private:
  /// Of one guest more on an owner that others have guests of, too.
  Seconds transfer(OpKind kind, Phase phase, std::size_t owner) const {
    if (owners_.size() < 2) return 0;
    Op op = layer_;
    op.kind = kind;
    op.phase = phase;
    const auto seconds = [&](std::size_t count) {
      ExchangeLoad load;
      const Guest guest{.expert = 0, .from = owner == 0 ? 1 : 0, .to = static_cast<i32>(owner)};
      load.guests.assign(count, guest);
      const std::vector<PortBytes> bytes = work_.port_bytes(op, owners_, &load);
      return cost_.transfer({op, owners_, bytes}).seconds();
    };
    return seconds(2) - seconds(1);
  }

  const CostModel& cost_;
  const Placement& placement_;
  WorkModel work_;
  const Cluster& cluster_;
  const std::vector<DeviceId>& owners_;
  Op layer_;
};

}  // namespace

std::vector<i64> guest_costs(const CostModel& cost, const Placement& placement, const ModelConfig& model,
                             const Cluster& cluster, i32 group, i32 layer, double copies,
                             const GuestTerms& terms) {
  const Pricer pricer(cost, placement, model, cluster, group, layer);
  copies = std::max(copies, 1.0);
  std::vector<i64> out;
  for (std::size_t o = 0; o < placement.owners(group, layer).size(); ++o) {
    const Seconds alone = pricer.experts(o, copies, 0);
    const Seconds copy = std::max((pricer.experts(o, 2 * copies, 0) - alone) / copies, 1e-15);
    Seconds way = pricer.lend(o);
    if (terms.foreseen) {
      const Seconds hidden = (pricer.attention(o) + alone) / real(pricer.most_lent(o, terms.slots));
      way = std::max(0.0, pricer.whole_way(o) - hidden);
    }
    const Seconds guest = pricer.experts(o, copies, 1) - alone + way;
    out.push_back(std::llround(std::clamp(std::ceil(guest / copy), 0.0, 1e9)));
  }
  return out;
}

}  // namespace hetermoe
