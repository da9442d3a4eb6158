#include "hetermoe/train/verify.h"

#include <iostream>
#include <memory>

#include "hetermoe/cli/command.h"

namespace hetermoe {
namespace {

struct Options {
  std::string job;
  double tolerance = 1e-10;
  i64 show = 5;
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

void print(const Job& job, const VerifyResult& result, i64 show) {
  std::cout << fmt::format("loss      {:.15g}\nreference {:.15g}\n", result.loss, result.reference_loss);
  std::cout << "largest gradient errors:\n";
  for (std::size_t i = 0; i < result.gradients.size() && i < static_cast<std::size_t>(show); ++i) {
    std::cout << fmt::format("  {:.2e}  {}\n", result.gradients[i].error, result.gradients[i].name);
  }
  for (const std::string& name : result.missing) std::cout << "  only on one side: " << name << "\n";
  const double worst = result.gradients.empty() ? 0 : result.gradients[0].error;
  std::cout << fmt::format(
      "{}: {} with {} on {}: loss error {:.1e}, worst of {} gradients {:.1e}, tolerance {:.0e}\n",
      result.passed() ? "PASSED" : "FAILED", job.model, job.strategy, job.cluster, result.loss_error,
      result.gradients.size(), worst, result.tolerance);
}

int verify(const Options& options, const Overrides& overrides) {
  const Job job = options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides);
  const ModelConfig model = load_model(job.model);
  const Cluster cluster = load_cluster(job.cluster);
  Plan plan = make_job_plan(job, model, cluster);
  const Text text = load_text(job.data, job.train.seq_len);
  const Sampler sampler(text.train, job.train.seq_len, job.train.seed);
  VerifyResult result =
      verify_plan(job, model, cluster, std::move(plan), sampler.batch(0, job.train.sequences));
  result.tolerance = options.tolerance;
  if (options.json)
    print_json(to_json(result));
  else
    print(job, result, options.show);
  return result.passed() ? 0 : 1;
}

}  // namespace

std::function<int()> make_verify(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("job", options->job, "job file (YAML); every key of it is also a flag: --strategy ep");
  app.add_option("--tolerance", options->tolerance, "largest relative difference that passes")
      ->capture_default_str();
  app.add_option("--show", options->show, "gradients to list, worst first")->capture_default_str();
  app.add_flag("--json", options->json, "print the result as JSON");
  allow_overrides(app);
  return [options, &app] { return verify(*options, overrides_of(app)); };
}

}  // namespace hetermoe
