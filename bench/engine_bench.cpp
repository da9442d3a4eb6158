// What the engine costs beyond the numerics: CPU time of a step of zebra on two emulated devices under the
// virtual clock, against one device that does the same work. The plans' steps alternate in one run; CPU time,
// not wall time, which other processes hardly disturb. Usage: engine_bench [repetitions = 9] [model]
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "hetermoe/cost/roofline.h"
#include "hetermoe/device/cpu_memory.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/train/session/session.h"

namespace hetermoe {
namespace {

struct Work {
  const char* model;
  i64 sequences, seq_len, microbatches;
};

/// A newer and an older device; their figures do not matter here, an op's numerics run on this machine.
Cluster two_devices() {
  return parse_cluster(Json::parse(R"({"name": "two", "network_gbit_s": 10, "latency_us": 10,
      "nodes": [{"name": "a", "devices": ["A40"]}, {"name": "b", "devices": ["V100"]}]})"),
                       "engine_bench");
}

Plan make_plan(const char* strategy, const ModelConfig& model, const Cluster& cluster, const Work& work) {
  StrategyRequest request;
  request.seq_len = work.seq_len;
  request.sequences = work.sequences;
  request.microbatches = work.microbatches;
  Plan plan = find_strategy(strategy).make(model, cluster, request);
  plan.dtype.assign(plan.dtype.size(), Dtype::kFp32);
  plan.wire_forward = plan.wire_backward = Wire::kFp32;
  return plan;
}

StepInput make_input(const ModelConfig& model, const Work& work) {
  StepInput input;
  input.tokens = at::randint(0, model.vocab, {work.sequences, work.seq_len}, at::kLong);
  input.targets = input.tokens.roll(-1, 1);
  input.target_count = work.sequences * work.seq_len;
  input.learning_rate = 1e-5;
  return input;
}

struct Runner {
  Plan plan;
  RooflineCost cost;
  Session session;
  std::vector<double> cpu;

  Runner(const char* strategy, const ModelConfig& model, const Cluster& cluster, const Work& work)
      : plan(make_plan(strategy, model, cluster, work)),
        cost(model, cluster, plan),
        session(model, cluster, plan, options(cost)) {
    session.initialize(1);
  }
  static Session::Options options(const RooflineCost& cost) {
    Session::Options options;
    options.executor.clock = ClockKind::kVirtual;
    options.executor.truth = &cost;
    return options;
  }
  void step(const StepInput& input) { cpu.push_back(session.train_step(input).cpu_seconds); }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(const Work& work, int repetitions) {
  const ModelConfig model = load_model(work.model);
  const Cluster cluster = two_devices();
  const StepInput input = make_input(model, work);
  Work whole = work;  // one device has no reason to cut its batch; with the same cuts it does the same work
  whole.microbatches = 1;
  Runner one("single", model, cluster, whole), same("single", model, cluster, work),
      zebra("zebra", model, cluster, work);
  for (int i = 0; i <= repetitions; ++i) {
    for (Runner* runner : {&one, &same, &zebra}) runner->step(input);
  }
  std::vector<double> to_one, to_same;
  const double num_ops = zebra.session.schedule().num_ops();
  for (std::size_t i = 1; i < zebra.cpu.size(); ++i) {  // the first warms up
    to_one.push_back(zebra.cpu[i] / one.cpu[i]);
    to_same.push_back(zebra.cpu[i] / same.cpu[i]);
  }
  fmt::print("{:6} {:3} x {:<4} {:2}   {:8.1f} {:8.1f} {:8.1f}   {:5.3f} {:9.3f}   {:5.0f} {:8.1f}\n",
             work.model, work.sequences, work.seq_len, work.microbatches, 1e3 * median(one.cpu),
             1e3 * median(same.cpu), 1e3 * median(zebra.cpu), median(to_same), median(to_one), num_ops,
             1e6 * median(zebra.cpu) / num_ops);
}

}  // namespace
}  // namespace hetermoe

int main(int argc, char** argv) {
  at::set_num_threads(1);
  hetermoe::keep_freed_memory();
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 9;
  fmt::print(
      "CPU time of a step, ms; zebra on 2 emulated devices (virtual clock) against one device; median of "
      "{}\n",
      repetitions);
  fmt::print(
      "model  batch    micro    whole      cut    zebra   /cut    /whole     ops   us/op, numerics "
      "included\n");
  for (const hetermoe::Work& work : {hetermoe::Work{"tiny", 8, 4, 8}, hetermoe::Work{"tiny", 8, 64, 4},
                                     hetermoe::Work{"demo", 8, 256, 4}, hetermoe::Work{"s", 8, 256, 4}})
    if (argc < 3 || std::string(argv[2]) == work.model) hetermoe::compare(work, repetitions);
}
