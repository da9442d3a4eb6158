#include "hetermoe/report/metrics.h"

#include <algorithm>
#include <filesystem>

namespace hetermoe {
namespace {

using Section = MetricPlot::Section;

constexpr double kMib = 1 << 20, kGib = 1 << 30;

template <class Member>
std::function<Json(const StepRecord&)> of(Member StepRecord::*member) {
  return [member](const StepRecord& record) { return Json(record.*member); };
}

Json none() { return {}; }

Json or_none(const std::optional<double>& value) { return value ? Json(*value) : none(); }

/// Where the model has experts: without any, zeros would say that these wait, or get equal loads.
template <class Of>
std::function<Json(const StepRecord&)> of_layers(Of value) {
  return [value](const StepRecord& record) { return record.loads.empty() ? none() : Json(value(record)); };
}

/// Mean over layers.
double mean_of(const StepRecord& record, double LayerLoad::*member) {
  double mean = 0;
  for (const LayerLoad& load : record.loads) mean += load.*member / real(record.loads.size());
  return mean;
}

i64 dead_experts(const StepRecord& record) {
  i64 dead = 0;
  for (const LayerLoad& load : record.loads) dead += load.dead;
  return dead;
}

Json layers(const StepRecord& record) {
  Json all = Json::array();
  for (const LayerLoad& load : record.loads)
    all.push_back({{"layer", load.layer},
                   {"max_over_mean", load.max_over_mean},
                   {"cv", load.cv},
                   {"dead_experts", load.dead},
                   {"dropped_share", load.dropped}});
  return all;
}

/// Where there are several sources; by file name, if that tells them apart.
Json validation_losses(const StepRecord& record) {
  Json losses;
  if (!record.validation) return losses;
  for (const Validation::OfSource& source : record.validation->sources) {
    const std::string file = std::filesystem::path(source.name).filename().string();
    losses[file.empty() || losses.contains(file) ? source.name : file] = source.loss;
  }
  return losses;
}

using R = const StepRecord&;

/// In every line, those of experts where the model has some.
std::vector<Metric> metrics_of_all_steps() {
  return {
      {"step", "", of(&StepRecord::step)},
      {"loss", "nats per token", of(&StepRecord::loss)},
      {.key = "aux_loss",
       .unit = "nats",
       .value = of_layers([](R r) { return r.aux_loss; }),
       .plot = "aux",
       .line = "loss"},
      {.key = "grad_norm", .unit = "", .value = of(&StepRecord::grad_norm), .plot = "grad", .line = "norm"},
      {.key = "learning_rate",
       .unit = "",
       .value = of(&StepRecord::learning_rate),
       .plot = "rate",
       .line = "rate"},
      {.key = "tokens_per_s",
       .unit = "1/s",
       .value = of(&StepRecord::tokens_per_s),
       .plot = "speed",
       .line = "tokens/s"},
      {"step_s", "s", of(&StepRecord::step_s), MetricMerge::kLargest, &StepRecord::step_s},
      {"wall_s", "s", of(&StepRecord::wall_s)},
      {"tokens_hash", "", [](R r) { return Json(fmt::format("{:016x}", r.tokens_hash)); }},
      {"peak_memory_bytes", "bytes", of(&StepRecord::peak_memory), MetricMerge::kLargest,
       &StepRecord::peak_memory, "memory", "resident"},
      {"sent_bytes", "bytes", of(&StepRecord::sent), MetricMerge::kSum, &StepRecord::sent, "sent", "all"},
      {"sent_bytes_between_nodes", "bytes", of(&StepRecord::sent_between_nodes), MetricMerge::kSum,
       &StepRecord::sent_between_nodes, "sent", "between nodes"},
      {"expert_max_over_mean", "", of_layers([](R r) { return r.expert_max_over_mean; })},
      {.key = "expert_gini",
       .unit = "",
       .value = of_layers([](R r) { return r.routing.gini; }),
       .plot = "gini",
       .line = "Gini"},
      {.key = "attention_wait",
       .unit = "share",
       .value = of(&StepRecord::attention_wait),
       .plot = "waiting",
       .line = "attention"},
      {.key = "expert_wait",
       .unit = "share",
       .value = of_layers([](R r) { return r.expert_wait; }),
       .plot = "waiting",
       .line = "expert"},
  };
}

/// Not in every line.
std::vector<Metric> metrics_of_some_steps() {
  return {
      {"rank_max_over_mean", "", [](R r) { return or_none(r.routing.rank_ratio); }},
      {.key = "time_ratio",
       .unit = "",
       .value = [](R r) { return or_none(r.routing.time_ratio); },
       .plot = "time_ratio",
       .line = "time ratio"},
      {"top_k", "experts", of_layers([](R r) { return r.top_k; })},
      {"expert_cv", "", of_layers([](R r) { return mean_of(r, &LayerLoad::cv); })},
      {"dead_experts", "experts", of_layers(dead_experts)},
      {"dropped_share", "share", of_layers([](R r) { return mean_of(r, &LayerLoad::dropped); })},
      {"layers", "", of_layers(layers)},
      {"replayed_choices", "share", [](R r) { return or_none(r.replayed_choices); }},
      {"gpu_peak_bytes", "bytes", [](R r) { return r.gpu_peak > 0 ? Json(r.gpu_peak) : none(); },
       MetricMerge::kLargest, &StepRecord::gpu_peak, "gpu_memory", "peak"},
      {"rows_wire_error", "share", [](R r) { return r.rows_error > 0 ? Json(r.rows_error) : none(); },
       MetricMerge::kLargest, &StepRecord::rows_error},
      {"gradients_wire_error", "share",
       [](R r) { return r.gradients_error > 0 ? Json(r.gradients_error) : none(); }, MetricMerge::kLargest,
       &StepRecord::gradients_error},
      {"updated", "", [](R r) { return r.updated ? none() : Json(false); }},
      {"overflowed", "", [](R r) { return r.overflowed ? Json(true) : none(); }},
      {.key = "mfu",
       .unit = "share",
       .value = [](R r) { return r.mfu.empty() ? none() : Json(r.mfu); },
       .plot = "mfu"},
      {"memory_bytes", "bytes", [](R r) { return r.memory.empty() ? none() : Json(r.memory); }},
      {"owners_held", "", [](R r) { return r.owners_held ? Json(true) : none(); }},
      {"marks", "", [](R r) { return r.marks.empty() ? none() : Json(r.marks); }},
      {"validation_loss", "nats per token",
       [](R r) { return r.validation ? Json(r.validation->loss) : none(); }},
      {"validation_losses", "nats per token", validation_losses},
      {"warnings", "", [](R r) { return r.warnings.empty() ? none() : Json(r.warnings); }},
  };
}

}  // namespace

const std::vector<MetricPlot>& metric_plots() {
  static const std::vector<MetricPlot> all = {
      {"time_ratio", "Slowest owner over a perfect division, mean of layers", "time ratio",
       Section::kExperts},
      {"gini", "Gini coefficient of the experts' copies, mean over layers", "Gini", Section::kExperts},
      {"aux", "Load-balancing loss and z-loss together, coefficients included", "nats", Section::kExperts},
      {"speed", "Tokens per second, in the clock's seconds", "tokens/s", Section::kRun},
      {"waiting", "Share of the step in which compute lanes wait, by role", "share", Section::kRun},
      {"mfu", "Model FLOPs utilisation, by type of device", "share of the peak", Section::kRun},
      {"grad", "Gradient norm", "norm", Section::kRun},
      {"rate", "Learning rate", "rate", Section::kRun},
      {"sent", "Sent between devices in a step, and of it between nodes", "MiB", Section::kRun, kMib},
      {"memory", "Memory of the largest process", "GiB", Section::kRun, kGib},
      {"gpu_memory", "Memory of the fullest GPU", "GiB", Section::kRun, kGib},
  };
  return all;
}

const std::vector<Metric>& metrics() {
  static const std::vector<Metric> all = [] {
    std::vector<Metric> out = metrics_of_all_steps();
    for (Metric& metric : metrics_of_some_steps()) out.push_back(std::move(metric));
    return out;
  }();
  return all;
}

Json metrics_json(const StepRecord& record) {
  Json json;
  for (const Metric& metric : metrics()) {
    if (Json value = metric.value(record); !value.is_null()) json[metric.key] = std::move(value);
  }
  return json;
}

std::vector<double> values_to_merge(const StepRecord& record) {
  std::vector<double> out;
  for (const Metric& metric : metrics()) {
    if (metric.merge != MetricMerge::kNone) out.push_back(record.*metric.member);
  }
  return out;
}

void merge_values(std::vector<double>& all, const std::vector<double>& other) {
  std::size_t i = 0;
  for (const Metric& metric : metrics()) {
    if (metric.merge == MetricMerge::kNone) continue;
    all[i] = metric.merge == MetricMerge::kSum ? all[i] + other.at(i) : std::max(all[i], other.at(i));
    ++i;
  }
}

void set_merged(StepRecord& record, const std::vector<double>& all) {
  std::size_t i = 0;
  for (const Metric& metric : metrics()) {
    if (metric.merge != MetricMerge::kNone) record.*metric.member = all.at(i++);
  }
}

}  // namespace hetermoe
