#include "hetermoe/train/run/verify.h"

#include <filesystem>
#include <iostream>
#include <memory>

#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/train/job/host_memory.h"
#include "hetermoe/train/job/job_data.h"
#include "hetermoe/train/job/usual_choices.h"

namespace hetermoe {
namespace {

struct VerifyArguments {
  std::string job;
  double tolerance = 1e-10;
  i64 show = 5, step = 0;
  bool json = false;
};

Json to_json(const VerifyResult& result) {
  Json gradients = Json::array();
  for (const GradientError& g : result.gradients) gradients.push_back({{"name", g.name}, {"error", g.error}});
  return {{"passed", result.passed()},
          {"loss", result.loss},
          {"reference_loss", result.reference_loss},
          {"loss_error", result.loss_error},
          {"tolerance", result.tolerance},
          {"missing", result.missing},
          {"gradients", gradients}};
}

void print_verified(const Job& job, const VerifyResult& result, i64 show) {
  if (const std::string taken = taken_by_default(job); !taken.empty()) std::cout << taken << "\n";
  std::cout << fmt::format("loss      {:.15g}\nreference {:.15g}\n", result.loss, result.reference_loss);
  std::cout << "largest gradient errors:\n";
  for (std::size_t i = 0; i < result.gradients.size() && i < static_cast<std::size_t>(show); ++i) {
    std::cout << fmt::format("  {:.2e}  {}\n", result.gradients[i].error, result.gradients[i].name);
  }
  for (const std::string& name : result.missing) std::cout << "  only on one side: " << name << "\n";
  const double worst = result.gradients.empty() ? 0 : result.gradients[0].error;
  std::cout << fmt::format("{}: {} with {} on {}: loss error {:.1e}, worst of {} {:.1e}, tolerance {:.0e}\n",
                           result.passed() ? "PASSED" : "FAILED", job.model,
                           job.plan.file.empty() ? job.strategy : "the plan of " + job.plan.file, job.cluster,
                           result.loss_error, counted(result.gradients.size(), "gradient"), worst,
                           result.tolerance);
}

Json to_json(const ReplayResult& result) {
  return {{"passed", result.passed()},
          {"step", result.step},
          {"from_step", result.from},
          {"loss", result.loss},
          {"recorded_loss", result.recorded_loss},
          {"grad_norm", result.grad_norm},
          {"recorded_grad_norm", result.recorded_grad_norm}};
}

/// Computes a step of an earlier run again: a machine and program that repeat themselves give the same bits.
int verify_step(const VerifyArguments& options, const Job& job) {
  const ModelConfig model = load_model(job.model);
  const Cluster cluster = load_cluster(job.cluster);
  const ReplayResult result = replay_step(job, model, cluster, make_job_plan(job, model, cluster),
                                          load_job_data(job, model), options.step);
  if (options.json) {
    print_json(to_json(result));
    return result.passed() ? 0 : 1;
  }
  std::cout << fmt::format("              now                     recorded\nloss          {:<23} {}\n",
                           result.loss, result.recorded_loss);
  std::cout << fmt::format("gradient norm {:<23} {}\n", result.grad_norm, result.recorded_grad_norm);
  std::cout << fmt::format(
      "{}: step {} of {} from {}: {}\n", result.passed() ? "PASSED" : "FAILED", result.step, job.output,
      result.from > 0 ? fmt::format("the checkpoint of step {}", result.from) : "the start",
      result.passed() ? "equal to the bit" : "not equal. Is this the job, machine and program of the run?");
  // The job that lies in the folder is that of its results.
  const std::filesystem::path left = std::filesystem::path(job.output) / "job.json";
  if (!result.passed() && std::filesystem::exists(left)) {
    for (const std::string& difference : job_differences(read_json(left.string()), to_json(job)))
      std::cout << fmt::format("{} in the run of {}\n", difference, job.output);
  }
  return result.passed() ? 0 : 1;
}

int verify(const VerifyArguments& options, const Overrides& overrides) {
  const Job job = options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides);
  if (options.step > 0) return verify_step(options, job);
  const ModelConfig model = load_model(job.model);
  const Cluster cluster = load_cluster(job.cluster);
  Plan plan = make_job_plan(job, model, cluster);
  check_host_memory(job, model);
  const Dataset data = load_job_data(job, model);
  const Sampler sampler(data, {job.train.seq_len, job.train.seed});
  VerifyResult result =
      verify_plan(job, model, cluster, std::move(plan), sampler.batch(0, job.train.sequences, model.vocab));
  result.tolerance = options.tolerance;
  if (options.json)
    print_json(to_json(result));
  else
    print_verified(job, result, options.show);
  return result.passed() ? 0 : 1;
}

}  // namespace

std::function<int()> make_verify(Flags& flags) {
  const auto options = std::make_shared<VerifyArguments>();
  flags.add_option("job", options->job, "job file (YAML); every key of it is also a flag: --strategy ep");
  flags.add_option("--tolerance", options->tolerance, "largest relative difference that passes")
      ->capture_default_str()
      ->range(at_least(0));
  flags.add_option("--show", options->show, "gradients to list, worst first")
      ->capture_default_str()
      ->range(at_least(0));
  flags
      .add_option(
          "--step", options->step,
          "repeat this step of the run in the job's output folder, from its newest checkpoint before it, "
          "and compare with what the run recorded, to the bit")
      ->range(at_least(1));
  flags.add_flag("--json", options->json, "print the result as JSON");
  allow_overrides(flags);
  return [options, flags] { return verify(*options, overrides_of(flags)); };
}

}  // namespace hetermoe
