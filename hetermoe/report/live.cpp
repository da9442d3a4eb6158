#include "hetermoe/report/live.h"

#include <fmt/format.h>

#include "hetermoe/report/escape.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

}  // namespace

ReportInput LiveRun::input() {
  ReportInput input = folder_.page(/*live=*/true);
  if (input.losses.empty()) input.facts.emplace_back("steps", "no metrics yet: the first step has not ended");
  return input;
}

std::string LiveRun::page() {
  const std::lock_guard lock(mutex_);
  return html_report(input(), PageKind::kLive);
}

std::string LiveRun::parts(i64 seen) {
  const std::lock_guard lock(mutex_);
  const ReportInput now = input();
  Json parts = Json::object();
  for (const PagePart& part : page_parts(now)) parts[part.id] = part.html;
  if (has_report())
    parts["head"] =
        parts["head"].get<std::string>() + "<p><a href=\"/report.html\">the report of the run</a></p>\n";
  return script_json({{"version", folder_.version()},
                      {"data", seen == folder_.version() ? Json() : report_data(now)},
                      {"parts", parts}});
}

/// What an earlier run left in the folder is older than what this one has written.
bool LiveRun::has_report() const {
  std::error_code code;
  const fs::file_time_type written = fs::last_write_time(output_ / "report.html", code);
  if (code) return false;
  for (const fs::directory_entry& entry : fs::directory_iterator(output_, code)) {
    if (entry.path().extension() == ".jsonl" && entry.last_write_time(code) > written) return false;
  }
  return true;
}

std::string LiveRun::report() const { return has_report() ? read_text(output_ / "report.html") : ""; }

}  // namespace hetermoe
