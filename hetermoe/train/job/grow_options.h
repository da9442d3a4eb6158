#pragma once
#include <string>

#include "hetermoe/model/growth.h"

namespace hetermoe {

/// Growth of experts in mid-run, as a job names it.
struct GrowOptions {
  i64 at = 0, factor = 2;
  GrowthMode mode = GrowthMode::kFixedK;
  GrowthScore score = GrowthScore::kUniform;
  std::string counts;
  i64 batches = 10, cap = 3;
  double noise = 1e-3;
  std::optional<GrownMoments> moments;
  std::string cluster, plan;
  i64 narrow_to = 0, narrow_every = 10;
  template <class V>
  void fields(V& v) {
    v("at", at,
      "`train` only: after so many steps the experts of each layer grow (docs/growth.md), 0 = never. Needs "
      "checkpoint.every",
      at_least(0));
    v("factor", factor, "so many times as many experts", at_least(1));
    v("mode", mode,
      "fixed-k: top-k stays, the loss jumps; wide-k: top-k grows, the same function; dormant: copies sleep "
      "(routers with a choice bias), the same function; random: new experts are drawn, the control");
    v("score", score, "which experts get copies");
    v("counts", counts, "a routing trace, for score load");
    v("batches", batches, "of the data that come next, for scores by gradients", at_least(1));
    v("cap", cap, "copies of one expert before the next best is looked at", at_least(1));
    v("noise", noise, "half-width of what is added to the logits of copies, 0 = none", between(0, 1));
    v("moments", moments, "what becomes of the optimizer's moments; null = what fits the mode");
    v("cluster", cluster, "the cluster from then on; empty = the same");
    v("plan", plan, "a plan.json for the grown model; empty = the strategy makes it");
    v("narrow_to", narrow_to,
      "mode wide-k: after growth top-k falls by one expert at a time down to this, 0 = it stays wide",
      at_least(0));
    v("narrow_every", narrow_every, "steps from growth to the first fall of top-k, and between two",
      at_least(1));
  }
};

}  // namespace hetermoe
