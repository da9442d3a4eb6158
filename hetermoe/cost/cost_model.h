#pragma once
#include <span>
#include <vector>

#include "hetermoe/base/index.h"
#include "hetermoe/ops/work.h"
#include "hetermoe/schedule/schedule.h"

// One question: seconds of this op on this device for this much work, alone on its links. The virtual clock
// of the executor and the simulator ask it alike; only the simulator adds contention.
namespace hetermoe {

/// A transfer is one exchange, or several one after another, which TwoLevel makes of it.
struct TransferWork {
  Op op;
  std::span<const DeviceId> participants;
  std::span<const PortBytes> bytes;  ///< [exchange][participants]
  std::size_t num_exchanges() const { return bytes.size() / participants.size(); }
  std::span<const PortBytes> of_exchange(std::size_t i) const {
    return bytes.subspan(i * participants.size(), participants.size());
  }
};

/// A transfer keeps port `port` busy for `seconds` when it has the port to itself.
struct PortLoad {
  i32 port;  ///< number of the Network
  Seconds seconds;
  i32 copies = 1;  ///< folded schedules: so many transfers that do the same at the same time use the port
};

struct TransferCost {
  Seconds latency = 0;  ///< with what several exchanges cost beyond the busiest port of all together
  std::vector<PortLoad> loads;
  Seconds seconds() const;  ///< latency + the busiest port
};

class CostModel {
 public:
  virtual ~CostModel() = default;
  virtual Seconds compute(const ComputeWork& work) const = 0;
  virtual TransferCost transfer(const TransferWork& work) const = 0;
  /// Share of a device's compute speed that is lost while a transfer of that device is active; contention, so
  /// only the simulator applies it.
  virtual double interference(DeviceId /*device*/) const { return 0; }
};

}  // namespace hetermoe
