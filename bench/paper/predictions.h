#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "bench/paper/figures.h"
#include "hetermoe/planner/strategies/compare.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "tests/golden/constant_cost.h"

// The published figures of HeterMoE beside what the simulator says of the same experiments.
namespace hetermoe::paper {

/// One published curve and its prediction.
struct Series {
  std::string name;
  std::vector<std::string> labels;
  std::vector<double> published, predicted;

  void add(const std::string& label, double is, double says) {
    labels.push_back(label);
    published.push_back(is);
    predicted.push_back(says);
  }
};

struct Errors {
  double mean = 0, worst = 0;
};

/// The worked example of Asym-EA, in the units of its figure: attention 3, experts 4 on either side,
/// transfers 1; 3 layers, 3 microbatches, 6 experts, one device per role, forward only.
inline Series predict_worked_example() {
  ModelConfig model = load_model("tiny");
  model.num_layers = 3;
  model.dense_layer.assign(3, false);
  model.num_experts = 6;
  Cluster cluster;
  cluster.types = {catalogue_device("A40", "worked example")};
  cluster.nodes.resize(2);
  cluster.devices = {{0, 0, 1}, {0, 1, 1}};
  Series series;
  series.name = "end of the forward pass";
  for (const WorkedExample& example : kWorkedExample) {
    StrategyRequest request;
    request.seq_len = 1;
    request.sequences = request.microbatches = 3;
    request.experts_moved.assign(example.moved.begin(), example.moved.end());
    const Plan plan = find_strategy("zebra").make(model, cluster, request);
    series.add(fmt::format("{},{},{}", example.moved[0], example.moved[1], example.moved[2]), example.end,
               test::simulate_worked_example(plan, model, cluster).last_end(OpKind::kExperts));
  }
  return series;
}

/// Relative errors of all points of some series together; `in_points`: differences instead.
inline Errors errors_of(const std::vector<Series>& all, bool in_points = false) {
  Errors errors;
  double count = 0;
  for (const Series& series : all) {
    for (std::size_t i = 0; i < series.published.size(); ++i) {
      const double difference = std::abs(series.predicted[i] - series.published[i]);
      const double error = in_points ? difference : difference / series.published[i];
      errors.mean += error;
      errors.worst = std::max(errors.worst, error);
      count += 1;
    }
  }
  errors.mean /= count;
  return errors;
}

/// Seconds of one module of one device, forward and backward, as Figure 2 times it: one sequence, a single
/// expert on its tokens, no recomputation.
inline Seconds module_seconds(const std::string& device, bool attention, i64 tokens,
                              const SoftwareConstants& software) {
  const ModelConfig model = load_model("mixtral-8x7b");
  Cluster cluster;
  cluster.types = {catalogue_device(device, "figure 2")};
  cluster.devices = {{0, 0, 1}};
  cluster.nodes.resize(1);
  Plan plan;
  plan.dtype = {Dtype::kFp16};
  plan.recompute = Recompute::kOff;
  const RooflineCost cost(model, cluster, plan, software);
  ComputeWork work;
  work.seq_len = tokens;
  work.tokens = work.rows = work.copies = static_cast<double>(tokens);
  work.experts = 1;
  Seconds sum = 0;
  for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
    work.op = {attention ? OpKind::kAttention : OpKind::kExperts, phase, 0, 0, 1, 0, -1};
    sum += cost.compute(work);
  }
  return sum;
}

inline std::vector<Series> predict_figure2(const SoftwareConstants& software = {}) {
  std::vector<Series> all;
  for (const ModuleSpeedUp& row : kFigure2) {
    Series series;
    series.name = fmt::format("{} over {}, {}", row.newer, row.older, row.module);
    const bool attention = std::string(row.module) == "attention";
    for (std::size_t i = 0; i < row.speed_up.size(); ++i) {
      const i64 tokens = i64{1024} << i;
      series.add(fmt::format("{}K", tokens / 1024), row.speed_up[i],
                 module_seconds(row.older, attention, tokens, software) /
                     module_seconds(row.newer, attention, tokens, software));
    }
    all.push_back(std::move(series));
  }
  return all;
}

