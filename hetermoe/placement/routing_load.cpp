#include "hetermoe/placement/routing_load.h"

#include <algorithm>
#include <cmath>

namespace hetermoe {

double ExchangeLoad::rows_to_node(std::size_t source, std::size_t node) const {
  if (is_product()) return tokens[source] * node_rows_per_token.at(node);
  HM_CHECK(!node_rows.empty(), "the load tells no rows of nodes");
  return node_rows[source * (node_rows.size() / num_sources()) + node];
}

double ExchangeLoad::rows_at(std::size_t owner) const {
  double sum = 0;
  for (std::size_t s = 0; s < num_sources(); ++s) sum += rows_between(s, owner);
  return sum;
}

double ExchangeLoad::copies_at(std::size_t owner) const {
  double sum = 0;
  for (std::size_t s = 0; s < num_sources(); ++s) sum += copies_between(s, owner);
  return sum;
}

std::pair<i64, i64> chunk_range(i64 tokens, i32 chunk, i32 chunks) {
  return {tokens * chunk / chunks, tokens * (chunk + 1) / chunks};
}

namespace {

/// Sum over all sets of `k` values of their product.
double symmetric_sum(const std::vector<double>& values, i64 k, std::size_t without = SIZE_MAX) {
  std::vector<double> sums(static_cast<std::size_t>(k) + 1, 0);
  sums[0] = 1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i == without) continue;
    for (std::size_t j = sums.size() - 1; j > 0; --j) sums[j] += sums[j - 1] * values[i];
  }
  return sums.back();
}

/// Chance of each expert to be among the k of a token: k times its popularity, at most 1; what is cut off
/// goes to the others.
std::vector<double> chosen_chance(const std::vector<double>& popularity, i64 k) {
  std::vector<double> chance(popularity.size(), 0);
  for (bool cut = true; cut;) {
    double popularity_left = 0, num_left = 0, k_left = static_cast<double>(k);
    for (std::size_t e = 0; e < chance.size(); ++e) {
      if (chance[e] >= 1) {
        k_left -= 1;
      } else {
        popularity_left += popularity[e];
        num_left += 1;
      }
    }
    cut = false;
    for (double& c : chance) {
      if (c >= 1) continue;
      const double part = popularity[static_cast<std::size_t>(&c - chance.data())] / popularity_left;
      c = std::min(1.0, k_left * (popularity_left > 0 ? part : 1 / num_left));
      cut = cut || c >= 1;
    }
  }
  return chance;
}

/// Weights under which drawing sets of k, each with a chance proportional to the product of its weights,
/// gives the chances wanted (0 where that is 1: such an expert is not drawn): scaled until they fit.
std::vector<double> fit_weights(const std::vector<double>& chance, i64 k) {
  constexpr int kMaxRounds = 1000;
  constexpr double kTolerance = 1e-12;
  std::vector<double> weights(chance.size());
  for (std::size_t e = 0; e < chance.size(); ++e)
    weights[e] = chance[e] < 1 ? chance[e] / (1 - chance[e]) : 0;
  double error = 1;
  for (int round = 0; round < kMaxRounds && k > 0 && error > kTolerance; ++round) {
    const double all = symmetric_sum(weights, k);
    std::vector<double> fitted = weights;
    error = 0;
    for (std::size_t e = 0; e < chance.size(); ++e) {
      if (weights[e] <= 0) continue;
      fitted[e] = chance[e] * all / symmetric_sum(weights, k - 1, e);
      error = std::max(error, std::abs(fitted[e] / weights[e] - 1));
    }
    weights = std::move(fitted);
  }
  return weights;
}

}  // namespace

ExpectedRouting::ExpectedRouting(const ModelConfig& model, const std::vector<double>& popularity)
    : num_drawn_(model.top_k) {
  const auto num_experts = static_cast<std::size_t>(model.num_experts);
  if (!popularity.empty() && popularity.size() != num_experts) {
    fail<InputError>("routing", "popularity has {} entries, but the model has {} experts", popularity.size(),
                     num_experts);
  }
  if (popularity.empty()) {
    chance_.assign(num_experts, static_cast<double>(model.top_k) / static_cast<double>(model.num_experts));
    weights_.assign(num_experts, 1);
    if (model.top_k == model.num_experts) weights_.assign(num_experts, 0);
    for (i64 held = 0; held <= model.num_experts; ++held) {
      double miss = 1;  // none of the k is among the held ones
      for (i64 k = 0; k < model.top_k; ++k) {
        miss *= std::max(0.0, static_cast<double>(model.num_experts - k - held)) /
                static_cast<double>(model.num_experts - k);
      }
      hit_by_count_.push_back(1 - miss);
    }
  } else {
    chance_ = chosen_chance(popularity, model.top_k);
  }
  for (const double chance : chance_) num_drawn_ -= chance >= 1 ? 1 : 0;
  if (!popularity.empty()) weights_ = fit_weights(chance_, num_drawn_);
  all_sets_ = symmetric_sum(weights_, num_drawn_);
}

