#include "hetermoe/timeline/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "hetermoe/base/fields.h"
#include "hetermoe/ops/op_row.h"

namespace hetermoe {
namespace {

constexpr const char* kFormat = "hetermoe timeline 1";
const std::vector<std::string> kTopKeys = {"format",  "source",     "title", "step_s",       "end_s",
                                           "devices", "op_columns", "ops",   "span_columns", "spans"};
const std::vector<std::string> kOpColumns = {"kind",  "phase", "layer", "microbatch",
                                             "group", "queue", "after"};
/// Files of older versions lack the last column.
const std::vector<std::string> kOldOpColumns(kOpColumns.begin(), std::prev(kOpColumns.end()));
const std::vector<std::string> kSpanColumns = {"op", "device", "start_s", "end_s"};
const std::vector<std::string> kDeviceKeys = {"name", "type", "role"};

/// Lanes of a place in the order of drawing and of files; an unknown one comes last.
int queue_rank(const std::string& lane) {
  const std::size_t space = lane.find(' ');
  const std::string_view queue = std::string_view(lane).substr(0, space);
  const auto found = std::find_if(kQueueOrder.begin(), kQueueOrder.end(),
                                  [&](Queue known) { return name_of(known) == queue; });
  if (found == kQueueOrder.end()) return kLanesOfPlace;
  const int link = space == std::string::npos ? 0 : std::atoi(lane.c_str() + space);
  return std::min(static_cast<int>(found - kQueueOrder.begin()) + 2 * std::clamp(link, 0, kHostLinks),
                  kLanesOfPlace);
}

const TimelineOp& op_of(const Timeline& timeline, const Span& span) {
  return timeline.ops[static_cast<std::size_t>(span.op)];
}

// ---- reading ----

const Json& member(const Json& object, const std::string& key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) {
    fail<ConfigError>(where.substr(0, where.find_last_not_of(" ") + 1),
                      "no key \"{}\": expected a timeline as hetermoe writes it. Is the file truncated?",
                      key);
  }
  return *found;
}

template <class T>
T read(const Json& json, const std::string& where, const Range& range = {}) {
  T value{};
  read_value(json, value, where, range);
  return value;
}

const Json& list_member(const Json& object, const std::string& key, const std::string& where) {
  const Json& list = member(object, key, where);
  if (!list.is_array()) detail::wrong_type(where + key, list, "a list");
  return list;
}

void check_columns(const Json& json, const std::string& key, const std::vector<std::string>& expected,
                   const std::string& where) {
  const std::vector<std::string> got = read<std::vector<std::string>>(member(json, key, where), where + key);
  if (got != expected) {
    fail<ConfigError>(where + key, "unexpected columns: got {}, expected {}", Json(got).dump(),
                      Json(expected).dump());
  }
}

void check_row(const Json& row, std::size_t num_columns, const std::string& where) {
  if (!row.is_array()) detail::wrong_type(where, row, "a list");
  if (row.size() != num_columns) {
    fail<ConfigError>(where, "wrong number of values: got {}, expected {}", row.size(), num_columns);
  }
}

TimelineDevice device_from_json(const Json& json, const std::string& where) {
  if (!json.is_object()) detail::wrong_type(where, json, "a mapping");
  detail::check_keys(json, kDeviceKeys, where);
  TimelineDevice device;
  device.name = read<std::string>(member(json, "name", where), where + ".name");
  device.type = read<std::string>(member(json, "type", where), where + ".type");
  device.role = read<std::string>(member(json, "role", where), where + ".role");
  return device;
}

TimelineOp op_from_json(const Json& row, std::size_t num_columns, double num_ops, const std::string& where) {
  check_row(row, num_columns, where);
  TimelineOp op;
  op.kind = read<std::string>(row[0], where + "[0]");
  op.phase = read<std::string>(row[1], where + "[1]");
  op.layer = read<i32>(row[2], where + "[2]", at_least(-1));
  op.microbatch = read<i32>(row[3], where + "[3]", at_least(-1));
  op.group = read<i32>(row[4], where + "[4]", at_least(0));
  op.queue = read<std::string>(row[5], where + "[5]");
  if (num_columns < kOpColumns.size()) return op;
  if (!row[6].is_array()) detail::wrong_type(where + "[6]", row[6], "a list");
  for (const Json& earlier : row[6])
    op.after.push_back(read<OpId>(earlier, where + "[6]", between(0, num_ops - 1)));
  return op;
}

Span span_from_json(const Json& row, const Timeline& timeline, const std::string& where) {
  check_row(row, kSpanColumns.size(), where);
  const auto last = [](std::size_t size) { return static_cast<double>(size) - 1; };
  Span span;
  span.op = read<OpId>(row[0], where + "[0]", between(0, last(timeline.ops.size())));
  span.device = read<DeviceId>(row[1], where + "[1]", between(0, last(timeline.devices.size())));
  span.start = read<Seconds>(row[2], where + "[2]", at_least(0));
  span.end = read<Seconds>(row[3], where + "[3]", at_least(0));
  if (span.end < span.start) {
    fail<ConfigError>(where, "a span ends before it starts: got start {} s and end {} s", span.start,
                      span.end);
  }
  return span;
}

/// Every OpId appears at most once per device: spans of two timelines are joined on that pair.
void check_unique(const Timeline& timeline, const std::string& where) {
  std::vector<std::pair<OpId, DeviceId>> seen;
  for (const Span& span : timeline.spans) seen.emplace_back(span.op, span.device);
  std::sort(seen.begin(), seen.end());
  const auto twice = std::adjacent_find(seen.begin(), seen.end());
  if (twice != seen.end()) {
    fail<ConfigError>(where + "spans", "op {} has two spans on device {}: expected one per op and device",
                      twice->first, twice->second);
  }
}

// ---- writing and traces ----

Json device_to_json(const TimelineDevice& device) {
  return Json{{"name", device.name}, {"type", device.type}, {"role", device.role}};
}

Json row_of(const TimelineOp& op) {
  return Json::array({op.kind, op.phase, op.layer, op.microbatch, op.group, op.queue, op.after});
}

Json row_of(const Span& span) { return Json::array({span.op, span.device, span.start, span.end}); }

/// `"key": [` with one item per line.
template <class T, class ToJson>
std::string lines(const char* key, const std::vector<T>& items, ToJson to_row) {
  std::string text = fmt::format("  \"{}\": [", key);
  for (std::size_t i = 0; i < items.size(); ++i) {
    text += (i == 0 ? "\n    " : ",\n    ") + Json(to_row(items[i])).dump();
  }
  return text + (items.empty() ? "]" : "\n  ]");
}

Json metadata(const char* name, std::size_t process, int thread, Json args) {
  return Json{{"ph", "M"}, {"name", name}, {"pid", process}, {"tid", thread}, {"args", std::move(args)}};
}

/// Attention devices above expert devices, as in the HTML picture.
int role_rank(const std::string& role) {
  static const std::vector<std::string> order = {"attention", "both", "expert", "idle"};
  return static_cast<int>(std::find(order.begin(), order.end(), role) - order.begin());
}

void add_process(Json& events, const Timeline& timeline, std::size_t device) {
  const TimelineDevice& info = timeline.devices[device];
  const std::string name = fmt::format("{} {} ({})", info.role, info.name, info.type);
  events.push_back(metadata("process_name", device, 0, {{"name", name}}));
  const std::size_t rank = static_cast<std::size_t>(role_rank(info.role)) * timeline.devices.size() + device;
  events.push_back(metadata("process_sort_index", device, 0, {{"sort_index", rank}}));
}

std::string title_of(const TimelineOp& op) {
  std::string text = op.kind + (op.phase.empty() ? "" : "." + op.phase);
  if (op.layer >= 0) text += fmt::format(" layer {}", op.layer);
  if (op.microbatch >= 0) text += fmt::format(" mb {}", op.microbatch);
  return text;
}

Json event_of(const TimelineOp& op, const Span& span, int thread) {
  Json args = {{"op", span.op}, {"phase", op.phase}};
  if (op.layer >= 0) args["layer"] = op.layer;
  if (op.microbatch >= 0) args["microbatch"] = op.microbatch;
  return Json{{"ph", "X"},
              {"name", title_of(op)},
              {"cat", op.kind},
              {"pid", span.device},
              {"tid", thread},
              {"ts", span.start * 1e6},
              {"dur", (span.end - span.start) * 1e6},
              {"args", std::move(args)}};
}

}  // namespace

