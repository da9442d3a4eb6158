#include <algorithm>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/schedule/placement.h"

// Who takes part in a transfer.
namespace hetermoe {

std::vector<DeviceId> Placement::participants(const Op& op) const {
  std::set<DeviceId> all;
  const auto add = [&](const ShareRow& row) {
    for (const Share& share : row) all.insert(share.device);
  };
  switch (traits(op.kind).participants) {
    case Participants::kOneDevice:
    case Participants::kMovers:
      HM_CHECK(false, "{} is not a transfer of a step", to_string(op));
      break;
    case Participants::kExchange:
      return in_exchange(op);
    case Participants::kOwners:
      return owners(op.group, op.layer);
    case Participants::kStateDevices:
      return states_[idx(op.state)].reducers();
    case Participants::kWithHost:
      return {op.device, host_of(op.device)};
    case Participants::kBothShares:
      add(move_rows(op).from);
      add(move_rows(op).to);
      break;
    case Participants::kBalanceSet:
      for (const MicrobatchRef& member : balance_set(balance_set_of(op.group, op.microbatch))) {
        for (i32 l = 0; l < num_layers_; ++l) {
          if (!is_moe(l)) continue;
          add(shares(member.group, l, member.microbatch));
          if (options_.backward) add(shares(member.group, l, member.microbatch, Phase::kBackward));
        }
      }
      break;
    case Participants::kStateHolders:
      for (PlaceId place = 0; place < num_places(); ++place) {
        if (!states_on(place).empty()) all.insert(place);
      }
      break;
  }
  return {all.begin(), all.end()};
}

bool Placement::trains(i32 layer, ExpertId expert) const {
  const auto [begin, end] = states_of(UnitPart::kExperts, layer);
  for (i32 state = begin; state < end; ++state) {
    const std::vector<ExpertId>& experts = states_[idx(state)].experts;
    if (std::find(experts.begin(), experts.end(), expert) != experts.end()) return trains(state);
  }
  return false;
}

}  // namespace hetermoe
