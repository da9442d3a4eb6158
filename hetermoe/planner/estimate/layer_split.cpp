#include "hetermoe/planner/estimate/layer_split.h"

#include <algorithm>
#include <limits>

#include "hetermoe/base/index.h"

namespace hetermoe {

std::vector<i64> split_layers(i64 layers, i64 stages,
                              const std::function<std::optional<double>(const LayerRun&)>& cost) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (stages < 1 || layers < stages) return {};
  // [first layer] of the stages from the current one on: the largest cost, and the current stage's layers.
  std::vector<double> later(idx(layers) + 1, kNone), here;
  later.back() = 0;
  std::vector<std::vector<i64>> chosen(idx(stages), std::vector<i64>(idx(layers) + 1, 0));
  for (i64 stage = stages - 1; stage >= 0; --stage) {
    here.assign(idx(layers) + 1, kNone);
    // Every stage before and after has a layer, too.
    for (i64 first = stage; first <= layers - (stages - stage); ++first) {
      for (i64 count = 1; first + count <= layers - (stages - stage - 1); ++count) {
        const std::optional<double> alone = cost({stage, first, count});
        if (!alone) break;
        const double with_later = std::max(*alone, later[idx(first + count)]);
        if (with_later < here[idx(first)])
          here[idx(first)] = with_later, chosen[idx(stage)][idx(first)] = count;
        if (*alone >= here[idx(first)]) break;  // longer runs cost no less
      }
    }
    std::swap(here, later);
  }
  std::vector<i64> split;
  if (later[0] == kNone) return split;
  for (i64 stage = 0, first = 0; stage < stages; first += split.back(), ++stage)
    split.push_back(chosen[idx(stage)][idx(first)]);
  return split;
}

}  // namespace hetermoe
