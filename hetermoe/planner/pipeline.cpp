#include <algorithm>
#include <numeric>

#include "hetermoe/planner/balance/balancers.h"
#include "hetermoe/planner/baselines.h"
#include "hetermoe/planner/memory_estimate.h"
#include "hetermoe/planner/strategies.h"

namespace hetermoe {
namespace {

/// Calls `use` with every way to cut `layers` into `stages` runs of at least one layer.
template <class Use>
void for_each_split(i64 layers, std::size_t stages, std::vector<i64>& split, Use use) {
  if (split.size() + 1 == stages) {
    split.push_back(layers);
    use(split);
    split.pop_back();
    return;
  }
  const auto left = static_cast<i64>(stages - split.size() - 1);
  for (i64 first = 1; first <= layers - left; ++first) {
    split.push_back(first);
    for_each_split(layers - first, stages, split, use);
    split.pop_back();
  }
}

/// One pipeline: stage s of devices[s] holds split[s] layers whole; the embedding is with the first, the head
/// with the last.
Group make_pipeline(const ModelConfig& model, const std::vector<DeviceId>& devices,
                    const std::vector<i64>& split, const std::vector<i64>& microbatches) {
  Group group;
  group.devices = devices;
  std::sort(group.devices.begin(), group.devices.end());
  group.microbatches = microbatches;
  const auto all_on = [&](DeviceId device) { return make_share_rows({device}, microbatches, {}); };
  group.embed = all_on(devices.front());
  group.head = all_on(devices.back());
  for (std::size_t s = 0; s < devices.size(); ++s) {
    for (i64 l = 0; l < split[s]; ++l) {
      LayerPlacement layer{all_on(devices[s]), {}};
      if (model.is_moe(static_cast<i64>(group.layers.size()))) {
        const BalanceInput stage{
            .devices = {{.id = devices[s]}}, .load = even_load(1, model.num_experts), .moved = {}};
        layer.experts = find_balancer("even").place(stage).front();
      }
      group.layers.push_back(std::move(layer));
    }
  }
  return group;
}

/// Devices of each pipeline in stage order; `newer` says for each stage which type it takes.
std::vector<std::vector<DeviceId>> stage_devices(const Roles& roles, const std::vector<bool>& newer,
                                                 std::size_t pipelines) {
  std::vector<std::vector<DeviceId>> all(pipelines);
  std::size_t next_newer = 0, next_older = 0;
  for (std::vector<DeviceId>& devices : all) {
    for (const bool is_newer : newer) {
      devices.push_back(is_newer ? roles.attention[next_newer++] : roles.experts[next_older++]);
    }
  }
  return all;
}

/// How layers and types are laid along a pipeline.
struct Layout {
  std::vector<bool> newer;  ///< [stage] of the newer type
  std::vector<i64> split;   ///< [stage] layers
};

class PipelineTuner {
 public:
  PipelineTuner(Predictor& predictor, const Setting& setting)
      : predictor_(predictor),
        setting_(setting),
        roles_(default_roles(predictor.cluster())),
        pipelines_(std::gcd(roles_.attention.size(), roles_.experts.size())),
        stages_((roles_.attention.size() + roles_.experts.size()) / pipelines_) {}

  Tuned run() {
    Tuned best;
    const i64 layers = predictor_.model().num_layers;
    if (layers < static_cast<i64>(stages_)) {
      best.infeasible = fmt::format("{} layers are fewer than the {} stages of a pipeline", layers, stages_);
      return best;
    }
    for (const Plan& plan : shortlist(best.infeasible)) {
      Prediction prediction = predictor_.predict(plan);
      if (best.plan.groups.empty() || prediction.step < best.prediction.step) {
        best = {plan, std::move(prediction), {}, ""};
      }
    }
    return best;
  }

 private:
  /// The best plans by a single pipeline alone: the pipelines are equal and meet only in the reduction.
  std::vector<Plan> shortlist(std::string& infeasible) {
    std::vector<std::pair<Seconds, Plan>> ranked;
    const i64 each = setting_.sequences / static_cast<i64>(pipelines_);
    for (const Layout& layout : layouts()) {
      for (const i64 count : microbatch_counts(each, 1)) {
        std::string over;
        std::optional<Plan> plan = with_room(predictor_, setting_, make(layout, count), over);
        if (!plan) {
          if (infeasible.empty()) infeasible = over;
          break;  // fewer and larger microbatches need more
        }
        Plan single = *plan;
        single.groups.resize(1);
        ranked.emplace_back(predictor_.predict(single).step, std::move(*plan));
      }
    }
    std::stable_sort(ranked.begin(), ranked.end(), [](auto& a, auto& b) { return a.first < b.first; });
    std::vector<Plan> plans;
    for (std::size_t i = 0; i < std::min(ranked.size(), kShortlist); ++i) {
      plans.push_back(std::move(ranked[i].second));
    }
    return plans;
  }

  std::vector<Layout> layouts() const {
    std::vector<Layout> all;
    const auto older = static_cast<std::ptrdiff_t>(roles_.experts.size() / pipelines_);
    std::vector<bool> newer(stages_, true);
    std::fill(newer.begin(), newer.begin() + older, false);
    do {
      std::vector<i64> split;
      for_each_split(predictor_.model().num_layers, stages_, split, [&](const std::vector<i64>& s) {
        all.push_back({newer, s});
      });
    } while (std::next_permutation(newer.begin(), newer.end()));
    return all;
  }

  Plan make(const Layout& layout, i64 microbatches) const {
    Plan plan;
    plan.strategy = "pp";
    plan.model = predictor_.model().name;
    plan.seq_len = setting_.seq_len;
    plan.order = OrderPolicy::kOneFOneB;
    plan.dtype.resize(static_cast<std::size_t>(predictor_.cluster().num_devices()));
    apply(setting_, plan);
    plan.shard_optimizer = setting_.published;
    const std::vector<i64> sequences =
        proportional_split(setting_.sequences, std::vector<double>(pipelines_, 1));
    const auto devices = stage_devices(roles_, layout.newer, pipelines_);
    for (std::size_t p = 0; p < pipelines_; ++p) {
      const std::vector<i64> sizes =
          proportional_split(sequences[p], std::vector<double>(static_cast<std::size_t>(microbatches), 1));
      plan.groups.push_back(make_pipeline(predictor_.model(), devices[p], layout.split, sizes));
    }
    return plan;
  }

  static constexpr std::size_t kShortlist = 3;
  Predictor& predictor_;
  const Setting& setting_;
  Roles roles_;
  std::size_t pipelines_, stages_;
};

}  // namespace

Tuned tune_pp(Predictor& predictor, const Setting& setting) {
  return PipelineTuner(predictor, setting).run();
}

}  // namespace hetermoe
