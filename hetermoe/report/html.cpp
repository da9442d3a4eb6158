#include "hetermoe/report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "hetermoe/base/index.h"
#include "hetermoe/report/device_classes.h"
#include "hetermoe/report/escape.h"
#include "hetermoe/report/html_steps.h"
#include "hetermoe/report/page.h"
#include "hetermoe/report/waits_text.h"

// What the script finds in report_data():
//
//   strategies: [{
//     name, note,
//     elsewhere     true: executed times are those of a processor in the place of GPUs
//     kept_pace     false: executed times are longer than the clock meant them to be
//     steps         {simulated, replayed, executed} seconds, null when absent
//     all_devices   how many there are; those below are drawn
//     devices       [{name, type, role, used, capacity, count, names, alike, of_group}]: used and capacity
//     are bytes,
//                   null when unknown; count devices do the same within alike (a share of the step), their
//                   names; of_group devices have its role and type
//     order         [device, ...] top to bottom
//     simulated, executed: null or {
//       source, step    step in seconds
//       ops             [[kind, phase, layer, microbatch, queue, group], ...] where kind and queue are
//       indices of the
//                       lists below; 0 where no device that is drawn has a part in it. The executed side has
//                       null here when its ops are those of the simulated side.
//       spans           [op, device, start, duration, ...] flat, nanoseconds
//       uses:  [{label, devices, computing, transferring, waiting: [[label, share]], overhead, finished,
//       unused}], longest_wait, critical_path, overlap   sentences
//     }
//   }], kinds: [...], queues: [...],
//   basis: executed, replayed or simulated    by which steps strategies are compared
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

i64 nanoseconds(Seconds time) { return std::llround(time * 1e9); }

constexpr std::size_t kNotDrawn = static_cast<std::size_t>(-1);

/// What is drawn of a strategy: devices of both timelines, by name.
struct Drawn {
  Timeline all;                              ///< only its devices are used
  std::map<std::string, std::size_t> known;  ///< name: position there
  std::vector<DeviceClass> classes;          ///< of these
  std::vector<std::size_t> place;            ///< [devices of all] position among those drawn, or kNotDrawn
};

void add_devices(Drawn& drawn, const Timeline& timeline) {
  for (const TimelineDevice& device : timeline.devices) {
    if (drawn.known.emplace(device.name, drawn.all.devices.size()).second)
      drawn.all.devices.push_back(device);
  }
}

/// Devices are put together where both timelines name the same ones in one order.
Drawn drawn_of(const StrategyReport& strategy, std::size_t most_spans) {
  Drawn out;
  std::vector<const Timeline*> timelines;
  for (const std::optional<Timeline>* timeline : {&strategy.simulated, &strategy.executed}) {
    if (!*timeline) continue;
    timelines.push_back(&**timeline);
    add_devices(out, **timeline);
  }
  const std::size_t count = out.all.devices.size();
  const bool one_order = std::all_of(timelines.begin(), timelines.end(), [&](const Timeline* timeline) {
    return std::equal(timeline->devices.begin(), timeline->devices.end(), out.all.devices.begin(),
                      out.all.devices.end(), [](const auto& a, const auto& b) { return a.name == b.name; });
  });
  if (count > kFewDevices && one_order)
    out.classes = drawn_classes(timelines, device_classes(timelines), most_spans);
  else
    for (std::size_t d = 0; d < count; ++d)
      out.classes.push_back({static_cast<DeviceId>(d), {static_cast<DeviceId>(d)}});
  out.place.assign(count, kNotDrawn);
  for (std::size_t c = 0; c < out.classes.size(); ++c) out.place[idx(out.classes[c].shown)] = c;
  return out;
}

/// place: [devices of the timeline] their position among those drawn, or kNotDrawn.
Json ops_json(const Timeline& timeline, const std::vector<std::size_t>& place, Names& names) {
  std::vector<bool> used(timeline.ops.size(), false);
  for (const Span& span : timeline.spans) {
    if (place[idx(span.device)] != kNotDrawn) used[idx(span.op)] = true;
  }
  Json ops = Json::array();
  for (std::size_t i = 0; i < timeline.ops.size(); ++i) {
    const TimelineOp& op = timeline.ops[i];
    if (used[i])
      ops.push_back(Json::array({intern(names.kinds, op.kind), op.phase, op.layer, op.microbatch,
                                 intern(names.queues, op.queue), op.group}));
    else
      ops.push_back(0);
  }
  return ops;
}

