#include "hetermoe/planner/search/good_sequences.h"

#include <algorithm>
#include <map>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/estimate/short_model.h"
#include "hetermoe/planner/search/same_group.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

constexpr double kWorthSaying = 1.02;  ///< tokens/s over those of the plan
constexpr i64 kDividesWell = 8, kRoundingPart = 50;
constexpr i64 kNear = 8;  ///< numbers that differ by more than such a part are another request

/// Shares that differ by one sequence become equal.
ShareRow evened_row(ShareRow row, bool upwards) {
  i64 least = row.front().sequences, most = least;
  for (const Share& share : row) {
    if (share.sequences == 0) continue;
    least = std::min(least, share.sequences), most = std::max(most, share.sequences);
  }
  if (most - least > 1) return row;
  for (Share& share : row) share.sequences = share.sequences == 0 ? 0 : upwards ? most : least;
  return row;
}

template <class F>
void for_shares(Group& group, F f) {
  f(group.embed), f(group.head);
  for (LayerPlacement& layer : group.layers) f(layer.attention);
}

/// All microbatches like one of them. False where its shares are not those of one number of sequences.
bool even_microbatches(Group& group, bool upwards) {
  const auto largest = std::max_element(group.microbatches.begin(), group.microbatches.end()),
             smallest = std::min_element(group.microbatches.begin(), group.microbatches.end());
  const auto m = static_cast<i32>((upwards ? largest : smallest) - group.microbatches.begin());
  i64 size = -1;
  bool same = true;
  const bool even = [&] {  // whether all stages can have their shares even
    for_shares(group, [&](Shares& shares) {
      const i64 sum = sequences_of(evened_row(share_row(shares, m), upwards));
      same = same && (size < 0 || sum == size);
      size = sum;
    });
    return same;
  }();
  for_shares(group, [&](Shares& shares) {
    const ShareRow row = share_row(shares, m);
    shares = {even ? evened_row(row, upwards) : row};
  });
  const i64 each = even ? size : group.microbatches[idx(m)];
  std::fill(group.microbatches.begin(), group.microbatches.end(), each);
  return each > 0;
}

/// What groups that may have the same arrangement have in common.
std::vector<i64> kind_of(const Group& group, const Cluster& cluster) {
  std::vector<i64> kind;
  for (const DeviceId d : group.devices) kind.push_back(cluster.devices[idx(d)].type);
  kind.push_back(-1);
  for (const i64 layers : stage_layers(group)) kind.push_back(layers);
  return kind;
}

}  // namespace

std::optional<Plan> evened(const Plan& plan, const Cluster& cluster, bool upwards) {
  Plan out = plan;
  std::map<std::vector<i64>, std::size_t> chosen;
  for (std::size_t g = 0; g < out.groups.size(); ++g) {
    if (!even_microbatches(out.groups[g], upwards)) return {};
    const auto [at, fresh] = chosen.try_emplace(kind_of(out.groups[g], cluster), g);
    const i64 here = total_sequences(out.groups[g]), there = total_sequences(out.groups[at->second]);
    if (!fresh && (upwards ? here > there : here < there)) at->second = g;
  }
  for (std::size_t g = 0; g < out.groups.size(); ++g) {
    const Group& like = out.groups[chosen.at(kind_of(out.groups[g], cluster))];
    if (total_sequences(like) == total_sequences(out.groups[g])) continue;
    std::vector<DeviceId> counterpart(cluster.devices.size(), -1);
    for (std::size_t d = 0; d < like.devices.size(); ++d)
      counterpart[idx(like.devices[d])] = out.groups[g].devices[d];
    out.groups[g] = with_devices(like, counterpart);
  }
  if (total_sequences(out) == total_sequences(plan)) return {};
  return out;
}

i64 rounded_up(i64 sequences) {
  i64 best = sequences;
  if (sequences % kDividesWell == 0) return best;
  for (i64 unit = 2; unit <= sequences; unit *= 2) {
    const i64 up = (sequences + unit - 1) / unit * unit;
    if (kRoundingPart * (up - sequences) <= sequences) best = up;
  }
  return best;
}

std::optional<Plan> with_fewer(const Plan& plan, i64 sequences) {
  Plan out = plan;
  for (i64 i = 0; i < sequences; ++i) {
    Group& group = out.groups[out.groups.size() - 1 - idx(i) % out.groups.size()];
    const std::size_t count = group.microbatches.size();
    if (--group.microbatches.back() == 0 && count == 1) return {};
    const bool drops = group.microbatches.back() == 0;
    for_shares(group, [&](Shares& shares) {
      if (shares.size() == 1) shares = Shares(count, ShareRow(shares[0]));
      ShareRow& row = shares.back();
      --std::max_element(row.begin(), row.end(), [](const Share& a, const Share& b) {
          return a.sequences <= b.sequences;
        })->sequences;
      if (drops) shares.pop_back();
    });
    if (drops) group.microbatches.pop_back();
  }
  return out;
}

std::optional<Prediction> predict_like(const PlanRequest& request, const Candidate& best, Plan plan,
                                       i64 max_visits) {
  if (!best.extrapolated) return predictor_of(request).predict_within(max_visits, plan);
  return ShortModel(request.model, request.cluster, request.software, request.trained)
      .predict_within(max_visits, plan);
}

std::optional<GoodSequences> good_sequences(const PlanRequest& request, const Candidate& best,
                                            i64 max_visits) {
  if (traits_of(best.plan.order).has_rounds || uses_hosts(best.plan) || has_teams(best.plan)) return {};
  std::optional<GoodSequences> good;
  double most = kWorthSaying * best.prediction.tokens_per_s;
  for (const bool upwards : {true, false}) {
    std::optional<Plan> plan = evened(best.plan, request.cluster, upwards);
    if (!plan) continue;
    const i64 sequences = total_sequences(*plan);
    if (kNear * std::abs(sequences - request.sequences) > request.sequences) continue;
    if (!overfilled_device(
             estimate_memory(*plan, request.model, {}, TrainedShares(request.trained, request.model)),
             request.cluster)
             .empty())
      continue;
    const std::optional<Prediction> prediction = predict_like(request, best, *plan, max_visits);
    if (!prediction || prediction->tokens_per_s < most) continue;
    most = prediction->tokens_per_s;
    good = {sequences, most};
  }
  return good;
}

}  // namespace hetermoe
