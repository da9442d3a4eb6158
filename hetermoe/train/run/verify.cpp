#include "hetermoe/train/run/verify.h"

#include "hetermoe/train/session/batch.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/train/job/gpu_run.h"
#include "hetermoe/train/job/router_training.h"
#include "hetermoe/train/run/route_replay.h"
#include "hetermoe/train/run/trainer.h"
#include "hetermoe/weights/hf_export.h"
#include "hetermoe/weights/peft_adapter.h"

namespace hetermoe {
namespace {

/// "1 to 4, 7, 9 to 12"; "none".
std::string as_ranges(const std::set<i64>& steps) {
  std::vector<std::string> ranges;
  for (auto step = steps.begin(); step != steps.end();) {
    const i64 first = *step;
    i64 last = first;
    while (++step != steps.end() && *step == last + 1) ++last;
    ranges.push_back(first == last ? fmt::format("{}", first) : fmt::format("{} to {}", first, last));
  }
  return ranges.empty() ? "none" : fmt::format("{}", fmt::join(ranges, ", "));
}

/// What the run wrote of a step; the last line counts, for a run that went back to a checkpoint.
Json recorded_step(const std::filesystem::path& path, i64 step) {
  std::ifstream in(path);
  if (!in) fail<IoError>(path.string(), "cannot read: the run left no metrics here");
  Json found;
  std::set<i64> steps;
  for (std::string line; std::getline(in, line);) {
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) continue;
    steps.insert(json.value("step", i64{0}));
    if (json.value("step", i64{0}) == step) found = std::move(json);
  }
  if (found.is_null()) fail<InputError>(path.string(), "has no step {}, but {}", step, as_ranges(steps));
  if (!found.value("updated", true)) fail<InputError>(path.string(), "step {} was skipped", step);
  return found;
}

std::optional<FoundCheckpoint> checkpoint_before(const std::filesystem::path& folder, i64 step) {
  for (const FoundCheckpoint& found : find_checkpoints(folder, [](const std::string&) {})) {
    if (found.info.step < step) return found;
  }
  return std::nullopt;
}

/// A folder in which one job went on from another's checkpoint has steps of both; its job.json is that of the
/// last. Throws InputError where an earlier one took the step, as far as checkpoints tell: then a difference
/// is no fault of machine or program.
void check_took_step(const std::filesystem::path& folder, i64 step) {
  const std::filesystem::path last = folder / "job.json";
  if (!std::filesystem::exists(last)) return;
  std::optional<FoundCheckpoint> after;
  for (FoundCheckpoint& found : find_checkpoints(folder / "checkpoints", [](const std::string&) {}))
    if (found.info.step >= step) after = std::move(found);  // the newest comes first
  if (!after) return;
  const std::vector<std::string> differences = job_differences(after->info.job, read_json(last.string()));
  if (differences.empty()) return;
  fail<InputError>(
      folder.string(),
      "step {} was taken by an earlier job, whose checkpoint of step {} is here: {}. verify repeats "
      "steps of the last job in the folder, which come after that one",
      step, after->info.step, fmt::join(differences, ", "));
}

/// The weights with which the job's run begins.
void start_session(Session& session, const Job& job, const ModelConfig& model) {
  if (job.train.init_from.empty() || session.lora() != nullptr) session.initialize(job.train.seed);
  if (job.train.init_from.empty()) return;
  const HfWeights weights(job.train.init_from, model);
  check_same_arithmetic(model, weights.folder());
  load_weights(weights, session.states());
  if (!job.train.lora.from.empty()) PeftAdapter(job.train.lora.from).load(session.states());
}

/// The reference is computed there, wherever the plan was.
TensorsByName on_cpu(TensorsByName tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.cpu();
  return tensors;
}

}  // namespace

ReplayResult replay_step(const Job& job, const ModelConfig& model, const Cluster& cluster, Plan plan,
                         const Dataset& data, i64 step) {
  const std::filesystem::path folder = job.output;
  const Json recorded = recorded_step(folder / "metrics.jsonl", step);
  const std::optional<FoundCheckpoint> checkpoint = checkpoint_before(folder / "checkpoints", step);
  const Processes alone;
  Trainer trainer(job, model, cluster, std::move(plan), data, alone);
  const StepRecord record = trainer.replay_step(checkpoint, step);
  const ReplayResult result = {step,
                               checkpoint ? checkpoint->info.step : 0,
                               record.loss,
                               record.grad_norm,
                               recorded.at("loss"),
                               recorded.at("grad_norm")};
  if (!result.passed()) check_took_step(folder, step);
  return result;
}

bool VerifyResult::passed() const {
  return missing.empty() && loss_error <= tolerance &&
         std::all_of(gradients.begin(), gradients.end(),
                     [&](const GradientError& g) { return g.error <= tolerance; });
}

double relative_error(const at::Tensor& a, const at::Tensor& b, double floor) {
  if (a.numel() == 0) return 0;
  const double difference = (a - b).abs().max().item<double>();
  const double scale = std::max(b.abs().max().item<double>(), floor);
  // NaN must not pass as equal.
  if (!(difference == difference)) return std::numeric_limits<double>::infinity();
  return difference == 0 ? 0 : difference / scale;
}

