#include "hetermoe/timeline/timeline.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "hetermoe/base/error.h"
#include "hetermoe/ops/op_row.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

/// Two devices, a compute op on each, and a dispatch on both.
Timeline small() {
  Timeline t;
  t.source = "simulated";
  t.title = "zebra \"quoted\" <tiny>";
  t.step = 0.004;
  t.devices = {{"A40#0", "A40", "attention"}, {"V100#1", "V100", "expert"}};
  t.ops = {{"attention", "F", 0, 1, 0, "compute"},
           {"dispatch", "F", 0, 1, 0, "to_expert"},
           {"experts", "F", 0, 1, 0, "compute"},
           {"norm", "", -1, -1, 0, "reduce"}};
  t.spans = {{0, 0, 0, 0.001},
             {1, 0, 0.001, 0.0015},
             {2, 1, 0.0015, 1.0 / 300},
             {1, 1, 0.001, 0.0015},
             {3, 1, 1.0 / 300, 0.004}};
  return t;
}

std::string json_error(const Json& json) {
  return error_of<ConfigError>([&] { timeline_from_json(json, "t.json"); });
}

TEST(Timeline, JsonRoundTripKeepsEveryMemberToTheBit) {
  const Timeline before = small();
  const Timeline after = timeline_from_json(parse_json(to_json(before).dump(), "x"), "x");
  EXPECT_EQ(after.source, before.source);
  EXPECT_EQ(after.title, before.title);
  EXPECT_EQ(after.step, before.step);
  EXPECT_EQ(after.ops[3].layer, -1);
  EXPECT_EQ(after.spans[2].end, 1.0 / 300);
  EXPECT_EQ(to_json(after), to_json(before));
}

TEST(Timeline, AStepMayEndBesideTheNextWhereTheFileSaysSo) {
  Timeline overlapping = small();
  overlapping.step = 0.003;
  const Json json = to_json(overlapping);
  EXPECT_EQ(json.at("end_s"), 0.004);
  EXPECT_EQ(to_json(timeline_from_json(json, "x")), json);
  EXPECT_FALSE(to_json(small()).contains("end_s"));
}

TEST(Timeline, FileRoundTripHasOneLinePerSpan) {
  const std::filesystem::path path = std::filesystem::path(HM_BINARY_DIR) / "timeline_test.json";
  save_timeline(path, small());
  EXPECT_NE(read_text(path).find("\n    [0,0,0.0,0.001],\n"), std::string::npos) << read_text(path);
  EXPECT_EQ(read_json(path), to_json(small()));
  EXPECT_EQ(to_json(load_timeline(path)), to_json(small()));
  save_timeline(path, Timeline{});
  EXPECT_EQ(to_json(load_timeline(path)), to_json(Timeline{}));
  write_text(path, read_text(path).substr(0, 80));
  EXPECT_THROW(load_timeline(path), ConfigError);
  std::filesystem::remove(path);
}

TEST(Timeline, ReadingSortsByDeviceQueueAndStart) {
  Timeline mixed = small();
  std::reverse(mixed.spans.begin(), mixed.spans.end());
  EXPECT_EQ(to_json(timeline_from_json(to_json(mixed), "x")), to_json(small()));
}

TEST(Timeline, FaultsNameThePlace) {
  const Json good = to_json(small());
  Json bad = good;
  bad.erase("spans");
  EXPECT_EQ(json_error(bad),
            "[t.json] no key \"spans\": expected a timeline as hetermoe writes it. Is the file truncated?");
  bad = good;
  bad["spans"][1][3] = "soon";
  EXPECT_EQ(json_error(bad), "[t.json spans[1][3]] wrong type: got string \"soon\", expected a number");
  bad = good;
  bad["spans"][1][3] = 0.0001;
  EXPECT_EQ(json_error(bad),
            "[t.json spans[1]] a span ends before it starts: got start 0.001 s and end 0.0001 s");
  bad = good;
  bad["spans"][0][0] = 4;
  EXPECT_EQ(json_error(bad), "[t.json spans[0][0]] out of range: got 4, expected 0 to 3");
  bad = good;
  bad["spans"][0].push_back(1);
  EXPECT_EQ(json_error(bad), "[t.json spans[0]] wrong number of values: got 5, expected 4");
  bad = good;
  bad["spans"][3] = bad["spans"][2];
  EXPECT_EQ(json_error(bad), "[t.json spans] op 2 has two spans on device 1: expected one per op and device");
}

