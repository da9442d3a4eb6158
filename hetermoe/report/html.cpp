#include "hetermoe/report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hetermoe/report/escape.h"
#include "hetermoe/report/html_steps.h"
#include "hetermoe/report/page.h"
#include "hetermoe/report/waits_text.h"

// What the script finds in report_data():
//
//   strategies: [{
//     name, note,
//     elsewhere                                true: executed times are those of a processor in the place of
//     GPUs steps:   {simulated, executed}           seconds, null when absent devices: [{name, type, role,
//     used, capacity}]   used, capacity: bytes, null when unknown order:   [device, ...] top to bottom
//     simulated, executed: null or {
//       source, step,                          step in seconds
//       ops:   [[kind, phase, layer, microbatch, queue, group], ...]   kind and queue are indices of the
//       lists
//                                              below. The executed side has null here when its ops are those
//                                              of the simulated side.
//       spans: [op, device, start, duration, ...]   flat, nanoseconds
//       uses:  [{label, devices, computing, transferring, waiting: [[label, share]], overhead, finished}],
//       longest_wait, critical_path            sentences
//     }
//   }], kinds: [...], queues: [...]
namespace hetermoe {
namespace {

/// Position of `text` in `names`, appended when new.
std::size_t intern(std::vector<std::string>& names, const std::string& text) {
  const auto found = std::find(names.begin(), names.end(), text);
  const auto index = static_cast<std::size_t>(found - names.begin());
  if (found == names.end()) names.push_back(text);
  return index;
}

struct Names {
  std::vector<std::string> kinds, queues;
};

Json ops_json(const Timeline& timeline, Names& names) {
  Json ops = Json::array();
  for (const TimelineOp& op : timeline.ops) {
    ops.push_back(Json::array({intern(names.kinds, op.kind), op.phase, op.layer, op.microbatch,
                               intern(names.queues, op.queue), op.group}));
  }
  return ops;
}

i64 nanoseconds(Seconds time) { return std::llround(time * 1e9); }

/// device_of: place of each of the timeline's devices in the strategy's list.
Json spans_json(const Timeline& timeline, const std::vector<std::size_t>& device_of) {
  Json flat = Json::array();
  for (const Span& span : timeline.spans) {
    flat.push_back(span.op);
    flat.push_back(device_of[static_cast<std::size_t>(span.device)]);
    flat.push_back(nanoseconds(span.start));
    flat.push_back(nanoseconds(span.end) - nanoseconds(span.start));
  }
  return flat;
}

Json uses_json(const std::vector<GroupUse>& uses) {
  Json out = Json::array();
  for (const GroupUse& use : uses) {
    Json waiting = Json::array();
    for (const Wait& wait : use.waiting)
      waiting.push_back({wait.kind + " on " + uses[wait.group].group.label(), wait.share});
    out.push_back({{"label", use.group.label()},
                   {"devices", use.group.devices.size()},
                   {"computing", use.computing},
                   {"transferring", use.transferring},
                   {"waiting", waiting},
                   {"overhead", use.overhead},
                   {"finished", use.finished}});
  }
  return out;
}

bool same_ops(const Timeline& a, const Timeline& b) {
  return std::equal(a.ops.begin(), a.ops.end(), b.ops.begin(), b.ops.end(),
                    [](const TimelineOp& x, const TimelineOp& y) {
                      return x.kind == y.kind && x.phase == y.phase && x.layer == y.layer &&
                             x.microbatch == y.microbatch && x.group == y.group && x.queue == y.queue;
                    });
}

/// The data of one timeline. `like` is a timeline whose ops are in the page already, or null; equal ops are
/// not written again. `devices` is the list of the strategy, to which this adds devices that it does not name
/// yet.
Json timeline_data(const Timeline& timeline, const Timeline* like, std::vector<TimelineDevice>& devices,
                   Names& names) {
  std::vector<std::size_t> device_of;
  for (const TimelineDevice& device : timeline.devices) {
    const auto found = std::find_if(devices.begin(), devices.end(),
                                    [&](const TimelineDevice& d) { return d.name == device.name; });
    device_of.push_back(static_cast<std::size_t>(found - devices.begin()));
    if (found == devices.end()) devices.push_back(device);
  }
  const std::vector<GroupUse> uses = group_use(timeline);
  return {{"source", timeline.source},
          {"step", timeline.step},
          {"ops", like != nullptr && same_ops(*like, timeline) ? Json(nullptr) : ops_json(timeline, names)},
          {"spans", spans_json(timeline, device_of)},
          {"uses", uses_json(uses)},
          {"longest_wait", longest_wait_text(uses)},
          {"critical_path", critical_path_text(critical_path(timeline))}};
}

Json device_data(const TimelineDevice& device, const std::vector<DeviceMemory>& memories) {
  const auto memory = std::find_if(memories.begin(), memories.end(),
                                   [&](const DeviceMemory& m) { return m.device == device.name; });
  const bool is_known = memory != memories.end();
  return {{"name", device.name},
          {"type", device.type},
          {"role", device.role},
          {"used", is_known ? Json(memory->used()) : Json(nullptr)},
          {"capacity", is_known && memory->capacity > 0 ? Json(memory->capacity) : Json(nullptr)}};
}

Json positive_or_null(double value) { return value > 0 ? Json(value) : Json(nullptr); }

Json strategy_data(const StrategyReport& strategy, Names& names) {
  Timeline all;  // only its devices are used: those of both timelines
  Json simulated = nullptr, executed = nullptr;
  if (strategy.simulated) simulated = timeline_data(*strategy.simulated, nullptr, all.devices, names);
  const Timeline* like = strategy.simulated ? &*strategy.simulated : nullptr;
  if (strategy.executed) executed = timeline_data(*strategy.executed, like, all.devices, names);
  Json devices = Json::array(), order = Json::array();
  for (const TimelineDevice& device : all.devices) devices.push_back(device_data(device, strategy.memory));
  for (const DeviceGroup& group : device_groups(all)) {
    for (const DeviceId device : group.devices) order.push_back(device);
  }
  return {{"name", strategy.name},
          {"note", strategy.note},
          {"elsewhere", is_elsewhere(strategy)},
          {"steps",
           {{"simulated", positive_or_null(step_of(strategy.simulated_step, strategy.simulated))},
            {"executed", positive_or_null(step_of(strategy.executed_step, strategy.executed))}}},
          {"devices", devices},
          {"order", order},
          {"simulated", simulated},
          {"executed", executed}};
}

/// The empty frame of the picture, which the script fills.
constexpr const char* kPicture =
    R"html(<section id="picture-section"><h2>One training step, device by device</h2>
<p class="how" id="how"></p>
<div class="toolbar">
<div class="choice" id="strategies" role="group" aria-label="strategy"></div>
<div class="choice" id="views" role="group" aria-label="which times"></div>
<label><input type="checkbox" id="comm" checked> communication lanes</label>
<span class="grow"></span>
<div class="choice" role="group" aria-label="zoom"><button id="zoom-in" title="zoom in">+</button><button id="zoom-out" title="zoom out">&minus;</button><button id="zoom-all">whole step</button></div>
</div>
<div class="legend" id="legend"></div>
<div class="picture" id="picture"><canvas id="canvas" tabindex="0" aria-label="timeline of the step"></canvas></div>
<p class="hint">Wheel: zoom. Drag: move. Double click: whole step. Arrow keys, + and &minus; work too. Point at a span for its numbers.</p>
<div id="tip" hidden></div>
</section>
<section id="waits-section"><h2>Who waits for whom</h2><p class="how">How each group of devices spends the step, mean over its devices.</p><div id="waits"></div></section>
)html";

}  // namespace

