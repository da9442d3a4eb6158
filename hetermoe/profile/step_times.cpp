#include "hetermoe/profile/step_times.h"

#include <algorithm>
#include <map>
#include <optional>

#include "hetermoe/base/index.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/train/session/session.h"

namespace hetermoe {
namespace {

struct StepSize {
  i64 seq_len, sequences;
  i64 tokens() const { return seq_len * sequences; }
};

Plan plan_of(const ModelConfig& model, const Cluster& cluster, StepSize size, Dtype dtype,
             Recompute recompute) {
  StrategyRequest request;
  request.seq_len = size.seq_len;
  request.sequences = size.sequences;
  request.microbatches = 1;
  Plan plan = find_strategy("single").make(model, cluster, request);
  plan.dtype.assign(plan.dtype.size(), dtype);
  plan.wire_forward = plan.wire_backward = wire_of(dtype);
  plan.recompute = recompute;
  return plan;
}

StepInput input_of(const ModelConfig& model, StepSize size) {
  StepInput input;
  input.tokens = at::randint(0, model.vocab, {size.sequences, size.seq_len}, at::kLong);
  input.targets = at::randint(0, model.vocab, {size.sequences, size.seq_len}, at::kLong);
  input.target_count = size.tokens();
  input.learning_rate = 1e-6;
  input.max_grad_norm = 1;
  return input;
}

ProfiledPhase phase_of(const Op& op, Recompute recompute, bool has_both) {
  const bool keeps = recompute == Recompute::kOff;
  if (op.phase == Phase::kForward)
    return has_both && keeps ? ProfiledPhase::kForwardKept : ProfiledPhase::kForward;
  return has_both && !keeps ? ProfiledPhase::kForwardBackward : ProfiledPhase::kBackward;
}

/// The entry that an op of a step stands for; none = it is not measured so.
std::optional<ProfileEntry> entry_of(const Session& session, const Op& op, const WorkModel& work,
                                     StepSize size, Recompute recompute) {
  const ModelConfig& model = session.model();
  ProfileEntry entry;
  const auto with_tokens = [&](ProfiledOp kind, bool has_both = false) {
    entry.op = kind;
    entry.tokens = size.tokens();
    entry.phase = phase_of(op, recompute, has_both);
    return entry;
  };
  switch (op.kind) {
    case OpKind::kEmbed:
      return with_tokens(ProfiledOp::kEmbed);
    case OpKind::kAttention:
      entry.seq_len = size.seq_len;
      entry.sequences = size.sequences;
      return with_tokens(model.is_moe(op.layer) ? ProfiledOp::kAttention : ProfiledOp::kDenseAttention, true);
    case OpKind::kExperts:
      entry.op = ProfiledOp::kExperts;
      entry.phase = phase_of(op, recompute, true);
      entry.rows = entry.copies = size.tokens() * model.top_k;
      entry.experts = model.num_experts;
      return entry;
    case OpKind::kHead:
      with_tokens(ProfiledOp::kHead);
      entry.phase = ProfiledPhase::kForwardBackward;
      return entry;
    case OpKind::kUpdate:
      entry.op = ProfiledOp::kUpdate;
      entry.params = static_cast<i64>(work.state_params(op.state));
      return entry;
    case OpKind::kNorm:
      entry.op = ProfiledOp::kNorm;
      for (std::size_t s = 0; s < session.schedule().states.size(); ++s)
        entry.params += static_cast<i64>(work.state_params(static_cast<i32>(s)));
      return entry;
    case OpKind::kDispatch:
      return with_tokens(ProfiledOp::kDispatch);
    case OpKind::kCombine:
      return with_tokens(ProfiledOp::kCombine);
    case OpKind::kBalance:
      with_tokens(ProfiledOp::kBalance);
      entry.phase = ProfiledPhase::kForward;
      return entry;
    default:
      return std::nullopt;
  }
}

/// Samples of each entry.
class Samples {
 public:
  void add(const ProfileEntry& entry, Seconds seconds) {
    const ProfilePoint at = point_of(entry);
    auto& [which, values] =
        samples_[{static_cast<int>(entry.op), static_cast<int>(entry.phase), at.family, at.size}];
    which = entry;
    values.push_back(std::max(seconds, 1e-9));
  }
  std::vector<ProfileEntry> entries() const {
    std::vector<ProfileEntry> out;
    for (const auto& [key, sample] : samples_) {
      ProfileEntry entry = sample.first;
      entry.seconds = percentile(sample.second, 0.5);
      entry.p10 = percentile(sample.second, 0.1);
      entry.p90 = percentile(sample.second, 0.9);
      entry.runs = static_cast<i64>(sample.second.size());
      out.push_back(entry);
    }
    return out;
  }

