#include "hetermoe/report/run_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/planner/run_cost.h"
#include "hetermoe/report/curves.h"
#include "hetermoe/report/table.h"
#include "hetermoe/sim/simulated_step.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// What stands at the end of a path of keys, as text; empty where there is nothing.
std::string text_at(const Json& object, std::initializer_list<const char*> path) {
  const Json* at = &object;
  for (const char* key : path) {
    if (!at->is_object() || !at->contains(key)) return "";
    at = &(*at)[key];
  }
  return at->is_string() ? at->get<std::string>() : at->dump();
}

double number_at(const Json& object, std::initializer_list<const char*> path) {
  return std::atof(text_at(object, path).c_str());
}

/// A JSON file, or null while it is missing. Throws IoError for a folder and the like.
Json json_or_null(const fs::path& path) {
  std::error_code code;
  return fs::exists(path, code) ? Json::parse(read_text(path), nullptr, /*allow_exceptions=*/false) : Json();
}

/// Seconds since a file was written.
double age_of(const fs::path& path) {
  std::error_code code;
  const fs::file_time_type written = fs::last_write_time(path, code);
  if (code) return 0;
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - written).count();
}

fs::path metrics_path(const fs::path& folder, const std::string& suffix) {
  return folder / fmt::format("metrics{}.jsonl", suffix);
}

/// Figures of each layer of a heat map, of the step of this line.
void add_figures(ExpertLoad& load, const Json& line) {
  if (!line.contains("layers")) return;
  for (const i64 layer : load.layers) {
    std::vector<std::string> figures(4, "-");
    for (const Json& of_layer : line["layers"]) {
      if (number_in(of_layer, "layer") != real(layer)) continue;
      figures = {fmt::format("{:.2f}", number_in(of_layer, "max_over_mean")),
                 fmt::format("{:.2f}", number_in(of_layer, "cv")),
                 fmt::format("{:.0f}", number_in(of_layer, "dead_experts")),
                 fmt::format("{:.1f} %", 100 * number_in(of_layer, "dropped_share"))};
    }
    load.figures.push_back(std::move(figures));
  }
  load.columns = {"max/mean", "CV", "dead", "dropped"};
}

/// A fact of one strategy.
struct OwnFact {
  std::string strategy, name, value;
};

/// What is the same for all strategies stands once, without a name of one.
std::vector<Fact> in_common(const std::vector<OwnFact>& own, std::size_t num_strategies) {
  std::vector<Fact> out;
  for (const OwnFact& fact : own) {
    const auto alike = [&](const OwnFact& other) {
      return other.name == fact.name && other.value == fact.value;
    };
    const bool common =
        static_cast<std::size_t>(std::count_if(own.begin(), own.end(), alike)) == num_strategies;
    if (!common)
      out.emplace_back(fact.strategy + ": " + fact.name, fact.value);
    else if (&*std::find_if(own.begin(), own.end(), alike) == &fact)
      out.emplace_back(fact.name, fact.value);
  }
  return out;
}

}  // namespace

/// True when the file is another than at the last call, which is then read. One that cannot be read is none.
template <class T, class Load>
bool RunFolder::refresh(Cached<T>& cached, const std::string& name, const Load& load) const {
  std::error_code code;
  const fs::path path = folder_ / name;
  const fs::file_time_type written = fs::last_write_time(path, code);
  if (code) {
    const bool was_there = cached.value.has_value();
    cached = {};
    return was_there;
  }
  if (written == cached.written) return false;
  const bool was_there = cached.value.has_value();
  cached = {written, std::nullopt};
  try {
    cached.value = load(path);
  } catch (const Error&) {
    return was_there;
  }
  return true;
}