void sort_spans(Timeline& timeline) {
  std::vector<int> ranks;  // [op]; made once, as spans are compared many times
  for (const TimelineOp& op : timeline.ops) ranks.push_back(queue_rank(op.queue));
  const auto key = [&](const Span& span) {
    const auto op = static_cast<std::size_t>(span.op);
    return std::tuple(span.device, ranks[op], std::string_view(timeline.ops[op].queue), span.start, span.end,
                      span.op);
  };
  std::sort(timeline.spans.begin(), timeline.spans.end(),
            [&](const Span& a, const Span& b) { return key(a) < key(b); });
}

namespace {

Seconds last_end(const Timeline& timeline) {
  Seconds last = 0;
  for (const Span& span : timeline.spans) last = std::max(last, span.end);
  return last;
}

/// What comes before the lists. end_s is there where the next step begins before this one has ended.
std::vector<std::pair<const char*, Json>> head_of(const Timeline& timeline) {
  std::vector<std::pair<const char*, Json>> head = {
      {"format", kFormat}, {"source", timeline.source}, {"title", timeline.title}, {"step_s", timeline.step}};
  if (const Seconds end = last_end(timeline); end > timeline.step) head.emplace_back("end_s", end);
  return head;
}

}  // namespace

Json to_json(const Timeline& timeline) {
  Json json;
  for (const auto& [key, value] : head_of(timeline)) json[key] = value;
  json["devices"] = Json::array();
  for (const TimelineDevice& device : timeline.devices) json["devices"].push_back(device_to_json(device));
  json["op_columns"] = kOpColumns;
  json["ops"] = Json::array();
  for (const TimelineOp& op : timeline.ops) json["ops"].push_back(row_of(op));
  json["span_columns"] = kSpanColumns;
  json["spans"] = Json::array();
  for (const Span& span : timeline.spans) json["spans"].push_back(row_of(span));
  return json;
}

