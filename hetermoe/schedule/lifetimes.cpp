#include "hetermoe/schedule/lifetimes.h"

#include <algorithm>

#include "hetermoe/ops/buffer_index.h"

namespace hetermoe {
namespace {

class Recorder {
 public:
  Recorder(const Schedule& schedule, const Placement& placement)
      : schedule_(schedule),
        placement_(placement),
        index_(placement),
        current_(static_cast<std::size_t>(schedule.num_places()) * kNumBuffers) {}

  Lifetimes run() {
    for (OpId op = 0; op < schedule_.num_ops(); ++op) {
      for (const LaneId lane : schedule_.lanes_of(op)) record(op, device_of(lane));
    }
    return std::move(out_);
  }

 private:
  void record(OpId op, DeviceId device) {
    const auto first = static_cast<std::ptrdiff_t>(out_.uses.size());
    touched_.clear();
    accesses(schedule_.ops[static_cast<std::size_t>(op)], device, placement_, touched_);
    for (const Access& access : touched_) {
      if (outlives_step(access.buffer())) continue;
      i32& epoch = epoch_of(access, op, device);
      out_.uses.push_back(epoch);
      if (access.mode == Mode::kTake) epoch = -1;
    }
    std::sort(out_.uses.begin() + first, out_.uses.end());
    out_.uses.erase(std::unique(out_.uses.begin() + first, out_.uses.end()), out_.uses.end());
    for (auto use = out_.uses.begin() + first; use != out_.uses.end(); ++use) {
      ++out_.epochs[static_cast<std::size_t>(*use)].num_ops;
    }
    out_.use_begin.push_back(static_cast<i64>(out_.uses.size()));
  }

  i32& epoch_of(const Access& access, OpId op, DeviceId device) {
    std::vector<i32>& of_device =
        current_[static_cast<std::size_t>(device) * kNumBuffers + static_cast<std::size_t>(access.buffer())];
    if (of_device.empty()) of_device.assign(index_.size(access.buffer()), -1);
    i32& epoch = of_device[index_(access.key)];
    // A write begins a new life; the first add does too.
    if (epoch < 0 || access.mode == Mode::kWrite) {
      epoch = static_cast<i32>(out_.epochs.size());
      out_.epochs.push_back({access.key, device, op, 0});
    }
    return epoch;
  }

  const Schedule& schedule_;
  const Placement& placement_;
  BufferIndex index_;
  std::vector<std::vector<i32>> current_;  // [device * kNumBuffers + buffer][index] epoch, -1 = none yet
  std::vector<Access> touched_;
  Lifetimes out_;
};

}  // namespace

Lifetimes make_lifetimes(const Schedule& schedule, const Placement& placement) {
  return Recorder(schedule, placement).run();
}

}  // namespace hetermoe
