#include "hetermoe/train/run/results.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "hetermoe/base/index.h"
#include "hetermoe/data/dataset.h"
#include "hetermoe/report/metrics.h"
#include "hetermoe/report/run_page.h"
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

bool plan_has_experts(const StrategyRun& run) {
  const std::vector<LayerPlacement>& layers = run.plan.groups.at(0).layers;
  return std::any_of(layers.begin(), layers.end(), [](const auto& layer) { return !layer.experts.empty(); });
}

std::string source_note(const StrategyRun& run) {
  if (!run.outcome.pace || run.outcome.pace->kept_up) return "";
  return fmt::format(
      "{}: the run did not keep its pace (executed {:+.1f} % against the simulation of what it routed): its "
      "ratios are not to be trusted. Give it a larger clock.pace_scale or a quieter machine.",
      run.strategy, 100 * run.outcome.pace->lag);
}

}  // namespace

std::string log_line_key(const StepRecord& record, bool emulated) {
  const bool has_experts = !record.loads.empty();
  std::string key = "step lines: ";
  if (has_experts) key += "aux: load-balancing loss; ";
  key += "grad: norm of all gradients; lr: learning rate; waiting: idle share of compute lanes";
  if (emulated) key += "\n  emulated: in the time of the named GPUs, not of this machine";
  if (has_experts)
    key +=
        "\n  expert max/mean: copies of the busiest expert over the mean; Gini: unevenness of experts (0 = "
        "even)"
        "\n  time ratio: the slowest owner of experts over a perfect division (1 = perfect)";
  return key;
}

std::string log_line(const StepRecord& r, i64 total_steps, bool emulated) {
  const bool has_experts = !r.loads.empty();
  std::string line = fmt::format("step {}/{}  loss {:.4f}", r.step, total_steps, r.loss);
  if (has_experts) line += fmt::format("  aux {:.4f}", r.aux_loss);
  line += fmt::format("  grad {:.2f}  lr {:.2e}  {} tokens/s{}", r.grad_norm, r.learning_rate,
                      format_count(r.tokens_per_s), emulated ? " emulated" : "");
  if (has_experts)
    line += fmt::format("  expert max/mean {:.2f}  Gini {:.3f}", r.expert_max_over_mean, r.routing.gini);
  if (r.routing.time_ratio) line += fmt::format("  time ratio {:.2f}", *r.routing.time_ratio);
  line += fmt::format("  waiting: attention {:.0f} %", 100 * r.attention_wait);
  return has_experts ? line + fmt::format(", expert {:.0f} %", 100 * r.expert_wait) : line;
}

namespace {

/// Of the files of a run, where there are several: "-zebra".
std::string suffix_of(const StrategyRun& run, const std::vector<StrategyRun>& runs) {
  return runs.size() > 1 ? "-" + run.strategy : "";
}

void write_frame(const Job& job, const ModelConfig& model, const Cluster& cluster,
                 const std::vector<StrategyRun>& runs) {
  const std::filesystem::path folder = job.output;
  write_text(folder / "job.json", to_json(job).dump(2) + "\n");
  write_text(folder / "model.json", to_hf(model).dump(2) + "\n");
  write_text(folder / "cluster.json", to_json(cluster).dump(2) + "\n");
  Json rows = Json::array();
  for (const StrategyRun& run : runs) {
    if (run.predicted.step <= 0 && run.outcome.records.empty()) continue;  // its turn is still to come
    rows.push_back(to_json(run, job));
    rows.back()["suffix"] = suffix_of(run, runs);
    if (const std::string note = source_note(run); !note.empty()) rows.back()["note"] = note;
  }
  write_text(folder / "summary.json", Json{{"rows", rows}}.dump(2) + "\n");
}

void write_plan(const std::filesystem::path& folder, const std::string& suffix, const StrategyRun& run) {
  write_text(folder / fmt::format("plan{}.json", suffix), to_json(run.plan).dump(1) + "\n");
  save_timeline(folder / fmt::format("predicted{}.json", suffix), run.predicted.timeline);
}

void write_picture(const std::filesystem::path& folder, const std::string& suffix, const ModelConfig& model,
                   const StepPicture& picture) {
  Json layers = Json::array(), copies = Json::array();
  for (i64 l = 0; l < model.num_layers && !picture.expert_copies.empty(); ++l) {
    if (!model.is_moe(l)) continue;
    layers.push_back(l);
    copies.push_back(picture.expert_copies[idx(l)]);
  }
  save_timeline(folder / fmt::format("timeline{}.json", suffix), picture.executed);
  write_text(folder / fmt::format("experts{}.json", suffix), Json{{"first_step", picture.first_step},
                                                                  {"last_step", picture.last_step},
                                                                  {"layers", layers},
                                                                  {"copies", copies}}
                                                                     .dump() +
                                                                 "\n");
}

/// The numbers of `json` under their names, those inside of others behind a slash: "layer_3/cv".
void add_scalars(std::vector<std::pair<std::string, double>>& scalars, const Json& json,
                 const std::string& before) {
  for (const auto& [name, value] : json.items()) {
    if (value.is_number() && name != "step" && name != "layer")
      scalars.emplace_back(before + name, value.get<double>());
    else if (value.is_object())
      add_scalars(scalars, value, before + name + "/");
  }
}

/// The numbers of a line of metrics, under their names there.
void add_event(EventFile& events, const Json& line) {
  std::vector<std::pair<std::string, double>> scalars;
  add_scalars(scalars, line, "");
  for (const Json& layer : line.value("layers", Json::array()))
    add_scalars(scalars, layer, fmt::format("layer_{}/", layer.at("layer").get<i64>()));
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  events.add(line.at("step").get<i64>(), now.count(), scalars);
}

}  // namespace

