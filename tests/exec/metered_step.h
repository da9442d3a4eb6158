#pragma once
#include "hetermoe/cost/roofline.h"
#include "tests/support/rig.h"

namespace hetermoe::testing {

/// A step of a plan on the virtual clock, with what each place held at most.
struct MeteredStep {
  MeteredStep(const ModelConfig& model, const Cluster& cluster, const Plan& plan)
      : cost(model, cluster, plan), rig(model, cluster, plan, options()) {
    rig.load(lively_values(model));
    rig.executor().run(random_input(plan, model));
  }

  /// [num_places] without the state that outlives the step.
  std::vector<Bytes> peaks() { return meter.peaks(rig.executor().timeline(), rig.schedule().num_places()); }

  RooflineCost cost;
  MemoryMeter meter;
  Rig rig;

 private:
  RigOptions options() {
    RigOptions all;
    all.executor.clock = ClockKind::kVirtual;
    all.executor.truth = &cost;
    all.executor.memory = &meter;
    return all;
  }
};

}  // namespace hetermoe::testing