/// Of summary.json; without one those whose metrics are there.
void RunFolder::list_strategies() {
  const Json summary = json_or_null(folder_ / "summary.json");
  std::deque<Strategy> found;
  const auto add = [&](const std::string& name, const std::string& suffix, const Json& row) {
    const auto known = std::find_if(strategies_.begin(), strategies_.end(),
                                    [&](const Strategy& s) { return s.suffix == suffix; });
    if (known != strategies_.end())
      found.push_back(std::move(*known));
    else
      found.push_back({name, suffix, {}, MetricsFile(metrics_path(folder_, suffix))});
    found.back().name = name, found.back().row = row;
  };
  if (summary.is_object() && summary.contains("rows")) {
    for (const Json& row : summary["rows"]) {
      if (row.is_object()) add(text_at(row, {"strategy"}), text_at(row, {"suffix"}), row);
    }
  } else {
    std::error_code code;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, code)) {
      const std::string stem = entry.path().stem().string();
      if (!stem.starts_with("metrics") || entry.path().extension() != ".jsonl") continue;
      const std::string suffix = stem.substr(7);
      add(suffix.empty() ? text_at(job_, {"strategy"}) : suffix.substr(1), suffix, Json::object());
    }
  }
  if (found.size() != strategies_.size()) ++version_;
  strategies_ = std::move(found);
}

void RunFolder::update() {
  job_ = json_or_null(folder_ / "job.json");
  list_strategies();
  refresh(model_, "model.json", [&](const fs::path& path) {
    ModelConfig model = load_model(path.string());
    const std::string name = strategies_.empty() ? "" : text_at(strategies_[0].row, {"model"});
    if (!name.empty()) model.name = name;
    return model;
  });
  refresh(cluster_, "cluster.json", [](const fs::path& path) { return load_cluster(path.string()); });
  for (Strategy& s : strategies_) {
    s.metrics.update();
    const bool predicted = refresh(s.predicted, fmt::format("predicted{}.json", s.suffix), load_timeline);
    const bool executed = refresh(s.executed, fmt::format("timeline{}.json", s.suffix), load_timeline);
    if (predicted || executed) ++version_;
    refresh(s.plan, fmt::format("plan{}.json", s.suffix), [&](const fs::path& path) {
      if (!model_.value || !cluster_.value)
        fail<IoError>(path.string(), "has neither model.json nor cluster.json beside it");
      const Plan plan = plan_from_json(read_json(path), path.string());
      const std::vector<std::string> faults = validate(plan, *model_.value, *cluster_.value);
      if (!faults.empty()) fail<ConfigError>(path.string(), "{}", faults[0]);
      return LoadedPlan{plan, plan_layout(plan, *model_.value, *cluster_.value)};
    });
  }
}

/// Of the run's devices, in the time of the clock; 0 = nothing was executed, or on a processor in their
/// place, or the run lost its pace.
Seconds RunFolder::measured_step(const Strategy& strategy) const {
  if (!strategy.executed.value || !strategy.metrics.last().is_object()) return 0;
  const std::string& source = strategy.executed.value->source;
  if (source.starts_with("simulated") || source.find(kOnThisCpu) != std::string::npos) return 0;
  if (text_at(strategy.row, {"executed", "pace", "kept_up"}) == "false") return 0;
  const double told = number_at(strategy.row, {"executed", "step_s"});
  return told > 0 ? told : strategy.metrics.recent("step_s");
}

/// As `plan` tells them, where all devices that the plan uses have a price: by the measured step, else by the
/// predicted one.
std::vector<Fact> RunFolder::money_of(const Strategy& strategy) const {
  if (!strategy.plan.value || !cluster_.value) return {};
  const Seconds measured = measured_step(strategy);
  const Seconds step = measured > 0 ? measured : number_in(strategy.row, "step_s");
  if (step <= 0) return {};
  const Plan& plan = strategy.plan.value->plan;
  const double tokens = real(total_tokens(plan));
  const RunCost cost = run_cost_of(*cluster_.value, plan, tokens / step);
  if (!cost.per_hour) return {};
  const char* by = measured > 0 ? "measured" : "predicted";
  std::vector<Fact> out = {{"price per hour of the devices that the plan uses", format_count(*cost.per_hour)},
                           {"tokens per unit of money",
                            fmt::format("{} by the {} step", format_count(*cost.tokens_per_unit()), by)}};
  if (const Json& last = strategy.metrics.last(); last.is_object()) {
    const double steps = number_in(last, "step");
    out.emplace_back("cost so far", fmt::format("{}, {:.0f} times the {} step",
                                                format_count(*cost.money(steps * tokens)), steps, by));
  }
  return out;
}

