#include "hetermoe/train/run/compare.h"

#include "hetermoe/base/words.h"

namespace hetermoe {
namespace {

void check_comparable(const Job& job, std::size_t num_strategies) {
  const std::string several = counted(num_strategies, "strategy");
  if (!job.train.changes.empty())
    fail<ConfigError>("train.changes", "got {} with {}, expected none: they are compared by their own plans",
                      counted(job.train.changes.size(), "change"), several);
  if (!job.routing.record.empty())
    fail<ConfigError>("routing.record", "got {} with {}, expected none: all would write the same trace",
                      job.routing.record, several);
  if (job.grow.at > 0)
    fail<ConfigError>("grow.at", "got {} with {}, expected 0: `train` alone grows", job.grow.at, several);
}

}  // namespace

std::vector<StrategyRun> compare_job(const Job& job, const std::vector<std::string>& strategies,
                                     const JobRunOptions& options, const OnStep& on_step,
                                     const Processes& processes) {
  if (strategies.size() > 1) check_comparable(job, strategies.size());
  return run_job(job, strategies, options, on_step, processes);
}

}  // namespace hetermoe
