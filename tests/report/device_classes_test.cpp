#include "hetermoe/report/device_classes.h"

#include <gtest/gtest.h>

#include <random>

#include "hetermoe/base/index.h"
#include "tests/report/synthetic.h"

namespace hetermoe {
namespace {

/// Random devices of two types; some do exactly or nearly what an earlier one of their type does.
Timeline random_timeline(std::mt19937& random, std::vector<DeviceId>& like) {
  Timeline t;
  t.step = 10;
  std::uniform_real_distribution<double> time(0, 10);
  const int devices = std::uniform_int_distribution<int>(9, 30)(random);
  for (DeviceId d = 0; d < devices; ++d) {
    const bool old = random() % 2 != 0;
    t.devices.push_back({(old ? "V#" : "A#") + std::to_string(d), old ? "V" : "A", "both"});
    std::vector<DeviceId> same;
    for (DeviceId e = 0; e < d; ++e) {
      if (like[idx(e)] == e && t.devices[idx(e)].type == t.devices.back().type) same.push_back(e);
    }
    like.push_back(same.empty() || random() % 3 == 0 ? d : same[random() % same.size()]);
    std::vector<Span> spans;
    if (like.back() == d) {
      for (int i = 0; i < 4; ++i) {
        t.ops.push_back({"experts", "F", i, 0, 0, "compute"});
        const double start = time(random);
        spans.push_back({static_cast<OpId>(t.ops.size() - 1), d, start, start + 0.5});
      }
    } else {
      const double shift = random() % 2 != 0 ? 0.02 : 0;
      for (const Span& span : t.spans) {
        if (span.device != like.back()) continue;
        t.ops.push_back(TimelineOp(t.ops[idx(span.op)]));
        spans.push_back({static_cast<OpId>(t.ops.size() - 1), d, span.start + shift, span.end + shift});
      }
    }
    t.spans.insert(t.spans.end(), spans.begin(), spans.end());
  }
  sort_spans(t);
  return t;
}

TEST(DeviceClasses, DevicesThatDoTheSameAreOneClassAndEveryDeviceIsInOne) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<DeviceId> like;
    const Timeline t = random_timeline(random, like);
    std::vector<int> times(t.devices.size(), 0);
    for (const DeviceClass& of : device_classes({&t})) {
      EXPECT_LE(of.difference, 0.01 * t.step);
      for (const DeviceId member : of.members) {
        ++times[idx(member)];
        EXPECT_EQ(like[idx(member)], of.shown) << "seed " << seed << " device " << member;
      }
    }
    EXPECT_EQ(times, std::vector<int>(t.devices.size(), 1)) << "seed " << seed;
  }
}

TEST(DeviceClasses, ARunThatDiffersKeepsDevicesApart) {
  synthetic::Shape shape;
  shape.num_attention = 6, shape.num_expert = 6;
  const Timeline even = synthetic::zebra(shape);
  shape.jitter = 0.3;
  const Timeline uneven = synthetic::zebra(shape);
  EXPECT_EQ(device_classes({&even}).size(), 2u);
  EXPECT_GT(device_classes({&even, &uneven}).size(), 2u);
}

TEST(DeviceClasses, OfTooManyTheBusiestAndTheLeastBusyAreDrawn) {
  synthetic::Shape shape;
  shape.num_attention = 20, shape.num_expert = 20, shape.jitter = 0.2;
  const Timeline t = synthetic::zebra(shape);
  const std::vector<DeviceClass> all = device_classes({&t});
  ASSERT_GT(all.size(), 30u);
  const std::vector<DeviceClass> drawn = drawn_classes({&t}, all, t.spans.size() / 8);
  EXPECT_LE(drawn.size(), all.size() / 8 + 2);
  const std::vector<double> busy = busy_share(t);
  for (const char* type : {"A40", "V100"}) {
    std::vector<double> of_all, of_drawn;
    for (const DeviceClass& of : all) {
      if (t.devices[idx(of.shown)].type == type) of_all.push_back(busy[idx(of.shown)]);
    }
    for (const DeviceClass& of : drawn) {
      if (t.devices[idx(of.shown)].type == type) of_drawn.push_back(busy[idx(of.shown)]);
    }
    EXPECT_EQ(std::ranges::max(of_all), std::ranges::max(of_drawn)) << type;
    EXPECT_EQ(std::ranges::min(of_all), std::ranges::min(of_drawn)) << type;
  }
  EXPECT_EQ(drawn_classes({&t}, all, t.spans.size()).size(), all.size());
  shape.num_attention = shape.num_expert = 100;
  const Timeline large = synthetic::zebra(shape);
  EXPECT_LE(drawn_classes({&large}, device_classes({&large}), large.spans.size()).size(), 48u);
}

TEST(NameRanges, PutsFollowingNumbersTogether) {
  EXPECT_EQ(name_ranges({"A40#0"}), "A40#0");
  EXPECT_EQ(name_ranges({"A40#0", "A40#1"}), "A40#0, A40#1");
  EXPECT_EQ(name_ranges({"A40#0", "A40#1", "A40#2", "A40#5", "V100#6"}), "A40#0 to A40#2, A40#5, V100#6");
  EXPECT_EQ(name_ranges({"host", "A#1", "A#3", "A#5"}, 2), "host, A#1 and 2 more");
}

}  // namespace
}  // namespace hetermoe
