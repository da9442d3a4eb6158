#include "hetermoe/timeline/timeline.h"

#include "fuzz/target.h"

// A timeline.json, and the trace that is made of it.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  const Timeline timeline = timeline_from_json(parse_json(input, "timeline.json"), "timeline.json");
  const Json written = to_json(timeline);
  expect_same(written.dump(), to_json(timeline_from_json(written, "written")).dump(), "a timeline");
  busy_share(timeline);
  perfetto_trace(timeline).dump();
}

/// Three ops on two devices.
std::vector<std::string> seeds() {
  Timeline timeline;
  timeline.source = "simulated";
  timeline.title = "zebra of tiny on demo";
  timeline.devices = {{.name = "A40#0", .type = "A40", .role = "attention"},
                      {.name = "V100#1", .type = "V100", .role = "expert"}};
  timeline.ops = {
      {.kind = "attention", .phase = "F", .layer = 0, .microbatch = 0, .group = 0, .queue = "compute"},
      {.kind = "dispatch", .phase = "F", .layer = 0, .microbatch = 0, .group = 0, .queue = "to_expert"},
      {.kind = "norm", .phase = "", .layer = -1, .microbatch = -1, .group = 0, .queue = "reduce"}};
  timeline.spans = {{.op = 0, .device = 0, .start = 0, .end = 0.5},
                    {.op = 1, .device = 0, .start = 0.5, .end = 0.75},
                    {.op = 1, .device = 1, .start = 0.5, .end = 0.75},
                    {.op = 2, .device = 1, .start = 0.75, .end = 1}};
  timeline.step = 1;
  sort_spans(timeline);
  return {to_json(timeline).dump(), to_json(timeline).dump(1)};
}

}  // namespace

extern const Target kTimeline{"timeline", run, seeds};

}  // namespace hetermoe::fuzz
