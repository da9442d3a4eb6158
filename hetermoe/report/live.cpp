#include "hetermoe/report/live.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "hetermoe/base/error.h"
#include "hetermoe/base/median.h"
#include "hetermoe/report/escape.h"
#include "hetermoe/report/loss_svg.h"
#include "hetermoe/report/page.h"
#include "hetermoe/report/table.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostPoints = 2000, kMostWarnings = 8, kRecent = 20;

/// A curve over the steps: keys of metrics.jsonl, each a line of its own.
struct Curve {
  const char* title;
  const char* label;
  std::vector<std::pair<const char*, const char*>> keys;  ///< key, name
};

const std::vector<Curve>& curve_table() {
  static const std::vector<Curve> all = {
      {"Loss", "nats", {{"loss", "loss"}}},
      {"Tokens per second", "tokens/s", {{"tokens_per_s", "tokens/s"}}},
      {"Gradient norm", "norm", {{"grad_norm", "norm"}}},
      {"Waiting share of compute lanes",
       "share",
       {{"attention_wait", "attention"}, {"expert_wait", "expert"}}},
      {"Experts: copies of the largest over the mean", "ratio", {{"expert_max_over_mean", "max/mean"}}},
      {"Experts: slowest owner over a perfect division", "time ratio", {{"time_ratio", "time ratio"}}},
      {"Memory of the largest process", "GiB", {{"peak_memory_bytes", "peak"}}},
  };
  return all;
}

double number(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : 0;
}

std::string text_at(const Json& object, std::initializer_list<const char*> path) {
  const Json* at = &object;
  for (const char* key : path) {
    if (!at->is_object() || !at->contains(key)) return "";
    at = &(*at)[key];
  }
  return at->is_string() ? at->get<std::string>() : at->dump();
}

/// A JSON file, or null while it is missing or half written.
Json json_or_null(const fs::path& path) {
  std::ifstream in(path);
  return in ? Json::parse(in, nullptr, /*allow_exceptions=*/false) : Json();
}

std::string row(const std::string& name, const std::string& value) {
  return fmt::format("<tr><th>{}</th><td>{}</td></tr>", escape_markup(name), escape_markup(value));
}

/// Seconds since a file was written.
double age_of(const fs::path& path) {
  std::error_code code;
  const fs::file_time_type written = fs::last_write_time(path, code);
  if (code) return 0;
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - written).count();
}

double recent_wall(const std::vector<Json>& lines) {
  std::vector<double> walls;
  for (std::size_t i = lines.size() - std::min(lines.size(), kRecent); i < lines.size(); ++i)
    walls.push_back(number(lines[i], "wall_s"));
  return walls.empty() ? 0 : median(walls);
}

}  // namespace

std::string LiveRun::page() const {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>hetermoe: {0}</title>\n"
      "<style>{1}\nsvg {{ max-width:100% }} section {{ display:inline-block; vertical-align:top; "
      "margin-right:12px }}\n"
      "th {{ text-align:left; padding-right:14px }}</style></head>\n"
      "<body><header><h1>{0}</h1></header><main id=\"body\"></main>\n<script>\n"
      "async function show() {{\n"
      "  try {{ document.getElementById('body').innerHTML = await (await fetch('/body')).text(); }}\n"
      "  catch (e) {{ document.title = 'hetermoe: nobody serves this page any more'; }}\n"
      "  setTimeout(show, 2000);\n"
      "}}\nshow();\n</script></body></html>\n",
      escape_markup(output_.string()), kPageStyle);
}

void LiveRun::update() {
  job_ = json_or_null(output_ / "job.json");
  std::error_code code;
  for (const fs::directory_entry& entry : fs::directory_iterator(output_, code)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("metrics") || entry.path().extension() != ".jsonl") continue;
    Metrics& metrics = metrics_[entry.path()];
    const std::string stem = entry.path().stem().string();
    metrics.strategy = stem.size() > 8 ? stem.substr(8) : "";
    read_new(entry.path(), metrics);
  }
}

