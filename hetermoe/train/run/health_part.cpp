#include "hetermoe/report/table.h"
#include "hetermoe/train/run/health.h"
#include "hetermoe/train/run/parts.h"

namespace hetermoe {
namespace {

/// Adds to the record what is noteworthy of the step.
class HealthPart : public RunPart {
 public:
  explicit HealthPart(RunState& run)
      : run_(run),
        stragglers_(kinds_of(run.cluster, run.first_plan), run.job.train.straggler_share),
        spikes_(run.job.train.spike_sigma),
        collapses_(run.model) {}

  void after_step(StepDone& done) override {
    watch_devices(done.all.slowness, done.record);
    watch_loss(done.record);
    watch_routing(done.record);
    watch_memory(done.record);
  }

  void plan_changed() override {
    stragglers_ = StragglerWatch(kinds_of(run_.cluster, run_.plan()), run_.job.train.straggler_share);
  }

 private:
  void watch_devices(const std::vector<double>& slowness, StepRecord& record) {
    for (const Straggler& found : stragglers_.add(slowness)) {
      record.warnings.push_back(
          fmt::format("device {} ({}) is slow: its ops take {:.0f} % longer than those of its peers",
                      found.device, run_.cluster.device_name(found.device), 100 * (found.over_peers - 1)));
    }
  }

  void watch_loss(StepRecord& record) {
    if (const std::optional<Spike> spike = spikes_.add(record.loss)) {
      record.warnings.push_back(
          fmt::format("the loss jumped to {:.4f}, {:.1f} standard deviations above its running median {:.4f}",
                      spike->loss, spike->sigmas, spike->median));
    }
  }

  void watch_routing(StepRecord& record) {
    // While the learning rate rises, routers follow how often tokens occur, which a model learns first; most
    // recover.
    if (record.step <= run_.job.train.warmup_steps) return;
    if (run_.job.train.lora.rank > 0) return;  // routers stay as they are
    for (const Collapse& found : collapses_.add(copies_of(run_.last.counts_LE))) {
      record.warnings.push_back(fmt::format(
          "routing collapses: for {} steps layer {} has sent its tokens to about {:.1f} of its {} experts. "
          "{}, or lower train.learning_rate",
          CollapseWatch::kSteps, found.layer, found.effective, run_.model.num_experts, what_balances()));
    }
  }

  const char* what_balances() const {
    if (run_.model.router_bias)
      return "Raise train.router_bias_rate, raise router_aux_loss_coef in a copy of the model's config";
    if (run_.model.aux_loss_coef > 0 && !run_.job.train.aux_per_layer)
      return "Set train.aux_per_layer, raise router_aux_loss_coef in a copy of the model's config";
    return "Raise router_aux_loss_coef in a copy of the model's config";
  }

  void watch_memory(StepRecord& record) {
    // On a GPU the process's own memory says little of the run's.
    const Bytes peak = record.gpu_peak > 0 ? record.gpu_peak : record.peak_memory;
    if (const std::optional<Bytes> settled = memory_.add(peak)) {
      record.warnings.push_back(fmt::format("memory grows: {} {}, {} after {} steps", format_bytes(peak),
                                            record.gpu_peak > 0 ? "of tensors on a GPU" : "resident",
                                            format_bytes(*settled), MemoryWatch::kSettled));
    }
  }

  RunState& run_;
  StragglerWatch stragglers_;
  SpikeWatch spikes_;
  MemoryWatch memory_;
  CollapseWatch collapses_;
};

}  // namespace

std::unique_ptr<RunPart> health_part(RunState& run) { return std::make_unique<HealthPart>(run); }

}  // namespace hetermoe