Json report_data(const ReportInput& input) {
  Names names;
  Json strategies = Json::array();
  for (const StrategyReport& strategy : input.strategies)
    strategies.push_back(strategy_data(strategy, names));
  return {{"strategies", strategies}, {"kinds", names.kinds}, {"queues", names.queues}};
}

bool has_timeline(const StrategyReport& strategy) { return strategy.simulated || strategy.executed; }

bool is_elsewhere(const StrategyReport& strategy) {
  return strategy.executed && strategy.executed->source.find(kOnThisCpu) != std::string::npos;
}

Seconds step_of(Seconds given, const std::optional<Timeline>& timeline) {
  return given > 0 ? given : timeline ? timeline->step : 0;
}

std::string html_report(const ReportInput& input, PageKind kind) {
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n";
  html += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  html += fmt::format("<title>{}</title>\n<style>\n{}</style></head>\n<body>\n", escape_markup(input.title),
                      kPageStyle);
  const bool has_picture = std::any_of(input.strategies.begin(), input.strategies.end(), has_timeline);
  for (const PagePart& part : page_parts(input)) {
    html += fmt::format("<div id=\"part-{}\">{}</div>\n", part.id, part.html);
    if (part.id == "plan" && has_picture) html += kPicture;
  }
  html += fmt::format("<script type=\"application/json\" id=\"report-data\">{}</script>\n",
                      script_json(report_data(input)));
  html += fmt::format("<script>\n'use strict';\n(() => {{\n{}{}}})();\n</script>\n</body></html>\n",
                      kPageScript, kind == PageKind::kLive ? kLiveScript : "");
  return html;
}

}  // namespace hetermoe