inline i64 length(std::size_t i) { return 4096 * static_cast<i64>(i + 1); }
inline std::string label(std::size_t i) { return fmt::format("{}K", 4 * (i + 1)); }

/// One model on O1: throughput of the four systems, ratios of HeterMoE to the other three, Asym-EA.
struct ModelPrediction {
  Series ep, dist_ep, ep_ideal, hetermoe;  ///< thousand tokens/s
  Series over_ep, over_dist_ep, over_ep_ideal, asym_ea;
  std::vector<CompareRow> with, without;  ///< [length] zebra with and without Asym-EA
};

inline ModelPrediction predict_model(const ModelResults& paper, const SoftwareConstants& software = {}) {
  const ModelConfig model = load_model(paper.model);
  const Cluster o1 = load_cluster("o1");
  CompareOptions options;
  options.published = true;
  options.software = software;
  ModelPrediction out;
  const std::string name = model.name + " ";
  for (auto [series, text] : {std::pair{&out.ep, "EP"},
                              {&out.dist_ep, "DistEP"},
                              {&out.ep_ideal, "EP (Ideal)"},
                              {&out.hetermoe, "HeterMoE"},
                              {&out.over_ep, "HeterMoE / EP"},
                              {&out.over_dist_ep, "HeterMoE / DistEP"},
                              {&out.over_ep_ideal, "HeterMoE / EP (Ideal)"},
                              {&out.asym_ea, "Asym-EA on / off"}}) {
    series->name = name + text;
  }
  for (std::size_t i = 0; i < kNumLengths; ++i) {
    options.strategies = {"ep", "dist-ep", "ep-ideal", "zebra"};
    options.asym_ea = true;
    const std::vector<CompareRow> rows = compare_strategies(model, o1, {length(i)}, options);
    options.strategies = {"zebra"};
    options.asym_ea = false;
    out.with.push_back(rows[3]);
    out.without.push_back(compare_strategies(model, o1, {length(i)}, options)[0]);
    const double zebra = rows[3].tokens_per_s;
    out.ep.add(label(i), paper.ep[i], rows[0].tokens_per_s / 1e3);
    out.dist_ep.add(label(i), paper.dist_ep[i], rows[1].tokens_per_s / 1e3);
    out.ep_ideal.add(label(i), paper.ep_ideal[i], rows[2].tokens_per_s / 1e3);
    out.hetermoe.add(label(i), paper.hetermoe[i], zebra / 1e3);
    out.over_ep.add(label(i), paper.hetermoe[i] / paper.ep[i], zebra / rows[0].tokens_per_s);
    out.over_dist_ep.add(label(i), paper.hetermoe[i] / paper.dist_ep[i], zebra / rows[1].tokens_per_s);
    out.over_ep_ideal.add(label(i), paper.hetermoe[i] / paper.ep_ideal[i], zebra / rows[2].tokens_per_s);
    out.asym_ea.add(label(i), paper.asym_ea[i], zebra / out.without.back().tokens_per_s);
  }
  return out;
}

/// A40 and V100 of D1 on O1 at 8K, without and with Asym-EA.
inline std::vector<Series> predict_utilization(const ModelPrediction& d1) {
  constexpr std::size_t k8K = 1;
  std::vector<Series> all;
  for (const Utilization& paper : kUtilization) {
    const CompareRow& row = (all.empty() ? d1.without : d1.with)[k8K];
    Series series;
    series.name = paper.name;
    series.add("A40", paper.newer, row.utilization_attention);
    series.add("V100", paper.older, row.utilization_expert);
    all.push_back(std::move(series));
  }
  return all;
}

}  // namespace hetermoe::paper
