#include "hetermoe/placement/op.h"

namespace hetermoe {
namespace {

constexpr bool names_every_queue() {
  for (i32 queue = 0; queue < kNumQueues; ++queue) {
    if (std::find(kQueueOrder.begin(), kQueueOrder.end(), static_cast<Queue>(queue)) == kQueueOrder.end())
      return false;
  }
  return true;
}
static_assert(names_every_queue(), "kQueueOrder holds every queue");

}  // namespace

const std::vector<std::string>& EnumNames<OpKind>::names() {
#define HM_NAME(kind, name) #name,
  static const std::vector<std::string> all = names_of_all<OpKind>({HM_OP_KINDS(HM_NAME)});
#undef HM_NAME
  return all;
}
const std::vector<std::string>& EnumNames<Phase>::names() {
  static const std::vector<std::string> all = names_of_all<Phase>({"F", "B", "R", "W"});
  return all;
}
const std::vector<std::string>& EnumNames<Queue>::names() {
  static const std::vector<std::string> all =
      names_of_all<Queue>({"compute", "to_expert", "to_attention", "move", "reduce", "guests", "move_back",
                           "move_saved", "sequence", "to_device", "to_host"});
  return all;
}

std::string lane_name(LaneId lane) {
  const std::string& queue = name_of(queue_of(lane));
  return link_of(lane) == 0 ? queue : fmt::format("{} {}", queue, link_of(lane));
}

}  // namespace hetermoe