std::vector<Fact> RunFolder::facts(bool live) const {
  std::vector<Fact> out;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) out.emplace_back(name, value);
  };
  if (model_.value)
    add("model", fmt::format("{} ({} parameters)", model_.value->name,
                             format_count(real(count_parameters(*model_.value).total))));
  else
    add("model", text_at(job_, {"model"}));
  add("cluster", cluster_.value ? cluster_.value->name : text_at(job_, {"cluster"}));
  std::string clock = text_at(job_, {"clock", "kind"});
  const bool paced = std::any_of(strategies_.begin(), strategies_.end(), [](const Strategy& strategy) {
    return strategy.executed.value &&
           strategy.executed.value->source.find("paced clock") != std::string::npos;
  });
  if (paced && clock != "paced") clock += "; of the steps that are timed: paced";
  add("clock", clock);
  const double tokens = number_at(job_, {"train", "sequences"}) * number_at(job_, {"train", "seq_len"});
  if (tokens > 0) add("tokens per step", fmt::format("{:.0f}", tokens));
  add("microbatches", text_at(job_, {"train", "microbatches"}));
  for (const Strategy& strategy : strategies_) {
    const double entropy = number_at(strategy.row, {"executed", "unigram_entropy"});
    if (entropy <= 0) continue;
    add("unigram entropy of the validation text", fmt::format("{:.3f} nats", entropy));
    break;  // all have the same text
  }
  const double steps = number_at(job_, {"train", "steps"});
  std::vector<OwnFact> own;
  for (const Strategy& strategy : strategies_) {
    for (const auto& [name, value] : money_of(strategy)) own.push_back({strategy.name, name, value});
    const Json& last = strategy.metrics.last();
    if (!last.is_object()) continue;
    const double step = number_in(last, "step");
    const auto add_of = [&](const std::string& name, const std::string& value) {
      own.push_back({strategy.name, name, value});
    };
    const bool interrupted = text_at(strategy.row, {"executed", "interrupted"}) == "true";
    add_of("step", steps <= 0 ? fmt::format("{:.0f}", step)
                   : step > steps
                       ? fmt::format("{:.0f} and {:.0f} timed", steps, step - steps)
                       : fmt::format("{:.0f} of {:.0f}{}", step, steps, interrupted ? ", interrupted" : ""));
    add_of("loss", fmt::format("{:.4f}", number_in(last, "loss")));
    if (const std::vector<Json>& all = strategy.metrics.validations(); !all.empty())
      add_of("validation loss", fmt::format("{:.4f}", number_in(all.back(), "validation_loss")));
    if (!live) continue;
    if (steps > step)
      add_of("left, at the last steps' pace",
             format_seconds((steps - step) * strategy.metrics.recent("wall_s")));
    add_of("last step written", format_seconds(age_of(metrics_path(folder_, strategy.suffix))) + " ago");
    add_of("learning rate", fmt::format("{:.3g}", number_in(last, "learning_rate")));
    add_of("tokens/s", format_count(number_in(last, "tokens_per_s")));
  }
  for (Fact& fact : in_common(own, strategies_.size())) out.push_back(std::move(fact));
  return out;
}

std::vector<DeviceMemory> RunFolder::memory_of(const Strategy& strategy) const {
  std::vector<DeviceMemory> out;
  const Json none = Json::object(), &last = strategy.metrics.last();
  const Json measured = last.is_object() ? last.value("memory_bytes", none) : none;
  const Json predicted = strategy.row.value("memory_bytes", Json::array());
  for (std::size_t place = 0; place < predicted.size(); ++place) {
    DeviceMemory memory;
    memory.device = text_at(predicted[place], {"device"});
    memory.predicted = memory_use_from(predicted[place]);
    memory.measured = number_in(measured, memory.device);
    if (cluster_.value) memory.capacity = cluster_.value->memory_bytes(static_cast<PlaceId>(place));
    if (memory.used() > 0) out.push_back(std::move(memory));
  }
  return out;
}