TensorsByName with_merged(const TensorsByName& values, const Lora* lora) {
  TensorsByName out;
  for (const auto& [name, value] : values) {
    if (is_adapter(name)) continue;
    const bool adapted = lora != nullptr && lora->adapts(name);
    out[name] = adapted
                    ? value + lora->scale() * values.at(lora_b_name(name)).mm(values.at(lora_a_name(name)))
                    : value;
  }
  return out;
}

void add_adapter_gradients(TensorsByName& grads, const TensorsByName& values, const Lora& lora) {
  for (const std::string& name : lora.targets) {
    const std::string a = lora_a_name(name), b = lora_b_name(name);
    const at::Tensor grad = grads.at(name) * lora.scale();
    grads[a] = values.at(b).t().mm(grad);
    grads[b] = grad.mm(values.at(a).t());
  }
}

/// From B = 0, where a run begins, no gradient reaches A.
void draw_adapters(Session& session, u64 seed) {
  for (DeviceState* state : session.states()) {
    for (const LogicalTensor& tensor : state->store().tensors()) {
      if (is_adapter(tensor.name))
        init_parameters({{"verify " + tensor.name + " drawn", tensor.value, {}}}, seed);
    }
  }
}

VerifyResult verify_plan(const Job& job, const ModelConfig& model, const Cluster& cluster, Plan plan,
                         const Batch& batch) {
  for (const auto& [key, wire] : {std::pair{"plan.wire_dtype", plan.wire_forward},
                                  std::pair{"plan.wire_backward", plan.wire_backward}}) {
    if (!has_scales(wire)) continue;
    fail<ConfigError>(key,
                      "got {}, expected fp64: verify compares in fp64. Add --plan.wire_dtype fp64 "
                      "--plan.wire_backward fp64, or change it in the plan's file",
                      name_of(wire));
  }
  if (plan.wire_reduce != WireReduce::kFp32)
    fail<ConfigError>(
        "plan.wire_reduce",
        "got {}, expected fp32: verify compares in fp64. Add --plan.wire_reduce fp32, or change it in "
        "the plan's file",
        name_of(plan.wire_reduce));
  std::fill(plan.dtype.begin(), plan.dtype.end(), Dtype::kFp64);
  plan.wire_forward = plan.wire_backward = Wire::kFp64;
  plan.grad_dtype.reset();
  plan.moments_dtype.reset();
  plan.master = Master::kFp32;
  Session::Options options;
  options.step = step_options(job, model);
  const std::vector<Unit> frozen = options.step.frozen;
  options.executor.watchdog = job.clock.watchdog_s;
  Job own = job;
  own.run.deterministic = job.run.deterministic.value_or(true);
  options.where = places_of(own, cluster, Processes(), /*uses_fp64=*/true);
  Session session(model, cluster, std::move(plan), std::move(options));
  start_session(session, job, model);
  draw_adapters(session, job.train.seed);
  const TensorsByName values = on_cpu(session.values());
  StepInput input = input_of(batch);
  if (!job.routing.replay.empty()) input.choices = RouteReplay(job, model).choices(0, batch.num_sequences);
  if (job.train.forced_balance) input.choices = forced_choices(job.train, model, 0);
  input.router = router_training(job.train, 0, 0);
  const StepResult step = session.train_step(input);
  const TensorsByName gradients = on_cpu(session.gradients());
  const TensorsByName merged = with_merged(values, session.lora());
  ReferenceResult reference = reference_step(model, merged, input.tokens, input.targets,
                                             {job.train.aux_group, job.train.aux_per_layer}, input.choices,
                                             input.starts, input.router);

  if (session.lora() != nullptr) add_adapter_gradients(reference.grads, values, *session.lora());

  VerifyResult result;
  result.loss = step.loss + step.aux_loss;
  result.reference_loss = reference.loss;
  result.loss_error = std::abs(result.loss - reference.loss) / std::abs(reference.loss);
  double largest = 0;
  for (const ParamInfo& parameter : parameters(model)) {
    if (parameter.buffer) continue;
    const at::Tensor& grad = reference.grads.at(parameter.name);
    largest = std::max(largest, grad.abs().max().item<double>());
    const bool trained = session.lora() == nullptr &&
                         !std::binary_search(frozen.begin(), frozen.end(), unit_of(model, parameter));
    if (trained != (gradients.count(parameter.name) > 0)) result.missing.push_back(parameter.name);
  }
  for (const auto& [name, grad] : reference.grads) {
    if (is_adapter(name) && gradients.count(name) == 0) result.missing.push_back(name);
  }
  for (const auto& [name, grad] : gradients) {
    const auto found = reference.grads.find(name);
    if (found == reference.grads.end())
      result.missing.push_back(name);
    else
      result.gradients.push_back({name, relative_error(grad, found->second, 1e-6 * largest)});
  }
  std::sort(result.gradients.begin(), result.gradients.end(),
            [](const GradientError& a, const GradientError& b) { return a.error > b.error; });
  return result;
}

}  // namespace hetermoe
