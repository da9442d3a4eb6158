#include "hetermoe/base/hash.h"
#include "hetermoe/exec/parameter_store.h"

namespace hetermoe {

/// Replicas and parts of a state draw the same numbers when they round.
AdamwState ParameterStore::moments_of(const StateTensors& state) const {
  AdamwState moments = make_adamw_state(state.own_values(), options_.optimizer);
  const State& s = state.state;
  moments.rounding_key = Fnv().add(s.part).add(s.layer).add(s.experts.empty() ? -1 : s.experts[0]).value();
  for (const at::Tensor& value : state.values)
    moments.first.push_back(part_range(value.numel(), state.part, state.parts).begin);
  return moments;
}

}  // namespace hetermoe