StrategyReport RunFolder::report_of(const Strategy& strategy) const {
  StrategyReport out;
  out.name = strategy.name;
  if (strategy.plan.value) out.plan = strategy.plan.value->layout;
  out.simulated = strategy.predicted.value;
  const bool alone = strategy.executed.value && strategy.executed.value->source.starts_with("simulated");
  if (alone && !out.simulated)
    out.simulated = strategy.executed.value;  // of `simulate`, which executes nothing
  if (!out.simulated) out.simulated_step = number_in(strategy.row, "step_s");
  if (strategy.executed.value && !alone && strategy.metrics.last().is_object()) {
    out.executed = strategy.executed.value;
    const double told = number_at(strategy.row, {"executed", "step_s"});
    out.executed_step = told > 0 ? told : strategy.metrics.recent("step_s");
  }
  out.memory = memory_of(strategy);
  out.replayed_step = number_at(strategy.row, {"executed", "replayed_step_s"});
  out.executed_over_replayed = number_at(strategy.row, {"executed", "executed_over_replayed"});
  out.kept_pace = text_at(strategy.row, {"executed", "pace", "kept_up"}) != "false";
  out.note = text_at(strategy.row, {"note"});
  return out;
}

/// Of a run whose experts have grown: copies of those that were there before, and families of those after it.
void RunFolder::add_growth(std::vector<ExpertLoad>& loads) const {
  const Json json = json_or_null(folder_ / "growth.json");
  if (!json.is_object() || loads.size() != 1) return;
  ExpertLoad before;
  std::vector<std::vector<i64>> families;
  try {
    json.at("layers").get_to(before.layers);
    json.at("copies").get_to(before.copies);
    json.at("source_of").get_to(families);
    before.title = fmt::format("copies of each expert before the growth, steps {} to {}",
                               json.at("first_step").get<i64>(), json.at("last_step").get<i64>());
  } catch (const Json::exception&) {
    return;
  }
  ExpertLoad& after = loads[0];
  const bool fit = std::equal(families.begin(), families.end(), after.copies.begin(), after.copies.end(),
                              [](const auto& a, const auto& b) { return a.size() == b.size(); });
  if (!fit) return;  // of another run
  after.families = std::move(families);
  if (!before.copies.empty() && before.copies.size() == before.layers.size())
    loads.insert(loads.begin(), std::move(before));
}

std::optional<ExpertLoad> RunFolder::load_of(const Strategy& strategy) const {
  const Json json = json_or_null(folder_ / fmt::format("experts{}.json", strategy.suffix));
  if (!json.is_object() || !strategy.metrics.last().is_object()) return {};
  ExpertLoad load;
  try {
    json.at("layers").get_to(load.layers);
    json.at("copies").get_to(load.copies);
    load.title =
        fmt::format("{}: copies of each expert, steps {} to {}; beside it figures of the last step",
                    strategy.name, json.at("first_step").get<i64>(), json.at("last_step").get<i64>());
  } catch (const Json::exception&) {
    return {};
  }
  if (load.layers.empty() || load.layers.size() != load.copies.size()) return {};
  add_figures(load, strategy.metrics.last());
  return load;
}

/// In what the loss is counted. Runs of earlier versions do not say it.
std::string RunFolder::loss_word() const {
  const std::string told = strategies_.empty() ? "" : text_at(strategies_[0].row, {"loss_per"});
  if (!told.empty()) return told;
  return text_at(job_, {"data", "tokenizer"}) == "bytes" ? "byte" : "token";
}

ReportInput RunFolder::page(bool live) {
  update();
  ReportInput input;
  input.title = model_.value && cluster_.value
                    ? fmt::format("hetermoe: {} on {}", model_.value->name, cluster_.value->name)
                    : "hetermoe: " + folder_.string();
  input.facts = facts(live);
  std::vector<StrategyMetrics> metrics;
  for (const Strategy& strategy : strategies_) {
    input.strategies.push_back(report_of(strategy));
    if (std::optional<ExpertLoad> load = load_of(strategy)) input.expert_loads.push_back(std::move(*load));
    if (!strategy.metrics.last().is_object()) continue;
    metrics.push_back({strategy.name, &strategy.metrics});
    const std::string of = strategies_.size() > 1 ? strategy.name + ": " : "";
    for (const StepNote& note : strategy.metrics.marks()) input.events.push_back({note.step, of + note.text});
    for (const StepNote& note : strategy.metrics.warnings())
      input.events.push_back({note.step, of + "warning: " + note.text});
  }
  add_growth(input.expert_loads);
  std::stable_sort(input.events.begin(), input.events.end(),
                   [](const StepNote& a, const StepNote& b) { return a.step < b.step; });
  input.losses = loss_curves(metrics, loss_word());
  input.routing = expert_curves(metrics);
  input.run = run_curves(metrics);
  return input;
}

}  // namespace hetermoe
