#include "hetermoe/train/run/parts.h"
#include "hetermoe/train/session/presence.h"

namespace hetermoe {
namespace {

class PresencePart : public RunPart {
 public:
  PresencePart(const RunState& run, const std::vector<DeviceId>& devices)
      : presence_(run.job.output, run.processes.rank(), devices) {}

 private:
  Presence presence_;
};

}  // namespace

std::unique_ptr<RunPart> presence_part(RunState& run) {
  if (run.checkpoints == Checkpoints::kOff || run.processes.alone()) return nullptr;
  std::vector<DeviceId> devices = run.session->local();  // and hosts, which go with their devices
  std::erase_if(devices, [&](DeviceId device) { return device >= run.cluster.num_devices(); });
  return std::make_unique<PresencePart>(run, devices);
}

}  // namespace hetermoe
