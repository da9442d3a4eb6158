#include "hetermoe/train/run/step_figures.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/base/rows.h"
#include "hetermoe/cost/model_flops.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/report/metrics.h"
#include "hetermoe/routing/plan_figures.h"
#include "hetermoe/train/job/clock_choice.h"
#include "hetermoe/train/run/health.h"
#include "hetermoe/train/run/stop.h"

namespace hetermoe {
namespace {

std::vector<double> numbers_of(const at::Tensor& counts_L) {
  const i64* next = counts_L.const_data_ptr<i64>();
  return {next, next + counts_L.numel()};
}

double max_over_mean(const LayerCopies& copies) {
  double worst = 0;
  for (const std::vector<double>& layer : copies) worst = std::max(worst, straggler_ratio(layer).value_or(0));
  return worst;
}

/// Share of their peak that the devices of each type that the plan uses spend on the model.
std::map<std::string, double> mfu_by_type(const Cluster& cluster, const Plan& plan,
                                          const std::vector<Flops>& flops, Seconds step) {
  std::map<std::string, double> did, could;
  for (const DeviceId device : devices_of(plan)) {
    const DeviceType& type = cluster.type_of(device);
    did[type.name] += flops.at(idx(device));
    could[type.name] += type.peak(plan.dtype[idx(device)]) * step;
  }
  for (auto& [type, share] : did) share /= could.at(type);
  return did;
}

/// [num_devices] 0 = not here, or not counted. What several devices hold on one GPU is nobody's.
std::vector<Bytes> measured_memory(const RunState& run) {
  std::vector<Bytes> out(idx(run.cluster.num_devices()), 0);
  std::vector<DeviceState*> here = run.session->states();
  std::erase_if(here, [&](DeviceState* state) { return state->device() >= run.cluster.num_devices(); });
  std::vector<Bytes> in_step;
  if (run.meter) {
    const Timeline timeline = run.session->executor().timeline();
    in_step = run.meter->peaks(timeline, static_cast<i32>(timeline.devices.size()));
  }
  for (DeviceState* state : here) {
    const auto shares_gpu = [&](DeviceState* other) {
      return other != state && other->where() == state->where();
    };
    const std::size_t device = idx(state->device());
    if (run.meter)
      out[device] = real(state->store().bytes()) + in_step.at(device);
    else if (std::none_of(here.begin(), here.end(), shares_gpu))
      out[device] = gpu_peak(state->where());
  }
  return out;
}

void add_waits(const Timeline& timeline, const std::vector<double>& busy, StepRecord& record) {
  record.attention_wait = waiting(timeline, busy, "attention");
  record.expert_wait = waiting(timeline, busy, "expert");
}

}  // namespace

void add_figures(RunState& run, StepRecord& record) {
  const StepResult& last = run.last;
  const TrainOptions& train = run.job.train;
  record.loss = last.loss;
  record.aux_loss = last.aux_loss;
  record.grad_norm = last.grad_norm;
  record.rows_error = last.rows_error, record.gradients_error = last.gradients_error;
  record.step_s = last.step;
  const SentBytes::OfStep sent = run.sent.take(record.step - 1);
  record.sent = sent.all;
  record.sent_between_nodes = sent.between_nodes;
  record.peak_memory = resident_watermark();
  for (DeviceState* state : run.session->states())
    record.gpu_peak = std::max(record.gpu_peak, gpu_peak(state->where()));
  record.tokens_per_s = real(train.sequences * train.seq_len) / last.step;
  const LayerCopies copies = copies_of(last.counts_LE);
  record.expert_max_over_mean = max_over_mean(copies);
  record.loads = layer_loads(run.model, copies, numbers_of(last.dropped_L));
  record.top_k = record.loads.empty() ? 0 : run.model.top_k;
  const Timeline timeline = run.session->executor().timeline();
  add_waits(timeline, busy_share(timeline), record);
  record.updated = last.updated;
}

StepReport report_of(const RunState& run, const StepRecord& record) {
  StepReport mine;
  mine.stop = stop_asked();
  mine.updated = record.updated;
  mine.values = values_to_merge(record);
  add_device_work(mine, run.session->executor());
  mine.memory = measured_memory(run);
  std::vector<DeviceId> here;
  for (DeviceState* state : run.session->states()) {
    if (state->device() < run.cluster.num_devices()) here.push_back(state->device());
  }
  const RecordedRouting routing = run.session->executor().recorded_routing();
  mine.copies = copies_of_devices(run.session->placement(), routing, here);
  // A CPU that computes at its own pace is no device of the cluster.
  if (run.job.clock.kind != ClockKind::kReal || run.job.run.device != "cpu")
    mine.flops =
        model_flops(run.session->schedule(), run.session->placement(), run.model, run.cluster, routing, here);
  mine.picture = run.processes.rank() == 0 && run.hooks.wants_picture && run.hooks.wants_picture();
  return mine;
}

void add_figures_of_all(const RunState& run, const StepReport& all, StepRecord& record) {
  set_merged(record, all.values);
  if (!run.processes.alone()) {
    const TrainOptions& train = run.job.train;
    record.updated = all.updated;
    std::vector<double> busy = all.busy;
    for (double& seconds : busy) seconds /= record.step_s;
    add_waits(run.session->executor().timeline(), busy, record);
    record.tokens_per_s = real(train.sequences * train.seq_len) / record.step_s;
  }
  for (std::size_t d = 0; d < all.memory.size(); ++d) {
    if (all.memory[d] > 0) record.memory[run.cluster.device_name(static_cast<DeviceId>(d))] = all.memory[d];
  }
  if (record.step_s > 0 && !all.flops.empty())
    record.mfu =
        mfu_by_type(run.cluster, run.job.clock.kind == ClockKind::kReal ? run.plan() : run.priced->emulated,
                    all.flops, record.step_s);
}

Timeline whole_timeline(const RunState& run) {
  Timeline all = run.session->executor().timeline();
  const std::string foreign = foreign_times(run.job, run.cluster);
  if (!foreign.empty() && run.session->executor().clock() == ClockKind::kReal)
    all.source = fmt::format("executed ({})", foreign);
  if (run.processes.alone()) return all;
  const std::vector<std::string> texts = run.processes.gather(to_json(all).dump());
  all.spans.clear();
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const Timeline part = timeline_from_json(Json::parse(texts[r]), fmt::format("rank {}", r));
    all.spans.insert(all.spans.end(), part.spans.begin(), part.spans.end());
    all.step = std::max(all.step, part.step);
  }
  sort_spans(all);
  return all;
}

}  // namespace hetermoe
