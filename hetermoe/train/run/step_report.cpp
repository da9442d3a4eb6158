#include "hetermoe/train/run/step_report.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/report/metrics.h"

namespace hetermoe {

Json to_json(const StepReport& report) {
  return {{"stop", report.stop},     {"updated", report.updated},   {"values", report.values},
          {"busy", report.busy},     {"slowness", report.slowness}, {"flops", report.flops},
          {"memory", report.memory}, {"copies", report.copies},     {"picture", report.picture}};
}

StepReport step_report_from(const Json& json) {
  StepReport report;
  report.stop = json.at("stop");
  report.updated = json.at("updated");
  json.at("values").get_to(report.values);
  json.at("busy").get_to(report.busy);
  json.at("slowness").get_to(report.slowness);
  json.at("flops").get_to(report.flops);
  json.at("memory").get_to(report.memory);
  json.at("copies").get_to(report.copies);
  report.picture = json.at("picture");
  return report;
}

void add_device_work(StepReport& report, const Executor& executor) {
  const Timeline timeline = executor.timeline();
  report.busy = busy_share(timeline);
  const auto is_device = [](const TimelineDevice& device) { return device.role != "host"; };
  // Hosts come after all devices, and are no peers of them.
  report.busy.resize(idx(std::count_if(timeline.devices.begin(), timeline.devices.end(), is_device)));
  for (Seconds& seconds : report.busy) seconds *= timeline.step;
  report.slowness.assign(report.busy.size(), 0);
  for (const DeviceWork& work : executor.device_work()) {
    if (work.nominal > 0) report.slowness[idx(work.device)] = work.busy / work.nominal;
  }
}

StepReport merged(const std::vector<StepReport>& reports) {
  StepReport all = reports.at(0);
  for (std::size_t r = 1; r < reports.size(); ++r) {
    const StepReport& one = reports[r];
    all.stop = std::max(all.stop, one.stop);
    all.updated = all.updated && one.updated;
    all.picture = all.picture || one.picture;
    merge_values(all.values, one.values);
    for (std::size_t d = 0; d < all.flops.size(); ++d) all.flops[d] += one.flops.at(d);
    for (std::size_t d = 0; d < all.memory.size(); ++d) all.memory[d] += one.memory.at(d);
    for (std::size_t d = 0; d < all.copies.size(); ++d)
      if (all.copies[d].empty()) all.copies[d] = one.copies.at(d);
    for (std::size_t d = 0; d < all.busy.size(); ++d) {
      all.busy[d] += one.busy.at(d);
      all.slowness[d] = std::max(all.slowness[d], one.slowness.at(d));
    }
  }
  return all;
}

StepReport gather_reports(const Processes& processes, const StepReport& mine) {
  if (processes.alone()) return mine;
  std::vector<StepReport> reports;
  for (const std::string& text : processes.gather(to_json(mine).dump()))
    reports.push_back(step_report_from(Json::parse(text)));
  return merged(reports);
}

double waiting(const Timeline& timeline, const std::vector<double>& busy, const std::string& role) {
  double sum = 0;
  int count = 0;
  for (std::size_t d = 0; d < busy.size(); ++d) {
    const std::string& of_device = timeline.devices[d].role;
    if (of_device != role && of_device != "both") continue;
    sum += 1 - busy[d];
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

}  // namespace hetermoe
