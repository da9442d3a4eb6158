#include <cmath>
#include <unordered_map>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/model_flops.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/job/clock_choice.h"
#include "hetermoe/train/run/trainer.h"

// What a run tells of a step that has ended: its figures from all ranks, and what is noteworthy of it.
namespace hetermoe {

LayerCopies copies_of(const at::Tensor& counts_LE) {
  const at::Tensor counts = counts_LE.to(at::kCPU).contiguous();
  const i64* next = counts.const_data_ptr<i64>();
  LayerCopies out(idx(counts.size(0)));
  for (std::vector<double>& layer : out) {
    layer.assign(next, next + counts.size(1));
    next += counts.size(1);
  }
  return out;
}

namespace {

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

}  // namespace

/// What this process knows of the step.
StepReport Trainer::report_step(const StepRecord& record) {
  StepReport mine;
  mine.stop = stop_asked();
  mine.updated = record.updated;
  mine.step_s = record.step_s;
  mine.peak_memory = record.peak_memory;
  mine.gpu_peak = record.gpu_peak;
  const SentBytes::OfStep sent = sent_->take(record.step - 1);
  mine.sent = sent.all;
  mine.sent_between_nodes = sent.between_nodes;
  add_device_work(mine, session_->executor());
  mine.memory = measured_memory();
  std::vector<DeviceId> here;
  for (DeviceState* state : session_->states()) {
    if (state->device() < cluster_.num_devices()) here.push_back(state->device());
  }
  // A CPU that computes at its own pace is no device of the cluster.
  if (job_.clock.kind != ClockKind::kReal || job_.run.device != "cpu")
    mine.flops = model_flops(session_->schedule(), session_->placement(), model_, cluster_,
                             session_->executor().recorded_routing(), here);
  mine.picture = processes_.rank() == 0 && hooks_.wants_picture && hooks_.wants_picture();
  return mine;
}

/// [num_devices] 0 = not here, or not counted. What several devices hold on one GPU is nobody's.
std::vector<Bytes> Trainer::measured_memory() const {
  std::vector<Bytes> out(idx(cluster_.num_devices()), 0);
  std::vector<DeviceState*> here = session_->states();
  std::erase_if(here, [&](DeviceState* state) { return state->device() >= cluster_.num_devices(); });
  std::vector<Bytes> in_step;
  if (meter_) {
    const Timeline timeline = session_->executor().timeline();
    in_step = meter_->peaks(timeline, static_cast<i32>(timeline.devices.size()));
  }
  for (DeviceState* state : here) {
    const auto shares_gpu = [&](DeviceState* other) {
      return other != state && other->where() == state->where();
    };
    const std::size_t device = idx(state->device());
    if (meter_)
      out[device] = real(state->store().bytes()) + in_step.at(device);
    else if (std::none_of(here.begin(), here.end(), shares_gpu))
      out[device] = gpu_peak(state->where());
  }
  return out;
}

/// Completes the record by what other ranks know and by what the run watches; `stop` is the signal by which
/// any rank was asked to.
StepRecord Trainer::finish_step(StepRecord record, i32& stop) {
  const StepReport all = gather_reports(processes_, report_step(record));
  stop = all.stop;
  pictured_ = all.picture;
  slowness_ = all.slowness;
  if (balancer_) balancer_->add_slowness(slowness_);
  record.sent = all.sent;
  record.sent_between_nodes = all.sent_between_nodes;
  if (!processes_.alone()) {
    record.updated = all.updated;
    record.step_s = all.step_s;
    record.peak_memory = all.peak_memory;
    record.gpu_peak = all.gpu_peak;
    std::vector<double> busy = all.busy;
    for (double& seconds : busy) seconds /= record.step_s;
    const Timeline timeline = session_->executor().timeline();
    record.attention_wait = waiting(timeline, busy, "attention");
    record.expert_wait = waiting(timeline, busy, "expert");
    record.tokens_per_s = real(job_.train.sequences * job_.train.seq_len) / record.step_s;
  }
  for (std::size_t d = 0; d < all.memory.size(); ++d) {
    if (all.memory[d] > 0) record.memory[cluster_.device_name(static_cast<DeviceId>(d))] = all.memory[d];
  }
  if (all.step_s > 0 && !all.flops.empty())
    record.mfu = mfu_by_type(cluster_, job_.clock.kind == ClockKind::kReal ? plan() : priced_->emulated,
                             all.flops, all.step_s);
  check_finite(record);
  watch_health(record);
  return record;
}

/// Adds to the record what is noteworthy of the step.
void Trainer::watch_health(StepRecord& record) {
  for (const Straggler& found : stragglers_.add(slowness_)) {
    record.warnings.push_back(
        fmt::format("device {} ({}) is slow: its ops take {:.0f} % longer than those of its peers",
                    found.device, cluster_.device_name(found.device), 100 * (found.over_peers - 1)));
  }
  if (const std::optional<Spike> spike = spikes_.add(record.loss)) {
    record.warnings.push_back(
        fmt::format("the loss jumped to {:.4f}, {:.1f} standard deviations above its running median {:.4f}",
                    spike->loss, spike->sigmas, spike->median));
  }
  // While the learning rate rises, routers follow how often tokens occur, which a model learns first; most
  // recover.
  const bool judges = record.step > job_.train.warmup_steps;
  for (const Collapse& found :
       judges ? collapses_.add(copies_of(last_.counts_LE)) : std::vector<Collapse>{}) {
    record.warnings.push_back(fmt::format(
        "routing collapses: for {} steps layer {} has sent its tokens to about {:.1f} of its {} experts. "
        "Raise the model's router_aux_loss_coef or train.router_bias_rate, or lower train.learning_rate",
        CollapseWatch::kSteps, found.layer, found.effective, model_.num_experts));
  }
  // On a GPU the process's own memory says little of the run's.
  const Bytes peak = record.gpu_peak > 0 ? record.gpu_peak : record.peak_memory;
  if (const std::optional<Bytes> settled = memory_.add(peak)) {
    record.warnings.push_back(fmt::format("memory grows: {} {}, {} after {} steps", format_bytes(peak),
                                          record.gpu_peak > 0 ? "of tensors on a GPU" : "resident",
                                          format_bytes(*settled), MemoryWatch::kSettled));
  }
}

/// The first parameter on the way of the backward pass, which goes against the model's order, whose gradient
/// on any device is not finite; empty = none. Collective, and slow: every gradient is looked at.
std::string Trainer::first_nonfinite() {
  const std::vector<ParamInfo> order = parameters(model_);
  std::unordered_map<std::string, i64> position;
  for (std::size_t i = 0; i < order.size(); ++i) position.emplace(order[i].name, static_cast<i64>(i));
  i64 first = -1;
  for (DeviceState* state : session_->states()) {
    for (const LogicalTensor& view : state->store().tensors()) {
      if (view.grad.defined() && !at::isfinite(view.grad).all().item<bool>())
        first = std::max(first, position.at(matrix_of(view.name)));
    }
  }
  for (const std::string& text : processes_.gather(std::to_string(first)))
    first = std::max<i64>(first, std::stoll(text));
  return first < 0 ? "" : order[idx(first)].name;
}

/// Weights and moments of a step that was not finite are those from before it.
void Trainer::check_finite(StepRecord& record) {
  if (record.updated) {
    skipped_in_a_row_ = 0;
    return;
  }
  ++skipped_;
  if (record.overflowed) {
    record.warnings.push_back(fmt::format(
        "fp16 gradients overflowed at loss scale {:.0f}, which is {:.0f} from now on. The step is "
        "skipped, weights stay as they are",
        2 * loss_scale_.value(), loss_scale_.value()));
    return;
  }
  ++skipped_in_a_row_;
  const auto unsigned_nan = [](double x) { return std::isnan(x) ? std::abs(x) : x; };
  std::string what =
      fmt::format("loss {} with gradient norm {}", unsigned_nan(record.loss), unsigned_nan(record.grad_norm));
  const std::string first = first_nonfinite();
  if (!first.empty()) what += fmt::format(": in the backward pass {} is the first that is not finite", first);
  const bool skips = job_.train.on_nonfinite == OnNonfinite::kSkip;
  if (skips && skipped_in_a_row_ <= job_.train.max_skipped) {
    record.warnings.push_back(what + ". The step is skipped, weights stay as they are");
    return;
  }
  const std::string hint =
      skips ? fmt::format("This is step {} in a row: train.max_skipped allows {}.", skipped_in_a_row_,
                          job_.train.max_skipped)
            : "The run diverged: lower train.learning_rate, raise train.warmup_steps, or set "
              "train.on_nonfinite: skip.";
  fail<InputError>(fmt::format("step {}", record.step), "{}. {}", what, hint);
}

/// The last step on all devices.
Timeline Trainer::whole_timeline() const {
  Timeline all = session_->executor().timeline();
  const std::string foreign = foreign_times(job_, cluster_);
  if (!foreign.empty() && session_->executor().clock() == ClockKind::kReal)
    all.source = fmt::format("executed ({})", foreign);
  if (processes_.alone()) return all;
  const std::vector<std::string> texts = processes_.gather(to_json(all).dump());
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
