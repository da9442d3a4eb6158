#include "fuzz/target.h"

namespace hetermoe::fuzz {

extern const Target kJob, kSafetensors, kCheckpoint, kWire, kReceived;

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {kJob, kSafetensors, kCheckpoint, kWire, kReceived};
  return all;
}

}  // namespace hetermoe::fuzz
