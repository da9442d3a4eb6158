#include "fuzz/target.h"

namespace hetermoe::fuzz {

extern const Target kModel, kCluster, kHostfile, kPlan, kScheduleText, kTimeline, kProfile, kRoutingTrace,
    kTokenFiles, kJsonLines, kChatLines, kChatTemplate, kHfTokenizer;

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
      kModel,        kCluster,    kHostfile,  kPlan,      kScheduleText, kTimeline,   kProfile,
      kRoutingTrace, kTokenFiles, kJsonLines, kChatLines, kChatTemplate, kHfTokenizer};
  return all;
}

}  // namespace hetermoe::fuzz
