#pragma once
#include <span>
#include <vector>

#include "hetermoe/plan/plan.h"

namespace hetermoe {

struct MicrobatchRef {
  i32 group = 0, microbatch = 0;
  bool operator==(const MicrobatchRef&) const = default;
};

/// The load-balancing loss couples microbatches, perhaps of several groups: the smallest runs of microbatches
/// that hold whole load-balancing groups.
class BalanceSets {
 public:
  /// None: the loss is off.
  BalanceSets() = default;
  /// aux_group: sequences of a load-balancing group. A set closes where such a group ends exactly at the end
  /// of a microbatch.
  BalanceSets(const Plan& plan, i64 aux_group);

  i32 size() const { return static_cast<i32>(begin_.size()) - 1; }
  std::span<const MicrobatchRef> operator[](i32 set) const {
    const auto s = static_cast<std::size_t>(set);
    return {members_.data() + begin_[s], members_.data() + begin_[s + 1]};
  }
  /// The set of a microbatch; -1 with the loss off, or when no load-balancing group ends with the step.
  i32 of(i32 group, i32 microbatch) const {
    return set_of_.empty() ? -1
                           : set_of_[static_cast<std::size_t>(group)][static_cast<std::size_t>(microbatch)];
  }
  /// The set that a microbatch is in, which has one.
  std::span<const MicrobatchRef> with(i32 group, i32 microbatch) const {
    return (*this)[of(group, microbatch)];
  }

 private:
  std::vector<MicrobatchRef> members_;    // of all sets, one after another
  std::vector<i64> begin_ = {0};          // [set + 1] into members_
  std::vector<std::vector<i32>> set_of_;  // [group][microbatch]
};

}  // namespace hetermoe
