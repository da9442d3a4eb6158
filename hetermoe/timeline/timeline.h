#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/base/types.h"

// The common output of simulator and executor: one span per (op, device).
namespace hetermoe {

struct Span {
  OpId op = 0;
  DeviceId device = 0;
  Seconds start = 0, end = 0;  ///< since the start of the step
};

/// Data with which a reader draws a span without the schedule.
struct TimelineOp {
  std::string kind;   ///< "attention", "dispatch", ...
  std::string phase;  ///< "F", "B", "R" (recompute) or "" (reduce, norm, update)
  i32 layer = -1, microbatch = -1, group = 0;
  std::string queue;             ///< of its lane, by lane_name(): compute, to_expert, "to_device 3"
  std::vector<OpId> after = {};  ///< ops that had to end before, beyond those earlier on its lanes
};

struct TimelineDevice {
  std::string name;    ///< "A40#0"
  std::string type;    ///< "A40"
  std::string role;    ///< attention, expert, both, idle
  i64 stands_for = 1;  ///< devices that do the same, itself included: more in listed_timeline() alone
};

/// Begins what Timeline::source says of times that a processor took in the place of GPUs: these follow.
inline constexpr const char* kOnThisCpu = "measured on this CPU, not on ";

struct Timeline {
  std::string source;  ///< "simulated", "executed (virtual clock, emulated)", "executed (paced clock,
                       ///< emulated)", "executed", "executed (measured on this CPU, not on A40)"
  std::string title;   ///< strategy, model and cluster, for people
  Seconds step = 0;    ///< end of the last span; where steps overlap what each adds to a run, which is less
  std::vector<TimelineDevice> devices;
  std::vector<TimelineOp> ops;  ///< by OpId
  std::vector<Span> spans;      ///< sorted by (device, queue of the op, start)
};

/// From the beginning of the step to the end of its last span: more than Timeline::step where steps overlap.
Seconds end_of_step(const Timeline& timeline);

/// Whether a run begins the next step before this one ends.
bool steps_overlap(const Timeline& timeline);

/// Puts spans in the order that Timeline::spans promises. Queues order as compute, to_expert, to_attention,
/// move, reduce.
void sort_spans(Timeline& timeline);

/// Ops and spans are arrays of columns, named once, so that the file stays small and readable.
Json to_json(const Timeline& timeline);

/// Checks types, ids and times, and sorts the spans. Throws ConfigError that names the place, as `where` +
/// "spans[3]".
Timeline timeline_from_json(const Json& json, const std::string& where);

/// A file with one line per device, op and span.
void save_timeline(const std::filesystem::path& path, const Timeline& timeline);
Timeline load_timeline(const std::filesystem::path& path);

/// Time a device's compute lane is busy, divided by the step. [num_devices]; zeros when the step is 0.
std::vector<double> busy_share(const Timeline& timeline);

/// One Chrome/Perfetto trace of all devices: a process per device, a thread per queue. Times are in
/// microseconds. Layer and microbatch are left out where an op has none.
Json perfetto_trace(const Timeline& timeline);

}  // namespace hetermoe
