#include "fuzz/target.h"

namespace hetermoe::fuzz {

extern const Target kJob, kSafetensors, kHfFolder, kCheckpoint, kWire, kReceived;

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {kJob, kSafetensors, kHfFolder, kCheckpoint, kWire, kReceived};
  return all;
}

}  // namespace hetermoe::fuzz
