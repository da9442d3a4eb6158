// The published tables of HeterMoE (arXiv 2504.03871) beside the simulator's predictions of the same
// experiments, with mean and worst error. Usage: paper_bench [--markdown FILE]. Everything printed here is
// simulated.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <iostream>

#include "bench/document.h"
#include "bench/paper/predictions.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"

namespace hetermoe::paper {
namespace {

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

/// Two rows per series, published and predicted, with the errors behind.
void add_series(Document& document, const std::vector<Series>& all, int digits) {
  Row header = {"", "source"};
  header.insert(header.end(), all[0].labels.begin(), all[0].labels.end());
  header.insert(header.end(), {"mean error", "worst"});
  std::vector<Row> rows;
  for (const Series& series : all) {
    const Errors errors = errors_of({series});
    Row published = {series.name, "published"}, predicted = {"", "predicted"};
    for (const double value : series.published) published.push_back(fmt::format("{:.{}f}", value, digits));
    for (const double value : series.predicted) predicted.push_back(fmt::format("{:.{}f}", value, digits));
    published.insert(published.end(), {"", ""});
    predicted.insert(predicted.end(), {percent(errors.mean), percent(errors.worst)});
    rows.push_back(std::move(published));
    rows.push_back(std::move(predicted));
  }
  document.table(header, rows);
}

struct Bound {
  std::string name;
  Errors errors;
  std::string wanted;
};

void add_summary(Document& document, const std::vector<Bound>& bounds) {
  std::vector<Row> rows;
  for (const Bound& bound : bounds) {
    rows.push_back({bound.name, percent(bound.errors.mean), percent(bound.errors.worst), bound.wanted});
  }
  document.table({"figure, w1 and d1 together", "mean error", "worst", "wanted"}, rows);
}

/// The rows of the published evaluation whose figures are not held here.
void add_other_pairs(Document& document) {
  std::vector<Row> rows;
  for (const auto& [model, cluster] :
       {std::pair{"w1", "o1"}, {"d1", "o1"}, {"w2", "o2"}, {"d2", "o3"}, {"d1", "c1"}, {"d3", "c2"}}) {
    for (const i64 seq_len : {8192, 16384, 32768}) {
      CompareOptions options;
      options.published = true;
      options.strategies = {"zebra", "ep", "dist-ep", "ep-ideal", "pp-ep"};
      Row row = {fmt::format("{} on {}", model, cluster), fmt::format("{}K", seq_len / 1024)};
      for (const CompareRow& result :
           compare_strategies(load_model(model), load_cluster(cluster), {seq_len}, options)) {
        const bool first = result.strategy == "zebra";
        row.push_back(!result.infeasible.empty() ? "does not fit"
                      : first                    ? fmt::format("{:.1f}", result.tokens_per_s / 1e3)
                                                 : fmt::format("{:.2f}", 1 / result.speed_over_first));
        if (first) row.push_back(fmt::format("{}", fmt::join(result.experts_moved, " ")));
      }
      rows.push_back(std::move(row));
    }
  }
  document.table(
      {"", "length", "HeterMoE, 1000 tokens/s", "experts moved", "/ EP", "/ DistEP", "/ EP (Ideal)", "/ PP"},
      rows);
}

/// D1 with 8 experts on one machine of each given type and count, ports as in O1.
Cluster small_cluster(const std::vector<std::pair<std::string, i32>>& types) {
  Cluster cluster = load_cluster("o1");
  const Node node = cluster.nodes[0];
  cluster.name = "small";
  cluster.types.clear();
  cluster.devices.clear();
  cluster.nodes.clear();
  for (const auto& [name, count] : types) {
    cluster.types.push_back(catalogue_device(name, "paper_bench"));
    for (i32 i = 0; i < count; ++i) {
      cluster.devices.push_back(
          {static_cast<i32>(cluster.types.size()) - 1, static_cast<NodeId>(cluster.nodes.size()), 1});
      cluster.nodes.push_back(node);
    }
  }
  return cluster;
}

/// Half of four A40 replaced by V100.
void add_homogeneous(Document& document) {
  ModelConfig model = load_model("d1");
  model.num_experts = 8;
  const auto predict = [&](const Cluster& cluster, const char* strategy, i64 seq_len) {
    CompareOptions options;
    options.published = true;
    options.strategies = {strategy};
    return compare_strategies(model, cluster, {seq_len}, options)[0].tokens_per_s;
  };
  const Cluster mixed = small_cluster({{"A40", 2}, {"V100", 2}}), newer = small_cluster({{"A40", 4}}),
                older = small_cluster({{"V100", 4}});
  Series kept;
  std::vector<Row> rows;
  double mean = 0;
  for (std::size_t i = 0; i < kNumLengths; ++i) {
    const double zebra = predict(mixed, "zebra", length(i)), on_newer = predict(newer, "ep", length(i)),
                 on_older = predict(older, "ep", length(i));
    mean += zebra / on_newer / static_cast<double>(kNumLengths);
    rows.push_back({label(i), fmt::format("{:.1f}", zebra / 1e3), fmt::format("{:.1f}", on_newer / 1e3),
                    fmt::format("{:.1f}", on_older / 1e3), fmt::format("{:.2f}", zebra / on_newer)});
  }
  document.table({"length", "HeterMoE, 2 A40 + 2 V100", "EP, 4 A40", "EP, 4 V100", "share kept"}, rows);
  document.paragraph(
      fmt::format("Share of the throughput kept, mean of these lengths: predicted {}, published {} (which "
                  "lengths it averages is not held here).",
                  percent(mean), percent(kKeptThroughput)));
}

std::string fields_line(const Json& json) {
  std::string out;
  for (const auto& [key, value] : json.items())
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", key, value.dump());
  return out;
}

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

void add_configuration(Document& document) {
  document.paragraph("Software: " + fields_line(write_fields(SoftwareConstants())) + ".");
  for (const char* name : {"A40", "V100", "L40S", "T4"}) {
    const DeviceType type = catalogue_device(name, "paper_bench");
    document.paragraph(
        fmt::format("{}: {} TFLOP/s in fp16, {} GB/s, gemm_efficiency {}, attention_efficiency {}.", name,
                    type.fp16_tflops, type.memory_gb_s, type.gemm_efficiency, type.attention_efficiency));
  }
  document.paragraph(fmt::format(
      "Global batch: the most that every strategy can hold, at most {} tokens; microbatch count and "
      "partition degree tuned per "
      "system; one row per expert copy, EP sends again for recomputation, zebra's queues bound by name.",
      kMaxStepTokens));
}

Document compare_with_paper() {
  Document document;
  document.paragraph("All predictions are simulated, from configs/ and the constants at the end.");
  const std::vector<Series> figure2 = predict_figure2();
  const Series example = predict_worked_example();
  const ModelPrediction w1 = predict_model(kO1[0]), d1 = predict_model(kO1[1]);
  const std::vector<Series> utilization = predict_utilization(d1);
  document.heading("Summary");
  add_summary(document, {{"HeterMoE / EP", errors_of({w1.over_ep, d1.over_ep}), "mean 4 %, worst 11 %"},
                         {"HeterMoE / EP (Ideal)", errors_of({w1.over_ep_ideal, d1.over_ep_ideal}),
                          "mean 4 %, worst 11 %"},
                         {"HeterMoE / DistEP", errors_of({w1.over_dist_ep, d1.over_dist_ep}), "mean 5 %"},
                         {"Asym-EA on / off", errors_of({w1.asym_ea, d1.asym_ea}), "mean 3 %"},
                         {"throughput, EP", errors_of({w1.ep, d1.ep}), "mean 4 %"},
                         {"throughput, DistEP", errors_of({w1.dist_ep, d1.dist_ep}), "mean 4 %"},
                         {"throughput, EP (Ideal)", errors_of({w1.ep_ideal, d1.ep_ideal}), "mean 4 %"},
                         {"throughput, HeterMoE", errors_of({w1.hetermoe, d1.hetermoe}), "mean 4 %"},
                         {"Figure 2, all four", errors_of(figure2), "mean 6 %"},
                         {"utilisation at 8K, points", errors_of(utilization, true), "worst 6"}});
  document.heading("Figure 2: older over newer device, time of one module");
  add_series(document, figure2, 2);
  document.heading("Worked example of Asym-EA: experts moved per layer, end of the forward pass");
  add_series(document, {example}, 0);
  document.heading("Throughput on O1, thousand tokens per second");
  add_series(document,
             {w1.ep, w1.dist_ep, w1.ep_ideal, w1.hetermoe, d1.ep, d1.dist_ep, d1.ep_ideal, d1.hetermoe}, 1);
  document.heading("Ratios on O1");
  add_series(document,
             {w1.over_ep, w1.over_dist_ep, w1.over_ep_ideal, d1.over_ep, d1.over_dist_ep, d1.over_ep_ideal},
             2);
  document.heading("Asym-EA on O1");
  add_series(document, {w1.asym_ea, d1.asym_ea}, 3);
  document.heading("Utilisation, d1 on O1 at 8K");
  add_series(document, utilization, 2);
  document.heading("Prediction only: pairs of models and clusters");
  add_other_pairs(document);
  document.heading("Prediction only: a homogeneous cluster, d1 with 8 experts, 1000 tokens/s");
  add_homogeneous(document);
  document.heading("Configuration");
  add_configuration(document);
  return document;
}

int run(const std::vector<std::string>& words) {
  if (!words.empty() && (words.size() != 2 || words[0] != "--markdown")) {
    std::cerr << "usage: paper_bench [--markdown FILE]\n";
    return 2;
  }
  const Document document = compare_with_paper();
  std::cout << document.text();
  if (!words.empty()) {
    write_text(words[1],
               fmt::format("# HeterMoE's published figures and our predictions, {}\n\nMade by `paper_bench "
                           "--markdown`.\n\n{}",
                           today(), document.markdown()));
  }
  return 0;
}

}  // namespace
}  // namespace hetermoe::paper

int main(int argc, char** argv) {
  try {
    return hetermoe::paper::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
