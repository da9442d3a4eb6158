#include "hetermoe/train/run/step_report.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {

Json to_json(const StepReport& report) {
  return {{"stop", report.stop},         {"updated", report.updated},
          {"step_s", report.step_s},     {"peak_memory", report.peak_memory},
          {"gpu_peak", report.gpu_peak}, {"busy", report.busy},
          {"slowness", report.slowness}, {"flops", report.flops},
          {"memory", report.memory},     {"picture", report.picture},
          {"sent", report.sent},         {"sent_between_nodes", report.sent_between_nodes}};
}

StepReport step_report_from(const Json& json) {
  StepReport report;
  report.stop = json.at("stop");
  report.updated = json.at("updated");
  report.step_s = json.at("step_s");
  report.peak_memory = json.at("peak_memory");
  report.gpu_peak = json.at("gpu_peak");
  json.at("busy").get_to(report.busy);
  json.at("slowness").get_to(report.slowness);
  json.at("flops").get_to(report.flops);
  json.at("memory").get_to(report.memory);
  report.picture = json.at("picture");
  report.sent = json.at("sent");
  report.sent_between_nodes = json.at("sent_between_nodes");
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
    all.step_s = std::max(all.step_s, one.step_s);
    all.peak_memory = std::max(all.peak_memory, one.peak_memory);
    all.gpu_peak = std::max(all.gpu_peak, one.gpu_peak);
    all.picture = all.picture || one.picture;
    all.sent += one.sent;
    all.sent_between_nodes += one.sent_between_nodes;
    for (std::size_t d = 0; d < all.flops.size(); ++d) all.flops[d] += one.flops.at(d);
    for (std::size_t d = 0; d < all.memory.size(); ++d) all.memory[d] += one.memory.at(d);
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
