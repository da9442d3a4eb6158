#include "hetermoe/train/job.h"

#include "fuzz/small_plans.h"
#include "fuzz/target.h"

// A job in YAML, and the plan that its strategy makes for a small model.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  const Json json = parse_yaml(input, "job.yaml");
  Job job;
  read_fields(json, job, "job.yaml");
  Job again;
  read_fields(write_fields(job), again, "written");
  expect_same(write_fields(job).dump(), write_fields(again).dump(), "a job");
  if (job.plan.file.empty()) make_job_plan(job, tiny_model(), demo_cluster());
}

std::vector<std::string> seeds() {
  std::vector<std::string> texts = config_texts("jobs", "yaml");
  texts.push_back(write_fields(Job()).dump(1));
  texts.push_back(
      "strategy: zebra\ntrain: {sequences: 8, microbatches: 2, seq_len: 16}\n"
      "plan: {attention: [0, 1], experts: [2, 3], experts_moved: [1, 0], window: 1}\n");
  return texts;
}

}  // namespace

extern const Target kJob{"job", run, seeds};

}  // namespace hetermoe::fuzz