void LiveRun::read_new(const fs::path& file, Metrics& metrics) const {
  std::error_code code;
  const std::uintmax_t size = fs::file_size(file, code);
  if (code) return;
  if (size < metrics.read) {  // another run began it anew
    Metrics anew;
    anew.strategy = metrics.strategy;
    metrics = std::move(anew);
  }
  std::ifstream in(file, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(metrics.read));
  std::string added(static_cast<std::size_t>(size - metrics.read), '\0');
  in.read(added.data(), static_cast<std::streamsize>(added.size()));
  added.resize(static_cast<std::size_t>(in.gcount()));
  metrics.read += added.size();
  metrics.rest += added;
  std::size_t begin = 0;
  for (std::size_t end; (end = metrics.rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
    Json line = Json::parse(metrics.rest.begin() + static_cast<std::ptrdiff_t>(begin),
                            metrics.rest.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    if (!line.is_object()) continue;
    if (line.contains("warnings") && line["warnings"].is_array()) {
      for (const Json& warning : line["warnings"]) {
        if (!warning.is_string()) continue;
        metrics.warnings.push_back(
            fmt::format("step {:.0f}: {}", number(line, "step"), warning.get<std::string>()));
        if (metrics.warnings.size() > kMostWarnings) metrics.warnings.erase(metrics.warnings.begin());
      }
    }
    metrics.last = line;
    if (metrics.count++ % metrics.every == 0) metrics.lines.push_back(std::move(line));
    if (metrics.lines.size() < 2 * kMostPoints) continue;
    for (std::size_t i = 0; 2 * i < metrics.lines.size(); ++i)
      metrics.lines[i] = std::move(metrics.lines[2 * i]);
    metrics.lines.resize((metrics.lines.size() + 1) / 2);
    metrics.every *= 2;
  }
  metrics.rest.erase(0, begin);
}

std::string LiveRun::facts() const {
  std::string out = "<section><table>";
  const i64 steps =
      job_.is_object() ? static_cast<i64>(std::atof(text_at(job_, {"train", "steps"}).c_str())) : 0;
  if (job_.is_object()) {
    out += row("model", text_at(job_, {"model"})) + row("cluster", text_at(job_, {"cluster"}));
  }
  for (const auto& [file, metrics] : metrics_) {
    if (!metrics.last.is_object()) continue;
    const auto step = static_cast<i64>(number(metrics.last, "step"));
    const double left = static_cast<double>(std::max<i64>(0, steps - step)) * recent_wall(metrics.lines);
    out += row("strategy", metrics.strategy.empty() ? text_at(job_, {"strategy"}) : metrics.strategy);
    out += row("step", steps > 0 ? fmt::format("{} of {}", step, steps) : fmt::format("{}", step));
    if (steps > step) out += row("left, at the last steps' pace", format_seconds(left));
    out += row("last step written", format_seconds(age_of(file)) + " ago");
    out += row("loss", fmt::format("{:.4f}", number(metrics.last, "loss")));
    out += row("learning rate", fmt::format("{:.3g}", number(metrics.last, "learning_rate")));
    out += row("tokens/s", format_count(number(metrics.last, "tokens_per_s")));
    for (const std::string& warning : metrics.warnings) out += row("warning", warning);
  }
  if (!report().empty()) out += "<tr><th>report</th><td><a href=\"/report.html\">report.html</a></td></tr>";
  return out + "</table></section>\n";
}

std::string LiveRun::curves() const {
  std::string out;
  for (const Curve& curve : curve_table()) {
    LossPlot plot;
    plot.title = curve.title, plot.y_label = curve.label;
    plot.width = 600, plot.height = 290;
    const double unit = std::string_view(curve.label) == "GiB" ? double{1 << 30} : 1;
    for (const auto& [file, metrics] : metrics_) {
      for (const auto& [key, name] : curve.keys) {
        LossSeries series;
        series.name = metrics.strategy.empty() ? name : fmt::format("{} {}", metrics.strategy, name);
        for (const Json& line : metrics.lines) {
          if (line.contains(key)) series.train.push_back({number(line, "step"), number(line, key) / unit});
        }
        if (!series.train.empty()) plot.runs.push_back(std::move(series));
      }
    }
    if (!plot.runs.empty()) out += "<section>" + loss_svg(plot) + "</section>\n";
  }
  return out;
}

std::string LiveRun::body() {
  const std::lock_guard lock(mutex_);
  update();
  const bool has_steps = std::any_of(metrics_.begin(), metrics_.end(),
                                     [](const auto& entry) { return !entry.second.lines.empty(); });
  if (!has_steps)
    return fmt::format("<section><p>{} has no metrics yet: the first step has not ended.</p></section>\n",
                       escape_markup(output_.string()));
  return facts() + curves();
}

std::string LiveRun::report() const {
  const fs::path path = output_ / "report.html";
  std::error_code code;
  if (!fs::is_regular_file(path, code)) return "";
  // What an earlier run left in the folder is older than what this one has written.
  for (const auto& [file, metrics] : metrics_) {
    if (fs::last_write_time(path, code) < fs::last_write_time(file, code)) return "";
  }
  return read_text(path);
}

}  // namespace hetermoe
