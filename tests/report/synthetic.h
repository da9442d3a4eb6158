#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hetermoe/timeline/timeline.h"

// Timelines of plausible steps, made by a small list scheduler, so that the report is tested without the
// simulator.
namespace hetermoe::synthetic {

struct Shape {
  i32 num_attention = 2, num_expert = 2, num_layers = 4, num_microbatches = 4;
  double jitter = 0;         ///< relative spread of durations; 0 = exact
  double expert_factor = 1;  ///< on the durations of expert ops: experts slower than their profile says
  unsigned seed = 1;
};

/// Appends ops and gives each its earliest time: after what it depends on, and after its lanes' earlier ops.
class Builder {
 public:
  explicit Builder(const Shape& shape) : shape_(shape), random_(shape.seed) {
    const auto add = [&](i32 count, const char* type, const char* role) {
      for (i32 i = 0; i < count; ++i) {
        const auto id = timeline.devices.size();
        timeline.devices.push_back({std::string(type) + "#" + std::to_string(id), type, role});
        (std::string(role) == "expert" ? experts : attention).push_back(static_cast<DeviceId>(id));
        all.push_back(static_cast<DeviceId>(id));
      }
    };
    add(shape.num_attention, "A40", "attention");
    add(shape.num_expert, "V100", "expert");
  }

  /// One op per device; `after` names earlier results, `name` this one.
  void compute(const std::string& name, const std::vector<DeviceId>& devices, TimelineOp op, double ms,
               const std::vector<std::string>& after) {
    op.queue = "compute";
    const double ready = ready_at(after);
    double end = 0;
    for (const DeviceId device : devices) end = std::max(end, append(op, {device}, ready, ms));
    done_[name] = end;
  }

  void transfer(const std::string& name, const char* queue, TimelineOp op, double ms,
                const std::vector<std::string>& after) {
    op.queue = queue;
    done_[name] = append(op, all, ready_at(after), ms);
  }

  Timeline finish(const char* source, const char* title) {
    timeline.source = source;
    timeline.title = title;
    for (const Span& span : timeline.spans) timeline.step = std::max(timeline.step, span.end);
    sort_spans(timeline);
    return std::move(timeline);
  }

  Timeline timeline;
  std::vector<DeviceId> attention, experts, all;

 private:
  double ready_at(const std::vector<std::string>& after) const {
    double ready = 0;
    for (const std::string& name : after) ready = std::max(ready, done_.at(name));
    return ready;
  }

  double append(const TimelineOp& op, const std::vector<DeviceId>& devices, double ready, double ms) {
    for (const DeviceId device : devices) ready = std::max(ready, lane_[{device, op.queue}]);
    double length = ms * 1e-3 * (op.kind == "experts" ? shape_.expert_factor : 1);
    if (shape_.jitter > 0) length *= std::exp(std::normal_distribution<double>(0, shape_.jitter)(random_));
    const OpId id = static_cast<OpId>(timeline.ops.size());
    timeline.ops.push_back(op);
    for (const DeviceId device : devices) {
      timeline.spans.push_back({id, device, ready, ready + length});
      lane_[{device, op.queue}] = ready + length;
    }
    return ready + length;
  }