Timeline timeline_from_json(const Json& json, const std::string& file) {
  if (!json.is_object()) detail::wrong_type(file, json, "a mapping");
  const std::string where = file + (file.ends_with(' ') ? "" : " ");
  const std::string format = read<std::string>(member(json, "format", where), where + "format");
  if (format != kFormat) {
    fail<ConfigError>(where + "format", "not a timeline this version reads: got \"{}\", expected \"{}\"",
                      format, kFormat);
  }
  detail::check_keys(json, kTopKeys, file);
  Timeline out;
  out.source = read<std::string>(member(json, "source", where), where + "source");
  out.title = read<std::string>(member(json, "title", where), where + "title");
  out.step = read<Seconds>(member(json, "step_s", where), where + "step_s", at_least(0));
  const Seconds end =
      json.contains("end_s") ? read<Seconds>(json.at("end_s"), where + "end_s", at_least(0)) : out.step;
  const bool is_old = member(json, "op_columns", where) == Json(kOldOpColumns);
  const std::vector<std::string>& op_columns = is_old ? kOldOpColumns : kOpColumns;
  check_columns(json, "op_columns", op_columns, where);
  check_columns(json, "span_columns", kSpanColumns, where);
  const auto item = [&](const char* key, std::size_t i) { return fmt::format("{}{}[{}]", where, key, i); };
  const Json& devices = list_member(json, "devices", where);
  for (std::size_t i = 0; i < devices.size(); ++i)
    out.devices.push_back(device_from_json(devices[i], item("devices", i)));
  const Json& ops = list_member(json, "ops", where);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    out.ops.push_back(
        op_from_json(ops[i], op_columns.size(), static_cast<double>(ops.size()), item("ops", i)));
  }
  const Json& spans = list_member(json, "spans", where);
  for (std::size_t i = 0; i < spans.size(); ++i)
    out.spans.push_back(span_from_json(spans[i], out, item("spans", i)));
  check_unique(out, where);
  // Rounding by hand or by another tool is no error; a step that cuts spans off is.
  if (const Seconds last = last_end(out); std::max(out.step, end) < last * (1 - 1e-6)) {
    fail<ConfigError>(where + "step_s", "the step ends before its last span: got {} s, expected {} s",
                      out.step, last);
  }
  sort_spans(out);
  return out;
}

