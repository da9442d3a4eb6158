#include "hetermoe/placement/balance_sets.h"

#include "hetermoe/base/index.h"

namespace hetermoe {

BalanceSets::BalanceSets(const Plan& plan, i64 aux_group) {
  i64 sequences = 0;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const std::vector<i64>& microbatches = plan.groups[g].microbatches;
    set_of_.emplace_back(microbatches.size(), -1);
    for (std::size_t m = 0; m < microbatches.size(); ++m) {
      members_.push_back({static_cast<i32>(g), static_cast<i32>(m)});
      sequences += microbatches[m];
      if (sequences % aux_group == 0) begin_.push_back(static_cast<i64>(members_.size()));
    }
  }
  for (i32 set = 0; set < size(); ++set)
    for (const MicrobatchRef& member : (*this)[set]) set_of_[idx(member.group)][idx(member.microbatch)] = set;
}

}  // namespace hetermoe
