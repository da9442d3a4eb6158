#include "fuzz/target.h"

namespace hetermoe::fuzz {

extern const Target kJob, kSafetensors, kCheckpoint, kWire, kParcel, kReceived;

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {kJob, kSafetensors, kCheckpoint, kWire, kParcel, kReceived};
  return all;
}

}  // namespace hetermoe::fuzz
