#include "hetermoe/train/job/job.h"

#include "fuzz/small_plans.h"
#include "fuzz/target.h"

// A job file, the plan that its strategy makes, and what else a run decides from it before its first step.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  const Job job = parse_job(input, "job.yaml", {});
  const std::string written = write_fields(job).dump();
  expect_reads_back(written, [&] { return write_fields(parse_job(written, "written", {})).dump(); });
  step_options(job, tiny_model());
  const Plan plan = make_job_plan(job, tiny_model(), demo_cluster());
  emulated_plan(job, plan);
}

/// The jobs of configs/, and one with every key.
std::vector<std::string> seeds() {
  std::vector<std::string> texts = config_texts("jobs", "yaml");
  Job job;
  job.model = "tiny";
  job.train.freeze = {"*.embed_tokens.weight"};
  job.train.changes = {{.step = 3, .plan = "other.json"}};
  job.plan.attention = {0, 1};
  job.plan.experts_moved = {1, 0};
  job.clock.kind = ClockKind::kVirtual;
  texts.push_back(write_fields(job).dump(1));
  return texts;
}

}  // namespace

extern const Target kJob{"job", run, seeds};

}  // namespace hetermoe::fuzz