 private:
  std::map<std::tuple<int, int, double, double>, std::pair<ProfileEntry, std::vector<double>>> samples_;
};

/// Time of the step in which none of its spans lasts.
Seconds idle_time(const Timeline& timeline) {
  std::vector<std::pair<Seconds, Seconds>> spans;
  for (const Span& span : timeline.spans) spans.emplace_back(span.start, span.end);
  std::sort(spans.begin(), spans.end());
  Seconds idle = 0, end = 0;
  for (const auto& [begin, stop] : spans) {
    idle += std::max(0.0, begin - end);
    end = std::max(end, stop);
  }
  return idle;
}

void take_samples(Session& session, StepSize size, Recompute recompute, Samples& samples) {
  const WorkModel work(session.placement(), session.model(), session.cluster());
  const Timeline timeline = session.executor().timeline();
  for (const Span& span : timeline.spans) {
    const Op& op = session.schedule().ops[idx(span.op)];
    if (const std::optional<ProfileEntry> entry = entry_of(session, op, work, size, recompute))
      samples.add(*entry, span.end - span.start);
  }
  ProfileEntry gap;
  gap.op = ProfiledOp::kGap;
  gap.tokens = size.tokens();
  samples.add(gap, idle_time(timeline) / real(timeline.spans.size()));
}

void run_steps(Session& session, StepSize size, Recompute recompute, const TimingOptions& timing,
               Samples& samples) {
  StepInput input = input_of(session.model(), size);
  for (input.step = 0; input.step < timing.warmup; ++input.step) session.train_step(input);
  Seconds spent = 0;
  for (i64 run = 0; run < timing.min_runs || (spent < timing.budget && run < timing.max_runs);
       ++run, ++input.step) {
    spent += session.train_step(input).step;
    take_samples(session, size, recompute, samples);
  }
}

std::vector<StepSize> sizes_of(const ProfileOptions& options) {
  std::vector<StepSize> sizes;
  for (const i64 s : options.seq_lens) {
    for (const i64 q : options.sequences) sizes.push_back({s, q});
  }
  return sizes;
}

}  // namespace

std::vector<ProfileEntry> measure_steps(const ModelConfig& model, const ProfileOptions& options,
                                        c10::Device device, ExpertProducts products) {
  const Cluster cluster = load_cluster("one");
  const std::vector<StepSize> sizes = sizes_of(options);
  const auto plan = [&](StepSize size, Recompute recompute) {
    return plan_of(model, cluster, size, options.dtype, recompute);
  };
  Session::Options how;
  how.step = {.balance = model.aux_loss_coef > 0, .aux_group = 1, .backward = true};
  how.executor.threads_per_lane = static_cast<i32>(options.threads);
  if (!device.is_cpu()) how.where = {device};
  how.expert_products = {products};
  Session session(model, cluster, plan(sizes[0], Recompute::kLocal), how);
  session.initialize(1);
  Samples samples;
  for (const StepSize size : sizes) {
    for (const Recompute recompute : {Recompute::kLocal, Recompute::kOff}) {
      session.change_plan(plan(size, recompute), how.executor);
      run_steps(session, size, recompute, options.timing, samples);
    }
  }
  return samples.entries();
}

}  // namespace hetermoe