RunFiles::Files RunFiles::open(const StrategyRun& run, i64 first_step) const {
  const std::filesystem::path folder = job_.output;
  const std::string suffix = suffix_of(run, runs_);
  const std::filesystem::path path = folder / fmt::format("metrics{}.jsonl", suffix);
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
  out.events.emplace(suffix.empty() ? folder / "tensorboard" : folder / "tensorboard" / run.strategy);
  for (const Json& line : lines) add_event(*out.events, line);
  return out;
}

void RunFiles::add(const StrategyRun& run, const StepRecord& record) {
  if (!files_.contains(&run)) {
    write_frame(job_, model_, cluster_, runs_);
    write_plan(job_.output, suffix_of(run, runs_), run);
    files_.emplace(&run, open(run, record.step));
    next_picture_ = {};
  }
  Files& files = files_.at(&run);
  const Json line = metrics_json(record);
  files.lines << line.dump() << std::endl;
  if (!files.lines) fail<IoError>(job_.output, "cannot write the metrics of step {}", record.step);
  add_event(*files.events, line);
}

std::filesystem::path growth_file(const Job& job) {
  return std::filesystem::path(job.output) / "growth.json";
}

void forget_growth(const Job& job) {
  if (!job.output.empty()) std::filesystem::remove(growth_file(job));
}

bool RunFiles::wants_picture() const { return std::chrono::steady_clock::now() >= next_picture_; }

void RunFiles::add_picture(const StrategyRun& run, const StepPicture& picture) {
  constexpr std::chrono::seconds kLeast(2);
  constexpr int kPauses = 50;  // pictures take so small a part of the run's time
  const auto begin = std::chrono::steady_clock::now();
  const std::string suffix = suffix_of(run, runs_);
  write_picture(job_.output, suffix, model_, picture);
  write_frame(job_, model_, cluster_, runs_);  // the plan may be another than with the first step
  write_plan(job_.output, suffix, run);
  const auto end = std::chrono::steady_clock::now();
  next_picture_ = end + std::max<std::chrono::steady_clock::duration>(kLeast, kPauses * (end - begin));
}

