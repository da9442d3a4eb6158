#include "hetermoe/train/job/clock_choice.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "hetermoe/timeline/timeline.h"

namespace hetermoe {
namespace {

/// Names of the types of a cluster's GPUs, in the order of its devices.
std::vector<std::string> gpus_of(const Cluster& cluster) {
  std::vector<std::string> out;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const DeviceType& type = cluster.type_of(d);
    const bool is_new = std::find(out.begin(), out.end(), type.name) == out.end();
    if (type.compute_capability > 0 && is_new) out.push_back(type.name);
  }
  return out;
}

bool stands_for_gpus(const Job& job, const Cluster& cluster) {
  return job.run.device == "cpu" && !gpus_of(cluster).empty();
}

}  // namespace

ClockKind usual_clock(const Job& job) {
  try {
    return stands_for_gpus(job, load_cluster(job.cluster)) ? ClockKind::kVirtual : ClockKind::kReal;
  } catch (const Error&) {
    return ClockKind::kReal;  // a cluster that cannot be read is told where it is needed
  }
}

std::string foreign_times(const Job& job, const Cluster& cluster) {
  if (job.clock.kind != ClockKind::kReal || !stands_for_gpus(job, cluster)) return "";
  return fmt::format("{}{}", kOnThisCpu, fmt::join(gpus_of(cluster), ", "));
}

std::string clock_note(const Job& job, const Cluster& cluster) {
  if (!stands_for_gpus(job, cluster)) return "";
  if (const std::string foreign = foreign_times(job, cluster); !foreign.empty())
    return fmt::format("times are {} (clock.kind real)", foreign);
  return fmt::format("times are emulated, those of {} by the cost model: this CPU computes (clock.kind {})",
                     fmt::join(gpus_of(cluster), ", "),
                     job.clock.kind == ClockKind::kPaced ? "paced" : "virtual");
}

}  // namespace hetermoe