std::vector<ExpectedRouting::Held> ExpectedRouting::joined(std::vector<Held> held) {
  std::sort(held.begin(), held.end(), [](const Held& a, const Held& b) { return a.expert < b.expert; });
  std::vector<Held> out;
  for (const Held& h : held) {
    if (!out.empty() && out.back().expert == h.expert)
      out.back().share = std::min(1.0, out.back().share + h.share);
    else
      out.push_back(h);
  }
  return out;
}

double ExpectedRouting::rows_per_token(const std::vector<Held>& held) const {
  const bool whole = std::all_of(held.begin(), held.end(), [](const Held& h) { return h.share == 1; });
  if (whole && !hit_by_count_.empty()) return hit_by_count_[held.size()];
  double miss = 1;
  std::vector<double> missed = weights_;
  for (const Held& h : held) {
    if (chance_[h.expert] >= 1) miss *= 1 - h.share;
    missed[h.expert] *= 1 - h.share;
  }
  return 1 - miss * symmetric_sum(missed, num_drawn_) / all_sets_;
}

ExchangeLoad ExpectedRouting::exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                                       i32 chunk) const {
  const Plan& plan = placement.plan();
  ExchangeLoad load;
  for (const TokenRange range : placement.ranges(group, layer, microbatch)) {
    const auto [begin, end] = chunk_range(range.tokens(), chunk, plan.chunks);
    load.tokens.push_back(static_cast<double>(end - begin));
  }
  const std::vector<DeviceId>& owners = placement.owners(group, layer, microbatch, Phase::kForward);
  std::vector<std::vector<Held>> held(owners.size());
  const auto& experts =
      plan.groups[static_cast<std::size_t>(group)].layers[static_cast<std::size_t>(layer)].experts;
  const bool at_sources = placement.at_sources(group, layer);
  for (std::size_t e = 0; e < experts.size(); ++e) {
    if (at_sources) held[0].push_back({e, 1});
    for (const ExpertOwner& owner : at_sources ? ExpertOwners() : experts[e]) {
      const auto at = std::lower_bound(owners.begin(), owners.end(), owner.device) - owners.begin();
      held[static_cast<std::size_t>(at)].push_back({e, owner.share});
    }
  }
  for (const std::vector<Held>& of_owner : held) {
    double copies = 0;
    for (const Held& h : of_owner) copies += chance_[h.expert] * h.share;
    load.copies_per_token.push_back(copies);
    load.rows_per_token.push_back(plan.row_dedup ? rows_per_token(of_owner) : copies);
  }
  if (plan.row_nodes.empty()) return load;
  const NodeRows nodes(plan, group, owners);
  for (const std::vector<std::size_t>& there : nodes.owners()) {
    std::vector<Held> of_node;
    for (const std::size_t o : there) of_node.insert(of_node.end(), held[o].begin(), held[o].end());
    load.node_rows_per_token.push_back(rows_per_token(joined(std::move(of_node))));
  }
  return load;
}

std::vector<double> zipf_popularity(i64 num_experts, double exponent) {
  std::vector<double> popularity;
  double sum = 0;
  for (i64 e = 1; e <= num_experts; ++e) {
    popularity.push_back(std::pow(static_cast<double>(e), -exponent));
    sum += popularity.back();
  }
  for (double& p : popularity) p /= sum;
  return popularity;
}

ExchangeLoad RecordedRouting::exchange(const Placement&, i32 group, i32 layer, i32 microbatch,
                                       i32 chunk) const {
  const auto found = loads_.find({group, layer, microbatch, chunk});
  if (found == loads_.end()) {
    fail<InputError>("routing",
                     "nothing recorded for group {} layer {} microbatch {} chunk {}; was the recording made "
                     "with another plan?",
                     group, layer, microbatch, chunk);
  }
  return found->second;
}

}  // namespace hetermoe