void save_timeline(const std::filesystem::path& path, const Timeline& timeline) {
  std::string text = "{\n";
  for (const auto& [key, value] : head_of(timeline)) {
    text += fmt::format("  \"{}\": {},\n", key, value.dump());
  }
  text += lines("devices", timeline.devices, device_to_json) + ",\n";
  text += fmt::format("  \"op_columns\": {},\n", Json(kOpColumns).dump());
  text += lines("ops", timeline.ops, [](const TimelineOp& op) { return row_of(op); }) + ",\n";
  text += fmt::format("  \"span_columns\": {},\n", Json(kSpanColumns).dump());
  text += lines("spans", timeline.spans, [](const Span& span) { return row_of(span); }) + "\n}\n";
  write_text(path, text);
}

Timeline load_timeline(const std::filesystem::path& path) {
  return timeline_from_json(read_json(path), path.string());
}

Seconds end_of_step(const Timeline& timeline) {
  Seconds end = timeline.step;
  for (const Span& span : timeline.spans) end = std::max(end, span.end);
  return end;
}

bool steps_overlap(const Timeline& timeline) { return end_of_step(timeline) > timeline.step * (1 + 1e-9); }

std::vector<double> busy_share(const Timeline& timeline) {
  std::vector<std::vector<std::pair<Seconds, Seconds>>> busy(timeline.devices.size());
  for (const Span& span : timeline.spans) {
    if (op_of(timeline, span).queue == "compute") {
      busy[static_cast<std::size_t>(span.device)].emplace_back(span.start, span.end);
    }
  }
  std::vector<double> shares;
  for (std::vector<std::pair<Seconds, Seconds>>& spans : busy) {
    // Measured spans may overlap by clock resolution; time counts once.
    std::sort(spans.begin(), spans.end());
    Seconds total = 0, reached = 0;
    for (const auto& [start, end] : spans) {
      total += std::max(0.0, end - std::max(start, reached));
      reached = std::max(reached, end);
    }
    shares.push_back(timeline.step > 0 ? total / timeline.step : 0);
  }
  return shares;
}

Json perfetto_trace(const Timeline& timeline) {
  Json events = Json::array();
  for (std::size_t device = 0; device < timeline.devices.size(); ++device)
    add_process(events, timeline, device);
  // An unknown queue gets the next number.
  std::map<std::pair<DeviceId, std::string>, int> threads;
  std::map<DeviceId, int> next_unknown;
  for (const Span& span : timeline.spans) {
    const TimelineOp& op = op_of(timeline, span);
    const auto [entry, is_new] = threads.try_emplace({span.device, op.queue}, 0);
    if (is_new) {
      const int rank = queue_rank(op.queue);
      entry->second = 1 + (rank < kLanesOfPlace ? rank : rank + next_unknown[span.device]++);
      const auto device = static_cast<std::size_t>(span.device);
      events.push_back(metadata("thread_name", device, entry->second, {{"name", op.queue}}));
      events.push_back(metadata("thread_sort_index", device, entry->second, {{"sort_index", entry->second}}));
    }
    events.push_back(event_of(op, span, entry->second));
  }
  return Json{{"displayTimeUnit", "ms"},
              {"otherData", {{"source", timeline.source}, {"title", timeline.title}}},
              {"traceEvents", std::move(events)}};
}

}  // namespace hetermoe
