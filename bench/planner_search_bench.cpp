#include <cstdio>
#include <cstdlib>
#include <map>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/request_check.h"
#include "hetermoe/planner/search/blocks.h"
#include "tests/support/random_request.h"

// Looks for plans that beat the planner's: random clusters of 2 to 4 types and 8 to 512 devices, four models.
// Against each plan: the planner with a prefix of a type left out, all microbatches halved or doubled in
// number, groups split or joined by hand. Usage: planner_search_bench [first seed] [clusters]
namespace hetermoe {
namespace {

/// The fastest rival of a plan, over its throughput.
struct Rival {
  double ratio = 0;
  std::string move;

  void consider(double rate, double of_plan, const std::string& what) {
    if (rate / of_plan > ratio) ratio = rate / of_plan, move = what;
  }
};

double rate_of(const PlanRequest& request, const Plan& plan) {
  if (!overfilled_device(estimate_memory(plan, request.model, {}, {}, request.routing.margin),
                         request.cluster)
           .empty())
    return 0;
  if (!validate(plan, request.model, request.cluster).empty()) return 0;
  return Predictor(request.model, request.cluster, request.software).predict(plan).tokens_per_s;
}

void leave_out(const PlanRequest& request, double best, Rival& rival) {
  for (std::size_t t = 0; t < request.cluster.types.size(); ++t) {
    const std::vector<DeviceId> all = request.cluster.devices_of_type(static_cast<i32>(t));
    for (const std::size_t kept : {std::size_t{0}, all.size() / 4, all.size() / 2, 3 * all.size() / 4}) {
      PlanRequest fewer = request;
      fewer.limits.idle.assign(all.begin() + static_cast<std::ptrdiff_t>(kept), all.end());
      if (fewer.limits.idle.size() == request.cluster.devices.size()) continue;
      const PlanResult result = find_plan(fewer);
      if (!result.feasible()) continue;
      rival.consider(result.best().prediction.tokens_per_s, best,
                     fmt::format("{} of {} {}", kept, all.size(), request.cluster.types[t].name));
    }
  }
}

Shares halved(const Shares& shares, bool& even) {
  Shares out = shares;
  for (ShareRow& row : out) {
    for (Share& share : row) even = even && share.sequences % 2 == 0, share.sequences /= 2;
  }
  return out;
}

/// Twice as many microbatches of half the size, where all sizes and shares are even.
void double_microbatches(const PlanRequest& request, const Plan& plan, double best, Rival& rival) {
  Plan next = plan;
  bool even = true;
  for (Group& group : next.groups) {
    std::vector<i64> sizes;
    for (const i64 size : group.microbatches) {
      even = even && size % 2 == 0;
      sizes.insert(sizes.end(), 2, size / 2);
    }
    if (group.embed.size() > 1) return;
    group.microbatches = sizes;
    group.embed = halved(group.embed, even);
    group.head = halved(group.head, even);
    for (LayerPlacement& layer : group.layers) layer.attention = halved(layer.attention, even);
  }
  if (even) rival.consider(rate_of(request, next), best, "twice the microbatches");
}

Blocks blocks_of_plan(const Rates& rates, const Plan& plan) {
  std::map<DeviceId, std::size_t> class_of;
  for (std::size_t c = 0; c < rates.num_classes(); ++c) {
    for (const DeviceId device : rates.classes()[c].devices) class_of[device] = c;
  }
  Blocks blocks;
  for (const Group& group : plan.groups) {
    Shape shape(rates.num_classes(), 0);
    for (const DeviceId device : group.devices) ++shape[class_of[device]];
    if (!blocks.empty() && blocks.back().shape == shape)
      ++blocks.back().groups;
    else
      blocks.push_back({shape, 1});
  }
  return blocks;
}

void split_and_join(const PlanRequest& request, const Plan& plan, double best, Rival& rival) {
  const Rates rates(request);
  GroupChoice choice(rates);
  const Blocks blocks = blocks_of_plan(rates, plan);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    for (const bool split : {true, false}) {
      Blocks next = blocks;
      for (i64& count : next[b].shape) count = split ? count / 2 : count * 2;
      next[b].groups = split ? next[b].groups * 2 : next[b].groups / 2;
      if (next[b].groups == 0) continue;
      if (sum_of(next[b].shape) == 0) continue;
      for (const i32 window : {1, 2, 4, 0}) {
        for (const Recompute recompute : {Recompute::kLocal, Recompute::kOff}) {
          const std::optional<Sketch> sketch = make_sketch(rates, choice, {window, recompute}, next);
          if (!sketch) continue;
          rival.consider(rate_of(request, realize(rates, *sketch)), best,
                         split ? "groups split" : "groups joined");
        }
      }
    }
  }
}

Rival strongest_rival(const PlanRequest& request, const PlanResult& result) {
  const double best = result.best().prediction.tokens_per_s;
  Rival rival;
  leave_out(request, best, rival);
  double_microbatches(request, result.best().plan, best, rival);
  split_and_join(request, result.best().plan, best, rival);
  return rival;
}

}  // namespace
}  // namespace hetermoe

int main(int argc, char** argv) {
  using namespace hetermoe;
  const u64 first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const u64 clusters = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 200;
  int beaten = 0, plans = 0;
  double worst = 0;
  for (u64 seed = first; seed < first + clusters; ++seed) {
    hetermoe::testing::RequestSizes sizes;
    sizes.least_types = 2, sizes.types = 4, sizes.nodes = 16;
    sizes.per_node = {4, 8};
    sizes.models = {"d1", "w1", "olmoe-1b-7b", "qwen3-30b-a3b"};
    sizes.sequences = 1024;
    const PlanRequest request = checked(hetermoe::testing::random_request(seed, sizes));
    const PlanResult result = find_plan(request);
    if (!result.feasible()) continue;
    ++plans;
    const Rival rival = strongest_rival(request, result);
    worst = std::max(worst, rival.ratio);
    beaten += rival.ratio > 1.02;
    if (rival.ratio > 1.005) {
      std::printf("seed %llu: %s on %d devices, %lld sequences of %lld: %.4f by %s; %s\n",
                  static_cast<unsigned long long>(seed), request.model.name.c_str(),
                  request.cluster.num_devices(), static_cast<long long>(request.sequences),
                  static_cast<long long>(request.seq_len), rival.ratio, rival.move.c_str(),
                  result.best().name.c_str());
      std::fflush(stdout);
    }
  }
  std::printf("%d plans (simulated), %d beaten by more than 2 %%, worst ratio %.4f\n", plans, beaten, worst);
  return beaten == 0 ? 0 : 1;
}
