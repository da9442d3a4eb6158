#include "hetermoe/train/run/run_state.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/train/session/batch.h"

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

Cluster without_slow_devices(Cluster cluster) {
  for (Device& device : cluster.devices) device.speed = 1;
  return cluster;
}

/// Counting costs time, which under the virtual clock nobody measures; a meter knows one step at a time. Runs
/// without checkpoints are those of `compare`, whose last steps are timed.
bool counts_tensors(const Job& job, Checkpoints checkpoints) {
  return checkpoints == Checkpoints::kOn && job.clock.kind == ClockKind::kVirtual &&
         job.run.device == "cpu" && job.train.staleness == 0;
}

}  // namespace

RunState::RunState(const Job& its_job, ModelConfig its_model, Cluster its_cluster, Plan plan,
                   const Dataset& data, const Processes& its_processes, Checkpoints its_checkpoints)
    : job(its_job),
      processes(its_processes),
      model(std::move(its_model)),
      cluster(std::move(its_cluster)),
      checkpoints(its_checkpoints),
      changes(load_changes(job, plan, model, cluster)),
      text(job, data),
      profiles(load_profiles(cluster)),
      nominal_cluster(without_slow_devices(cluster)),
      meter(counts_tensors(job, checkpoints) ? std::make_unique<MemoryMeter>() : nullptr),
      sent(cluster),
      priced(std::make_unique<PricedPlan>(job, std::move(plan), model, cluster, nominal_cluster, profiles)),
      first_plan(priced->plan),
      session(make_session(parts_with(*priced), processes)),
      end(job.train.steps) {
  const TrainOptions& train = job.train;
  // Everything that can be wrong with the folder is told before the first step.
  if (!train.init_from.empty()) {
    check_no_adapters(train.init_from);
    source.emplace(train.init_from, model);
    check_same_arithmetic(model, source->folder());
  }
  if (!source || train.lora.rank > 0) session->initialize(train.seed);  // adapters are not in the folder
}

SessionParts RunState::parts_with(const PricedPlan& its_priced) {
  return {.job = job,
          .model = model,
          .cluster = cluster,
          .plan = its_priced.plan,
          .emulated = its_priced.placement,
          .truth = *its_priced.truth,
          .nominal = *its_priced.nominal,
          .profiles = profiles,
          .text_checksum = text.checksum(),
          .changes = changes,
          .meter = meter.get(),
          .sent = &sent};
}

void RunState::tell(const std::string& note) {
  outcome.notes.push_back(note);
  if (hooks.on_note) hooks.on_note(note);
}

StepInput RunState::input_of(const Sampler& sampler, i64 step, i64 first) const {
  StepInput input = hetermoe::input_of(sampler.batch(first, job.train.sequences, model.vocab));
  input.step = step;
  return input;
}

void check_choices_are_whole(const RunState& run) {
  const bool teams =
      has_teams(run.plan()) || std::any_of(run.changes.begin(), run.changes.end(),
                                           [](const PlannedChange& c) { return has_teams(c.plan); });
  if (run.processes.alone() || !teams) return;
  const bool records = !run.job.routing.record.empty();
  fail<ConfigError>(
      records ? "routing.record" : "balancer.name",
      "got {} with {} processes, expected {} where teams share sequences (plan.team): no process has "
      "whole sequences",
      records ? run.job.routing.record : run.job.balancer.name, run.processes.num_ranks(),
      records ? "none" : "none, or one process");
}

}  // namespace hetermoe