Json spans_json(const Timeline& timeline, const std::vector<std::size_t>& place) {
  Json flat = Json::array();
  for (const Span& span : timeline.spans) {
    if (place[idx(span.device)] == kNotDrawn) continue;
    flat.push_back(span.op);
    flat.push_back(place[idx(span.device)]);
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
      waiting.push_back({done_by(wait.kind, uses[wait.group].group.label()), wait.share});
    out.push_back({{"label", use.group.label()},
                   {"devices", use.group.devices.size()},
                   {"computing", use.computing},
                   {"transferring", use.transferring},
                   {"waiting", waiting},
                   {"overhead", use.overhead},
                   {"finished", use.finished},
                   {"unused", use.unused}});
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
/// not written again.
Json timeline_data(const Timeline& timeline, const Timeline* like, const Drawn& drawn, Names& names) {
  std::vector<std::size_t> place;
  for (const TimelineDevice& device : timeline.devices)
    place.push_back(drawn.place[drawn.known.at(device.name)]);
  const std::vector<GroupUse> uses = group_use(timeline);
  return {{"source", timeline.source},
          {"step", timeline.step},
          {"ops",
           like != nullptr && same_ops(*like, timeline) ? Json(nullptr) : ops_json(timeline, place, names)},
          {"spans", spans_json(timeline, place)},
          {"uses", uses_json(uses)},
          {"longest_wait", longest_wait_text(uses)},
          {"critical_path", critical_path_text(critical_path(timeline))},
          {"overlap", overlap_text(timeline)}};
}

Json device_data(const Drawn& drawn, const DeviceClass& of, std::size_t of_group,
                 const StrategyReport& strategy) {
  const TimelineDevice& device = drawn.all.devices[idx(of.shown)];
  const std::vector<DeviceMemory>& memories = strategy.memory;
  const auto memory = std::find_if(memories.begin(), memories.end(),
                                   [&](const DeviceMemory& m) { return m.device == device.name; });
  const bool is_known = memory != memories.end();
  std::vector<std::string> members;
  for (const DeviceId member : of.members) members.push_back(drawn.all.devices[idx(member)].name);
  const Seconds step = strategy.simulated ? strategy.simulated->step : strategy.executed->step;
  return {{"name", device.name},
          {"type", device.type},
          {"role", device.role},
          {"used", is_known ? Json(memory->used()) : Json(nullptr)},
          {"capacity", is_known && memory->capacity > 0 ? Json(memory->capacity) : Json(nullptr)},
          {"count", members.size()},
          {"names", members.size() > 1 ? name_ranges(members) : ""},
          {"alike", step > 0 ? of.difference / step : 0},
          {"of_group", of_group}};
}

Json positive_or_null(double value) { return value > 0 ? Json(value) : Json(nullptr); }

Json strategy_data(const StrategyReport& strategy, std::size_t most_spans, Names& names) {
  const Drawn drawn = drawn_of(strategy, most_spans);
  Json simulated = nullptr, executed = nullptr;
  if (strategy.simulated) simulated = timeline_data(*strategy.simulated, nullptr, drawn, names);
  const Timeline* like = strategy.simulated ? &*strategy.simulated : nullptr;
  if (strategy.executed) executed = timeline_data(*strategy.executed, like, drawn, names);
  std::vector<Json> devices(drawn.classes.size());
  Json order = Json::array();
  for (const DeviceGroup& group : device_groups(drawn.all)) {
    for (const DeviceId device : group.devices) {
      const std::size_t place = drawn.place[idx(device)];
      if (place == kNotDrawn) continue;
      order.push_back(place);
      devices[place] = device_data(drawn, drawn.classes[place], group.devices.size(), strategy);
    }
  }
  return {{"name", strategy.name},
          {"note", strategy.note},
          {"elsewhere", is_elsewhere(strategy)},
          {"kept_pace", strategy.kept_pace},
          {"steps",
           {{"simulated", positive_or_null(step_of(strategy.simulated_step, strategy.simulated))},
            {"replayed", positive_or_null(strategy.replayed_step)},
            {"executed", positive_or_null(step_of(strategy.executed_step, strategy.executed))}}},
          {"all_devices", drawn.all.devices.size()},
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
  const auto drawn = std::count_if(input.strategies.begin(), input.strategies.end(), has_timeline);
  const std::size_t most_spans = kMostSpans / static_cast<std::size_t>(std::max<std::ptrdiff_t>(1, drawn));
  for (const StrategyReport& strategy : input.strategies)
    strategies.push_back(strategy_data(strategy, most_spans, names));
  constexpr std::array<const char*, 3> kBases = {"executed", "replayed", "simulated"};
  return {{"strategies", strategies},
          {"kinds", names.kinds},
          {"queues", names.queues},
          {"basis", kBases.at(static_cast<std::size_t>(basis_of(input.strategies)))}};
}

Basis basis_of(const std::vector<StrategyReport>& strategies) {
  bool executed = false, trusted = true, replayed = true;
  for (const StrategyReport& strategy : strategies) {
    if (step_of(strategy.executed_step, strategy.executed) <= 0) continue;
    executed = true;
    trusted = trusted && strategy.kept_pace && !is_elsewhere(strategy);
    replayed = replayed && strategy.replayed_step > 0;
  }
  return !executed  ? Basis::kSimulated
         : trusted  ? Basis::kExecuted
         : replayed ? Basis::kReplayed
                    : Basis::kSimulated;
}

bool has_timeline(const StrategyReport& strategy) { return strategy.simulated || strategy.executed; }

bool is_elsewhere(const StrategyReport& strategy) {
  return strategy.executed && strategy.executed->source.find(kOnThisCpu) != std::string::npos;
}

Seconds step_of(Seconds given, const std::optional<Timeline>& timeline) {
  return given > 0 ? given : timeline ? timeline->step : 0;
}

std::string plot_script() {
  return fmt::format("<script>\n'use strict';\n(() => {{\n{}}})();\n</script>\n", kPlotScript);
}

std::string html_report(const ReportInput& input, PageKind kind) {
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n";
  html += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  html += kGenerator;
  html += fmt::format("<title>{}</title>\n<style>\n{}</style></head>\n<body>\n", escape_markup(input.title),
                      kPageStyle);
  const bool has_picture = std::any_of(input.strategies.begin(), input.strategies.end(), has_timeline);
  for (const PagePart& part : page_parts(input)) {
    html += fmt::format("<div id=\"part-{}\">{}</div>\n", part.id, part.html);
    if (part.id == "plan" && has_picture) html += kPicture;
  }
  html += fmt::format("<script type=\"application/json\" id=\"report-data\">{}</script>\n",
                      script_json(report_data(input)));
  html += fmt::format("<script>\n'use strict';\n(() => {{\n{}{}}})();\n</script>\n{}</body></html>\n",
                      kPageScript, kind == PageKind::kLive ? kLiveScript : "", plot_script());
  return html;
}

}  // namespace hetermoe
