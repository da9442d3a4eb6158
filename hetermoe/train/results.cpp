#include "hetermoe/train/results.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "hetermoe/base/index.h"
#include "hetermoe/report/table.h"
#include "hetermoe/report/waits.h"

namespace hetermoe {
namespace {

/// Busy share of the compute lanes of a role, averaged over its devices.
double busy_of_role(const Timeline& timeline, const std::string& role) {
  const std::vector<double> busy = busy_share(timeline);
  double sum = 0;
  int count = 0;
  for (std::size_t d = 0; d < busy.size(); ++d) {
    if (timeline.devices[d].role != role && timeline.devices[d].role != "both") continue;
    sum += busy[d];
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

LossSeries loss_series(const StrategyRun& run) {
  LossSeries series;
  series.name = run.strategy;
  for (const StepRecord& record : run.outcome.records) {
    if (!record.updated) continue;
    series.train.push_back({static_cast<double>(record.step), record.loss});
  }
  for (const Validation& validation : run.outcome.validations) {
    series.validation.push_back({static_cast<double>(validation.step), validation.loss});
  }
  return series;
}

std::string source_note(const StrategyRun& run) {
  if (!run.outcome.pace || run.outcome.pace->kept_up) return "";
  return fmt::format(
      "{}: the run did not keep its pace (executed {:+.1f} % against the simulation of what it routed): its "
      "ratios are not to be trusted. Give it a larger clock.pace_scale or a quieter machine.",
      run.strategy, 100 * run.outcome.pace->lag);
}

/// A curve over the steps of each run.
LossPlot routing_plot(const std::string& title, const std::string& label,
                      const std::vector<StrategyRun>& runs, double StepRouting::*figure) {
  LossPlot plot;
  plot.title = title;
  plot.y_label = label;
  plot.height = 300;
  for (const StrategyRun& run : runs) {
    LossSeries series;
    series.name = run.strategy;
    for (const StepRecord& record : run.outcome.records)
      series.train.push_back({static_cast<double>(record.step), record.routing.*figure});
    if (!series.train.empty()) plot.runs.push_back(std::move(series));
  }
  return plot;
}

/// A curve for each layer of each run; of many layers one of the largest figure, for curves hide each other.
LossPlot layer_plot(const std::string& title, const std::string& label, const std::vector<StrategyRun>& runs,
                    const std::function<double(const LayerLoad&)>& figure) {
  constexpr std::size_t kMostCurves = 6;
  LossPlot plot;
  plot.title = title;
  plot.y_label = label;
  plot.height = 300;
  for (const StrategyRun& run : runs) {
    std::map<i64, LossSeries> of_layer;
    LossSeries worst{fmt::format("{}layer with most", runs.size() > 1 ? run.strategy + " " : ""), {}, {}};
    for (const StepRecord& record : run.outcome.records) {
      double most = 0;
      for (const LayerLoad& load : record.loads) {
        most = std::max(most, figure(load));
        of_layer[load.layer].train.push_back({static_cast<double>(record.step), figure(load)});
      }
      if (!record.loads.empty()) worst.train.push_back({static_cast<double>(record.step), most});
    }
    if (of_layer.size() * runs.size() > kMostCurves) {
      plot.runs.push_back(std::move(worst));
      continue;
    }
    for (auto& [layer, series] : of_layer) {
      series.name = fmt::format("{}layer {}", runs.size() > 1 ? run.strategy + " " : "", layer);
      plot.runs.push_back(std::move(series));
    }
  }
  return plot;
}

bool is_zero(const LossPlot& plot) {
  return std::all_of(plot.runs.begin(), plot.runs.end(), [](const LossSeries& series) {
    return std::all_of(series.train.begin(), series.train.end(),
                       [](const LossPoint& p) { return p.loss == 0; });
  });
}

/// How evenly each layer's router spreads its tokens.
void add_layer_plots(ReportInput& input, const std::vector<StrategyRun>& runs) {
  std::vector<LossPlot> plots = {
      layer_plot("Busiest expert of each layer over the mean", "max/mean", runs,
                 [](const LayerLoad& load) { return load.max_over_mean; }),
      layer_plot("Spread of the experts' copies in each layer (standard deviation over mean)", "CV", runs,
                 [](const LayerLoad& load) { return load.cv; })};
  plots.push_back(layer_plot("Dead experts of each layer", "experts", runs,
                             [](const LayerLoad& load) { return static_cast<double>(load.dead); }));
  plots.push_back(layer_plot("Copies dropped in each layer", "share", runs,
                             [](const LayerLoad& load) { return load.dropped; }));
  LossPlot aux;
  aux.title = "Load-balancing loss and z-loss together, coefficients included";
  aux.y_label = "nats";
  aux.height = 300;
  for (const StrategyRun& run : runs) {
    LossSeries series{run.strategy, {}, {}};
    for (const StepRecord& record : run.outcome.records)
      series.train.push_back({static_cast<double>(record.step), record.aux_loss});
    aux.runs.push_back(std::move(series));
  }
  plots.push_back(std::move(aux));
  for (LossPlot& plot : plots) {
    if (!is_zero(plot)) input.routing.push_back(std::move(plot));
  }
}

void add_routing(ReportInput& input, const ModelConfig& model, const std::vector<StrategyRun>& runs) {
  for (const StrategyRun& run : runs) {
    if (run.outcome.expert_copies.empty()) continue;
    ExpertLoad load;
    load.title = fmt::format("{}: copies of each expert, all steps of this run", run.strategy);
    for (i64 l = 0; l < model.num_layers; ++l) {
      if (!model.is_moe(l)) continue;
      load.layers.push_back(l);
      load.copies.push_back(run.outcome.expert_copies[static_cast<std::size_t>(l)]);
    }
    if (!load.layers.empty()) input.expert_loads.push_back(std::move(load));
  }
  if (input.expert_loads.empty()) return;
  input.routing = {
      routing_plot("Gini coefficient of the experts' copies, mean over layers", "Gini", runs,
                   &StepRouting::gini),
      routing_plot("Time ratio: slowest owner over a perfect division of the step's copies, mean over layers",
                   "time ratio", runs, &StepRouting::time_ratio)};
  add_layer_plots(input, runs);
}

ReportInput report_input(const Job& job, const ModelConfig& model, const Cluster& cluster,
                         const std::vector<StrategyRun>& runs) {
  ReportInput input;
  input.title = fmt::format("hetermoe: {} on {}", model.name, cluster.name);
  input.facts = {{"model", fmt::format("{} ({} parameters)", model.name,
                                       format_count(static_cast<double>(count_parameters(model).total)))},
                 {"cluster", cluster.name},
                 {"clock", name_of(job.clock.kind)},
                 {"tokens per step", std::to_string(job.train.sequences * job.train.seq_len)},
                 {"microbatches", std::to_string(job.train.microbatches)},
                 {"steps", std::to_string(job.train.steps)}};
  LossPlot losses;
  losses.title = fmt::format("Loss (nats per {})", token_word(job));
  for (const StrategyRun& run : runs) {
    StrategyReport report;
    report.name = run.strategy;
    report.simulated = run.predicted.timeline;
    report.simulated_step = run.predicted.step;
    if (!run.outcome.records.empty()) {
      report.executed = run.outcome.executed;
      report.executed_step = run.outcome.executed_step;
      losses.runs.push_back(loss_series(run));
    }
    report.note = source_note(run);
    input.strategies.push_back(std::move(report));
  }
  if (!losses.runs.empty()) {
    if (runs[0].outcome.unigram_entropy > 0) {
      input.facts.emplace_back("unigram entropy of the validation text",
                               fmt::format("{:.3f} nats", runs[0].outcome.unigram_entropy));
    }
    input.losses.push_back(std::move(losses));
  }
  add_routing(input, model, runs);
  return input;
}

}  // namespace

const char* token_word(const Job& job) { return job.data.tokenizer == "bytes" ? "byte" : "token"; }

std::string log_line(const StepRecord& r, i64 total_steps) {
  return fmt::format(
      "step {}/{}  loss {:.4f}  aux {:.4f}  grad {:.2f}  lr {:.2e}  {} tokens/s  expert max/mean {:.2f}  "
      "Gini {:.3f}  time ratio {:.2f}  waiting: attention {:.0f} %, expert {:.0f} %",
      r.step, total_steps, r.loss, r.aux_loss, r.grad_norm, r.learning_rate, format_count(r.tokens_per_s),
      r.expert_max_over_mean, r.routing.gini, r.routing.time_ratio, 100 * r.attention_wait,
      100 * r.expert_wait);
}

Json metrics_json(const StepRecord& r) {
  Json json = {{"step", r.step},
               {"loss", r.loss},
               {"aux_loss", r.aux_loss},
               {"grad_norm", r.grad_norm},
               {"learning_rate", r.learning_rate},
               {"tokens_per_s", r.tokens_per_s},
               {"step_s", r.step_s},
               {"wall_s", r.wall_s},
               {"tokens_hash", fmt::format("{:016x}", r.tokens_hash)},
               {"peak_memory_bytes", r.peak_memory},
               {"expert_max_over_mean", r.expert_max_over_mean},
               {"expert_gini", r.routing.gini},
               {"rank_max_over_mean", r.routing.rank_ratio},
               {"time_ratio", r.routing.time_ratio},
               {"attention_wait", r.attention_wait},
               {"expert_wait", r.expert_wait}};
  Json loads = Json::array();
  i64 dead = 0;
  double cv = 0, dropped = 0;
  for (const LayerLoad& load : r.loads) {
    loads.push_back({{"layer", load.layer},
                     {"max_over_mean", load.max_over_mean},
                     {"cv", load.cv},
                     {"dead_experts", load.dead},
                     {"dropped_share", load.dropped}});
    dead += load.dead, cv += load.cv / real(r.loads.size()), dropped += load.dropped / real(r.loads.size());
  }
  if (!r.loads.empty()) {
    json["top_k"] = r.top_k;
    json["expert_cv"] = cv;
    json["dead_experts"] = dead;
    json["dropped_share"] = dropped;
    json["layers"] = loads;
  }
  if (r.replayed_choices) json["replayed_choices"] = *r.replayed_choices;
  if (r.gpu_peak > 0) json["gpu_peak_bytes"] = r.gpu_peak;
  if (!r.updated) json["updated"] = false;
  if (r.overflowed) json["overflowed"] = true;
  if (!r.warnings.empty()) json["warnings"] = r.warnings;
  return json;
}

namespace {

void write_job(const Job& job) {
  write_text(std::filesystem::path(job.output) / "job.json", to_json(job).dump(2) + "\n");
}

}  // namespace

MetricsLog::MetricsLog(const Job& job, std::size_t num_strategies)
    : job_(job), folder_(job.output), several_(num_strategies > 1) {}

namespace {

/// The numbers of a line of metrics, under their names there.
void add_event(EventFile& events, const Json& line) {
  std::vector<std::pair<std::string, double>> scalars;
  for (const auto& [name, value] : line.items()) {
    if (value.is_number() && name != "step") scalars.emplace_back(name, value.get<double>());
  }
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  events.add(line.at("step").get<i64>(), now.count(), scalars);
}

}  // namespace

MetricsLog::Files MetricsLog::open(const std::string& strategy, i64 first_step) const {
  const std::filesystem::path path = folder_ / fmt::format("metrics{}.jsonl", several_ ? "-" + strategy : "");
  std::string earlier;
  std::vector<Json> lines;
  std::ifstream in(path);
  for (std::string line; first_step > 1 && std::getline(in, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    if (json["step"].get<i64>() >= first_step) continue;
    earlier += line + "\n";
    lines.push_back(json);
  }
  write_text(path, earlier);
  Files out;
  out.lines.open(path, std::ios::app);
  out.events.emplace(several_ ? folder_ / "tensorboard" / strategy : folder_ / "tensorboard");
  for (const Json& line : lines) add_event(*out.events, line);
  return out;
}

void MetricsLog::add(const std::string& strategy, const StepRecord& record) {
  if (files_.empty()) write_job(job_);
  if (!files_.contains(strategy)) files_.emplace(strategy, open(strategy, record.step));
  Files& files = files_.at(strategy);
  const Json line = metrics_json(record);
  files.lines << line.dump() << std::endl;
  if (!files.lines) fail<IoError>(folder_.string(), "cannot write the metrics of step {}", record.step);
  add_event(*files.events, line);
}

std::string strategy_table(const std::vector<StrategyRun>& runs) {
  Table table({"strategy", "simulated step", "replayed step", "executed step", "exec/replay",
               "attention busy", "expert busy", "train loss", "validation loss"});
  for (const StrategyRun& run : runs) {
    const TrainOutcome& out = run.outcome;
    const bool executed = !out.records.empty();
    table.add_row({run.strategy, format_seconds(run.predicted.step),
                   out.replayed_step > 0 ? format_seconds(out.replayed_step) : "-",
                   executed ? format_seconds(out.executed_step) : "-",
                   out.replayed_step > 0 ? fmt::format("{:.3f}", out.executed_over_replayed) : "-",
                   format_percent(busy_of_role(run.predicted.timeline, "attention")),
                   format_percent(busy_of_role(run.predicted.timeline, "expert")),
                   executed ? fmt::format("{:.6f}", out.records.back().loss) : "-",
                   out.validations.empty() ? "-" : fmt::format("{:.4f}", out.validations.back().loss)});
  }
  std::string text = table.str();
  const std::string clock = runs.empty() ? "" : runs[0].outcome.executed.source;
  text += fmt::format("busy shares are simulated{}\n", clock.empty() ? "" : "; steps are " + clock);
  for (const StrategyRun& run : runs) {
    const std::string note = source_note(run);
    if (!note.empty()) text += note + "\n";
  }
  return text;
}

Json to_json(const StrategyRun& run, const Job& job) {
  const TrainOutcome& out = run.outcome;
  Json json;
  json["model"] = run.plan.model;
  json["cluster"] = job.cluster;
  json["seq_len"] = run.plan.seq_len;
  json["strategy"] = run.strategy;
  json["tokens_per_s"] = static_cast<double>(job.train.sequences * job.train.seq_len) / run.predicted.step;
  json["step_s"] = run.predicted.step;
  json["utilization"] = {{"attention", busy_of_role(run.predicted.timeline, "attention")},
                         {"expert", busy_of_role(run.predicted.timeline, "expert")}};
  json["experts_moved"] = job.plan.experts_moved;
  if (out.records.empty()) return json;
  json["executed"] = {{"clock", out.executed.source},          {"step_s", out.executed_step},
                      {"replayed_step_s", out.replayed_step},  {"steps", out.records.size()},
                      {"final_loss", out.records.back().loss}, {"unigram_entropy", out.unigram_entropy},
                      {"interrupted", out.stopped_by != 0},    {"notes", out.notes}};
  json["executed"]["first_step"] = out.first_step;
  json["executed"]["skipped_steps"] = out.skipped_steps;
  json["executed"]["peak_memory_bytes"] = out.records.back().peak_memory;
  if (out.records.back().gpu_peak > 0) json["executed"]["gpu_peak_bytes"] = out.records.back().gpu_peak;
  json["executed"]["warnings"] = out.warnings;
  for (const PlanTakeover& change : out.changes) {
    json["executed"]["changes"].push_back({{"step", change.step},
                                           {"plan", change.plan},
                                           {"moves", change.moves},
                                           {"bytes", change.bytes},
                                           {"simulated_s", change.simulated_s},
                                           {"executed_s", change.executed_s}});
  }
  if (!out.validations.empty()) {
    json["executed"]["validation_loss"] = out.validations.back().loss;
    json["executed"]["validation_perplexity"] = std::exp(out.validations.back().loss);
    for (const Validation::OfSource& source : out.validations.back().sources) {
      json["executed"]["validation_sources"].push_back(
          {{"source", source.name}, {"loss", source.loss}, {"perplexity", std::exp(source.loss)}});
    }
  }
  if (out.pace) {
    json["executed"]["pace"] = {{"scale", out.pace->scale},
                                {"cpu_share", out.pace->cpu_share},
                                {"lag", out.pace->lag},
                                {"kept_up", out.pace->kept_up}};
  }
  return json;
}

std::filesystem::path write_results(const Job& job, const ModelConfig& model, const Cluster& cluster,
                                    const std::vector<StrategyRun>& runs) {
  const std::filesystem::path folder = job.output;
  write_job(job);
  write_text(folder / "model.json", to_hf(model).dump(2) + "\n");
  write_text(folder / "cluster.json", to_json(cluster).dump(2) + "\n");
  Json summary = Json::array();
  for (const StrategyRun& run : runs) {
    const std::string suffix = runs.size() > 1 ? "-" + run.strategy : "";
    write_text(folder / fmt::format("plan{}.json", suffix), to_json(run.plan).dump(1) + "\n");
    save_timeline(folder / fmt::format("predicted{}.json", suffix), run.predicted.timeline);
    if (!run.outcome.records.empty()) {
      save_timeline(folder / fmt::format("timeline{}.json", suffix), run.outcome.executed);
      write_text(folder / fmt::format("trace{}.json", suffix),
                 perfetto_trace(run.outcome.executed).dump() + "\n");
    }
    for (const PlanTakeover& change : run.outcome.changes)
      save_timeline(folder / fmt::format("migration-{}.json", change.step), change.simulated);
    summary.push_back(to_json(run, job));
  }
  write_text(folder / "summary.json", Json{{"rows", summary}}.dump(2) + "\n");
  const ReportInput report = report_input(job, model, cluster, runs);
  if (!report.losses.empty()) write_text(folder / "loss.svg", loss_svg(report.losses[0]));
  write_text(folder / "report.html", html_report(report));
  return folder / "report.html";
}

}  // namespace hetermoe
