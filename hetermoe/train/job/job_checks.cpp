#include "hetermoe/train/job/job_checks.h"

#include <fmt/ranges.h>

#include "hetermoe/balance/balancers.h"

namespace hetermoe {
namespace {

/// A run asks its balancer again and again, so the balancer must go by what the run observes.
void check_goes_by_loads(const BalancerOptions& options) {
  const Balancer* chosen = balancer_choice(options.name).balancer;
  if (chosen == nullptr || chosen->by_load) return;
  std::vector<std::string> names;
  for (const Balancer& balancer : balancers())
    if (balancer.by_load) names.push_back(balancer.name);
  fail<ConfigError>("balancer.name",
                    "got {}, which chooses the same owners whatever the loads: expected none or one of {}",
                    options.name, fmt::join(names, ", "));
}

/// What says how a balancer works means nothing without one.
void check_balancer(const BalancerOptions& options) {
  check_goes_by_loads(options);
  const auto check = [&](const char* key, bool given) {
    if (given && !options.on())
      fail<ConfigError>("balancer.name", "got none, expected the balancer that balancer.{} is for, as lpt",
                        key);
  };
  check("knows", options.knows != Knows::kHistory);
  check("probe", options.probe);
  check("measure", options.measure);
}

/// All tokens of a step are in memory at once.
void check_tokens(const TrainOptions& train) {
  constexpr i64 kMostTokens = 10'000'000'000;
  if (train.sequences * train.seq_len <= kMostTokens) return;
  fail<ConfigError>(
      "train.sequences",
      "got {} sequences of {} tokens (train.seq_len), which are {} tokens in a step: expected at "
      "most {}",
      train.sequences, train.seq_len, train.sequences * train.seq_len, kMostTokens);
}

}  // namespace

void check_is_job(const Json& file, const std::string& path) {
  struct Kind {
    const char *key, *what, *flag;
  };
  for (const Kind& kind : {Kind{"groups", "a plan", "--plan.file"}, Kind{"nodes", "a cluster", "--cluster"},
                           Kind{"model_type", "the configuration of a model", "--model"}}) {
    if (file.is_object() && file.contains(kind.key))
      fail<ConfigError>(path, "is {}, expected a job: give it as {} {}", kind.what, kind.flag, path);
  }
}

void check_names(const Job& job, const std::string& where) {
  const auto check = [&](const char* key, const std::string& name, const char* expected) {
    if (name.empty()) fail<ConfigError>(where + key, "is empty, expected {}", expected);
  };
  check("model", job.model, "a name of configs/models, a config.json or its folder");
  check("cluster", job.cluster, "a name of configs/clusters, a YAML file or a hostfile");
  check("strategy", job.strategy, "the name of a strategy, such as zebra");
  check("output", job.output, "the folder of results");
  for (const std::string& path : job.data.paths) check("data.paths", path, "files or folders of text");
}

void check_values(const Job& job) {
  check_tokens(job.train);
  check_balancer(job.balancer);
}

}  // namespace hetermoe