TEST(Timeline, FaultsInTheHeadAreNamed) {
  const Json good = to_json(small());
  Json bad = good;
  bad["step_s"] = 0.003;
  bad.erase("end_s");
  EXPECT_EQ(json_error(bad),
            "[t.json step_s] the step ends before its last span: got 0.003 s, expected 0.004 s");
  bad["step_s"] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(json_error(parse_json(bad.dump(), "x")),
            "[t.json step_s] wrong type: got nothing, expected a number");
  bad = good;
  bad["format"] = "hetermoe timeline 9";
  EXPECT_EQ(json_error(bad),
            "[t.json format] not a timeline this version reads: got \"hetermoe timeline 9\", expected "
            "\"hetermoe timeline 1\"");
  bad = good;
  bad["tilte"] = 1;
  EXPECT_NE(json_error(bad).find("Did you mean \"title\"?"), std::string::npos);
  bad = good;
  bad["devices"][1]["role"] = 3;
  EXPECT_EQ(json_error(bad), "[t.json devices[1].role] wrong type: got integer 3, expected a string");
  bad = good;
  bad["ops"] = 3;
  EXPECT_EQ(json_error(bad), "[t.json ops] wrong type: got integer 3, expected a list");
  EXPECT_EQ(json_error(Json::array()), "[t.json] wrong type: got array [], expected a mapping");
}

TEST(Timeline, BusyShareCountsComputeOnceAndNothingElse) {
  Timeline t = small();
  const std::vector<double> share = busy_share(t);
  EXPECT_DOUBLE_EQ(share[0], 0.25);
  EXPECT_DOUBLE_EQ(share[1], (1.0 / 300 - 0.0015) / 0.004);
  t.spans.push_back({2, 0, 0.0005, 0.002});  // overlaps op 0 on device 0
  EXPECT_DOUBLE_EQ(busy_share(t)[0], 0.5);
  EXPECT_EQ(busy_share(Timeline{}).size(), 0u);
  t.step = 0;
  EXPECT_EQ(busy_share(t), (std::vector<double>{0, 0}));
}

TEST(Perfetto, OneProcessPerDeviceAndOneThreadPerQueue) {
  const Json trace = perfetto_trace(small());
  std::set<std::pair<int, int>> named;
  std::vector<std::string> processes;
  std::size_t num_spans = 0;
  for (const Json& event : trace["traceEvents"]) {
    const std::pair<int, int> thread{event["pid"].get<int>(), event["tid"].get<int>()};
    if (event["name"] == "process_name") processes.push_back(event["args"]["name"]);
    if (event["name"] == "thread_name") {
      EXPECT_TRUE(named.insert(thread).second);
    }
    if (event["ph"] == "X") {
      ++num_spans;
      EXPECT_TRUE(named.count(thread)) << "a thread is named before its first span";
      EXPECT_GE(event["dur"].get<double>(), 0);
    }
  }
  EXPECT_EQ(processes, (std::vector<std::string>{"attention A40#0 (A40)", "expert V100#1 (V100)"}));
  EXPECT_EQ(named.size(), 5u);
  EXPECT_EQ(num_spans, small().spans.size());
}

TEST(Perfetto, SpansAreInMicrosecondsWithTheirArguments) {
  const Json trace = perfetto_trace(small());
  std::vector<Json> spans;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") spans.push_back(event);
  }
  EXPECT_EQ(spans[1]["name"], "dispatch.F layer 0 mb 1");
  EXPECT_DOUBLE_EQ(spans[1]["ts"].get<double>(), 1000);
  EXPECT_DOUBLE_EQ(spans[1]["dur"].get<double>(), 500);
  EXPECT_EQ(spans[1]["args"], (Json{{"op", 1}, {"phase", "F"}, {"layer", 0}, {"microbatch", 1}}));
  EXPECT_EQ(spans[4]["name"], "norm");
  EXPECT_EQ(spans[4]["args"], (Json{{"op", 3}, {"phase", ""}}));
}

TEST(Perfetto, UnknownQueuesGetThreadsOfTheirOwn) {
  Timeline t = small();
  t.ops[0].queue = "copy";
  t.ops[1].queue = "spill";
  const Json trace = perfetto_trace(t);
  std::set<int> threads;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["pid"] == 0) threads.insert(event["tid"].get<int>());
  }
  EXPECT_EQ(threads, (std::set<int>{1 + kLanesOfPlace, 2 + kLanesOfPlace}));
}

TEST(Perfetto, LinksOfAHostHaveThreadsOfTheirOwn) {
  Timeline t = small();
  t.ops[0].queue = lane_name(lane_of(0, Queue::kToHost, 1));
  t.ops[1].queue = lane_name(lane_of(0, Queue::kToDevice, 1));
  std::map<int, std::string> names;
  const Json trace = perfetto_trace(t);
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name" && event["pid"] == 0) names[event["tid"]] = event["args"]["name"];
  }
  EXPECT_EQ(names, (std::map<int, std::string>{{8, "to_device 1"}, {9, "to_host 1"}}));
}

}  // namespace
}  // namespace hetermoe