std::string strategy_table(const std::vector<StrategyRun>& runs) {
  const bool validates = std::any_of(
      runs.begin(), runs.end(), [](const StrategyRun& run) { return !run.outcome.validations().empty(); });
  const bool experts = std::any_of(runs.begin(), runs.end(), plan_has_experts);
  std::vector<std::string> header = {"strategy",      "simulated step", "replayed step",
                                     "executed step", "exec/replay",    "attention busy"};
  if (experts) header.push_back("expert busy");
  header.push_back("train loss");
  if (validates) header.push_back("validation loss");
  Table table(header);
  for (const StrategyRun& run : runs) {
    const TrainOutcome& out = run.outcome;
    const bool predicted = run.predicted.step > 0, executed = !out.records.empty();
    const std::vector<Validation> validations = out.validations();
    const auto busy = [&](const char* role) {
      return predicted ? format_percent(busy_of_role(run.predicted.timeline, role)) : "-";
    };
    std::vector<std::string> cells = {
        run.strategy,
        predicted ? format_seconds(run.predicted.step) : "-",
        out.replayed_step > 0 ? format_seconds(out.replayed_step) : "-",
        executed ? format_seconds(out.executed_step) : "-",
        out.replayed_step > 0 ? fmt::format("{:.3f}", out.executed_over_replayed) : "-",
        busy("attention")};
    if (experts) cells.push_back(busy("expert"));
    cells.push_back(executed ? fmt::format("{:.6f}", out.records.back().loss) : "-");
    if (validates)
      cells.push_back(validations.empty() ? "-" : fmt::format("{:.4f}", validations.back().loss));
    table.add_row(std::move(cells));
  }
  std::string text = table.str();
  const std::string clock = runs.empty() ? "" : runs[0].outcome.executed.source;
  text += experts
              ? "simulated step: predicted for even routing; replayed: with the experts that the run chose.\n"
              : "simulated step: predicted; replayed: the same, as nothing is routed.\n";
  text +=
      "exec/replay: 1 where the run kept the clock's pace. busy: share of the simulated step that a role "
      "computes.\n";
  if (!clock.empty()) text += fmt::format("Steps are {}.\n", clock);
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
  json["loss_per"] = token_word(job.data);
  if (run.predicted.step > 0) {  // else the run was stopped before its step was simulated
    json["tokens_per_s"] = static_cast<double>(job.train.sequences * job.train.seq_len) / run.predicted.step;
    json["step_s"] = run.predicted.step;
    json["utilization"] = {{"attention", busy_of_role(run.predicted.timeline, "attention")}};
    if (plan_has_experts(run)) json["utilization"]["expert"] = busy_of_role(run.predicted.timeline, "expert");
  }
  json["experts_moved"] = job.plan.experts_moved;
  for (std::size_t i = 0; i < run.predicted.memory.size(); ++i) {
    Json memory = to_json(run.predicted.memory[i].use);
    memory["device"] = run.predicted.timeline.devices[i].name;
    json["memory_bytes"].push_back(memory);
  }
  if (out.records.empty()) return json;
  json["executed"] = {{"clock", out.executed.source},          {"step_s", out.executed_step},
                      {"replayed_step_s", out.replayed_step},  {"steps", out.records.size()},
                      {"final_loss", out.records.back().loss}, {"unigram_entropy", out.unigram_entropy},
                      {"interrupted", out.stopped_by != 0},    {"notes", out.notes}};
  json["executed"]["executed_over_replayed"] = out.executed_over_replayed;
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
  if (const std::vector<Validation> validations = out.validations(); !validations.empty()) {
    json["executed"]["validation_loss"] = validations.back().loss;
    json["executed"]["validation_perplexity"] = std::exp(validations.back().loss);
    for (const Validation::OfSource& source : validations.back().sources) {
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
  const bool done_before = std::all_of(runs.begin(), runs.end(), [](const StrategyRun& run) {
    return run.outcome.first_step > 0 && run.outcome.records.empty();
  });
  if (done_before && std::filesystem::exists(folder / "report.html")) return folder / "report.html";
  write_frame(job, model, cluster, runs);
  for (const StrategyRun& run : runs) {
    const std::string suffix = suffix_of(run, runs);
    const TrainOutcome& out = run.outcome;
    write_plan(folder, suffix, run);
    if (!out.records.empty()) {
      write_picture(folder, suffix, model,
                    {out.copies_from, out.records.back().step, out.executed, out.expert_copies});
      write_text(folder / fmt::format("trace{}.json", suffix), perfetto_trace(out.executed).dump() + "\n");
    } else if (out.first_step == 0) {  // those of another run
      std::filesystem::remove(folder / fmt::format("timeline{}.json", suffix));
      std::filesystem::remove(folder / fmt::format("experts{}.json", suffix));
    }
    for (const PlanTakeover& change : out.changes)
      save_timeline(folder / fmt::format("migration-{}.json", change.step), change.simulated);
  }
  const ReportInput report = run_page(folder);
  if (!report.losses.empty()) write_text(folder / "loss.svg", loss_svg(report.losses[0]));
  write_text(folder / "report.html", html_report(report));
  return folder / "report.html";
}

}  // namespace hetermoe
