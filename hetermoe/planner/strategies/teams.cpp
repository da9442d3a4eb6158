#include "hetermoe/planner/strategies/teams.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// Devices of each team.
std::vector<i64> team_sizes(const StrategyRequest& request, i64 devices, i64 sequences) {
  std::vector<i64> sizes = request.team;
  if (sizes.empty()) {
    const i64 teams = std::clamp<i64>(sequences, 1, devices);
    return proportional_split(devices, std::vector<double>(idx(teams), 1));
  }
  if (sizes.size() == 1) {
    if (sizes[0] > devices || devices % sizes[0] != 0)
      fail<ConfigError>("plan.team",
                        "got {}, expected a divisor of the {} devices, or a list that adds up to it",
                        sizes[0], devices);
    sizes.assign(idx(devices / sizes[0]), sizes[0]);
  }
  const i64 sum = std::accumulate(sizes.begin(), sizes.end(), i64{0});
  if (sum != devices)
    fail<ConfigError>("plan.team", "got {} devices in {} teams, expected {} in all", sum, sizes.size(),
                      devices);
  return sizes;
}

std::vector<double> weights_or_equal(const std::vector<double>& asked, std::size_t devices) {
  return asked.empty() ? std::vector<double>(devices, 1) : asked;
}

std::vector<double> slice(const std::vector<double>& all, std::size_t begin, i64 count) {
  return {all.begin() + static_cast<std::ptrdiff_t>(begin),
          all.begin() + static_cast<std::ptrdiff_t>(begin) + count};
}

/// Equally, where no device has a weight.
std::vector<i64> split(i64 total, std::vector<double> weights) {
  if (std::all_of(weights.begin(), weights.end(), [](double weight) { return weight <= 0; }))
    std::fill(weights.begin(), weights.end(), 1.0);
  return proportional_split(total, weights);
}

/// Key-value heads are sent to those that need them: to one each, where there are enough.
std::vector<i64> split_heads(const ModelConfig& model, const std::vector<double>& weights) {
  const i64 of_group = model.num_heads / model.num_kv_heads;
  const bool groups = static_cast<i64>(weights.size()) <= model.num_kv_heads;
  std::vector<i64> heads = split(groups ? model.num_kv_heads : model.num_heads, weights);
  for (i64& count : heads) count *= groups ? of_group : 1;
  return heads;
}

}  // namespace

Shares make_team_rows(const ModelConfig& model, const StrategyRequest& request,
                      const std::vector<DeviceId>& devices, const std::vector<i64>& microbatches) {
  if (!request.head_weights.empty() && request.head_weights.size() != devices.size())
    fail<ConfigError>("plan.head_weights", "got {} entries, expected one per device with attention ({})",
                      request.head_weights.size(), devices.size());
  const bool any =
      request.head_weights.empty() ||
      std::any_of(request.head_weights.begin(), request.head_weights.end(), [](double w) { return w > 0; });
  if (!any) fail<ConfigError>("plan.head_weights", "got 0 for all devices, expected some above 0");
  const i64 fewest = *std::min_element(microbatches.begin(), microbatches.end());
  const std::vector<i64> sizes = team_sizes(request, static_cast<i64>(devices.size()), fewest);
  const std::vector<double> tokens = weights_or_equal(request.attention_weights, devices.size());
  const std::vector<double> heads = request.head_weights.empty() ? tokens : request.head_weights;
  std::vector<double> of_teams;
  std::size_t first = 0;
  for (const i64 size : sizes) {
    const std::vector<double> own = slice(tokens, first, size);
    of_teams.push_back(std::accumulate(own.begin(), own.end(), 0.0));
    first += idx(size);
  }
  Shares rows;
  for (const i64 sequences : microbatches) {
    const std::vector<i64> each = split(sequences, of_teams);
    ShareRow row;
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      const std::size_t begin = row.size();
      const std::vector<i64> own_tokens = split(each[t] * request.seq_len, slice(tokens, begin, sizes[t])),
                             own_heads = split_heads(model, slice(heads, begin, sizes[t]));
      for (std::size_t i = 0; i < own_tokens.size(); ++i)
        row.push_back({devices[begin + i], each[t], own_tokens[i], own_heads[i], static_cast<i32>(t)});
    }
    rows.push_back(std::move(row));
  }
  if (std::all_of(rows.begin(), rows.end(), [&](const ShareRow& row) { return row == rows[0]; }))
    rows.resize(1);
  return rows;
}

TeamSpeeds team_speeds(const ModelConfig& model, const CostModel& cost, const std::vector<DeviceId>& devices,
                       i64 seq_len) {
  TeamSpeeds out;
  const i32 layer = static_cast<i32>(model.num_layers) - 1;
  for (const DeviceId device : devices) {
    ComputeWork work{
        .op = {}, .device = device, .seq_len = seq_len, .tokens = real(seq_len), .of_team = true};
    work.latents = most_for_latents(model) > 1;  // as most teams of these devices have them
    const auto seconds = [&](OpKind kind) {
      work.op = {.kind = kind, .layer = layer, .microbatch = 0};
      return cost.compute(work);
    };
    out.tokens.push_back(1 / (seconds(OpKind::kProject) + seconds(OpKind::kAttention)));
    out.heads.push_back(1 / seconds(OpKind::kScores));
  }
  return out;
}

}  // namespace hetermoe