  Shape shape_;
  std::mt19937 random_;
  std::map<std::string, double> done_;
  std::map<std::pair<DeviceId, std::string>, double> lane_;
};

inline std::string key(const char* what, i32 layer, i32 microbatch) {
  return std::string(what) + std::to_string(layer) + "," + std::to_string(microbatch);
}

/// The optimizer's part: reduce and update from the last layer to the first.
inline void add_updates(Builder& b, i32 num_layers) {
  for (i32 l = num_layers - 1; l >= 0; --l) {
    b.transfer(key("reduce", l, 0), "reduce", {"reduce", "", l, -1, 0, ""}, 2.5, {"embed.B"});
  }
  b.transfer("norm", "reduce", {"norm", "", -1, -1, 0, ""}, 0.6, {key("reduce", 0, 0)});
  for (i32 l = 0; l < num_layers; ++l)
    b.compute("update", b.all, {"update", "", l, -1, 0, ""}, 1.6, {"norm"});
}

/// Layer-major over microbatches; attention and experts on devices of their own.
inline Timeline zebra(const Shape& shape, const char* source = "simulated") {
  Builder b(shape);
  const i32 layers = shape.num_layers, batches = shape.num_microbatches;
  for (i32 m = 0; m < batches; ++m)
    b.compute(key("in", 0, m), b.attention, {"embed", "F", -1, m, 0, ""}, 0.8, {});
  for (i32 l = 0; l < layers; ++l) {
    for (i32 m = 0; m < batches; ++m) {
      b.compute(key("att", l, m), b.attention, {"attention", "F", l, m, 0, ""}, 9, {key("in", l, m)});
      b.transfer(key("dis", l, m), "to_expert", {"dispatch", "F", l, m, 0, ""}, 3, {key("att", l, m)});
      b.compute(key("exp", l, m), b.experts, {"experts", "F", l, m, 0, ""}, 8, {key("dis", l, m)});
      b.transfer(key("in", l + 1, m), "to_attention", {"combine", "F", l, m, 0, ""}, 3, {key("exp", l, m)});
    }
  }
  for (i32 m = 0; m < batches; ++m) {
    b.compute(key("grad", layers - 1, m), b.attention, {"head", "F", -1, m, 0, ""}, 6,
              {key("in", layers, m)});
  }
  for (i32 l = layers - 1; l >= 0; --l) {
    for (i32 m = 0; m < batches; ++m) {
      b.transfer(key("com", l, m), "to_expert", {"combine", "B", l, m, 0, ""}, 3, {key("grad", l, m)});
      b.compute(key("expb", l, m), b.experts, {"experts", "B", l, m, 0, ""}, 19, {key("com", l, m)});
      b.transfer(key("disb", l, m), "to_attention", {"dispatch", "B", l, m, 0, ""}, 3, {key("expb", l, m)});
      b.compute(key("grad", l - 1, m), b.attention, {"attention", "B", l, m, 0, ""}, 20, {key("disb", l, m)});
    }
  }
  b.compute("embed.B", b.attention, {"embed", "B", -1, -1, 0, ""}, 1.5, {key("grad", -1, batches - 1)});
  add_updates(b, layers);
  return b.finish(source, "zebra, synthetic, 4 layers");
}

/// Expert parallelism: every device does everything, one microbatch after another; V100s are slow at
/// attention.
inline Timeline expert_parallel(const Shape& shape, const char* source = "simulated") {
  Builder b(shape);
  for (TimelineDevice& device : b.timeline.devices) device.role = "both";
  const i32 layers = shape.num_layers;
  std::string last;
  const auto both = [&](const std::string& name, TimelineOp op, double fast, double slow,
                        const std::vector<std::string>& after) {
    b.compute(name + "a", b.attention, op, fast, after);
    b.compute(name + "b", b.experts, op, slow, after);
  };
  for (i32 m = 0; m < shape.num_microbatches; ++m) {
    const std::vector<std::string> begin =
        last.empty() ? std::vector<std::string>{} : std::vector<std::string>{last};
    both("in", {"embed", "F", -1, m, 0, ""}, 0.4, 0.6, begin);
    b.transfer("x", "move", {"balance", "", -1, m, 0, ""}, 0.3, {"ina", "inb"});
    for (i32 l = 0; l < layers; ++l) {
      both("att", {"attention", "F", l, m, 0, ""}, 4.5, 11, {"x"});
      b.transfer("d", "to_expert", {"dispatch", "F", l, m, 0, ""}, 3, {"atta", "attb"});
      both("exp", {"experts", "F", l, m, 0, ""}, 3.2, 4, {"d"});
      b.transfer("x", "to_attention", {"combine", "F", l, m, 0, ""}, 3, {"expa", "expb"});
    }
    both("h", {"head", "F", -1, m, 0, ""}, 3, 4, {"x"});
    b.transfer("x", "move", {"balance", "", -1, m, 0, ""}, 0.3, {"ha", "hb"});
    for (i32 l = layers - 1; l >= 0; --l) {
      b.transfer("c", "to_expert", {"combine", "B", l, m, 0, ""}, 3, {"x"});
      both("exp", {"experts", "B", l, m, 0, ""}, 7, 9.5, {"c"});
      b.transfer("d", "to_attention", {"dispatch", "B", l, m, 0, ""}, 3, {"expa", "expb"});
      both("att", {"attention", "B", l, m, 0, ""}, 10, 24, {"d"});
      b.transfer("x", "move", {"balance", "", -1, m, 0, ""}, 0.3, {"atta", "attb"});
    }
    last = "x";
  }
  b.compute("embed.B", b.all, {"embed", "B", -1, -1, 0, ""}, 1, {last});
  add_updates(b, layers);
  return b.finish(source, "ep, synthetic, 4 layers");
}

}  // namespace hetermoe::synthetic
