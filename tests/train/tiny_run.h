#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "hetermoe/train/run/step_balancer.h"
#include "hetermoe/train/run/trainer.h"
#include "tests/support/counting_data.h"
#include "tests/support/work_folder.h"

namespace hetermoe {

namespace fs = std::filesystem;

inline const auto kIgnore = [](const std::string&) {};

using Settings = std::vector<std::pair<std::string, std::string>>;

/// In fp64 no choice hangs on the order of sums.
inline Settings in_fp64(Settings more) {
  more.insert(more.begin(), {{"plan.attention_dtype", "fp64"},
                             {"plan.expert_dtype", "fp64"},
                             {"plan.wire_dtype", "fp64"},
                             {"clock.kind", "virtual"},
                             {"cluster", "o1"},
                             {"checkpoint.every", "0"}});
  return more;
}

/// A small job under the tiny model on the demo cluster, in this process.
struct TinyRun {
  Job job;
  ModelConfig model;
  Cluster cluster;
  Plan plan;

  TinyRun(const std::string& folder, std::vector<std::pair<std::string, std::string>> overrides = {}) {
    overrides.insert(overrides.begin(), {{"model", "tiny"},
                                         {"cluster", "demo"},
                                         {"output", folder},
                                         {"train.seq_len", "8"},
                                         {"train.sequences", "4"},
                                         {"train.microbatches", "2"},
                                         {"train.steps", "6"},
                                         {"train.validation_sequences", "0"},
                                         {"clock.threads", "1"},
                                         {"checkpoint.every", "2"}});
    job = job_from_overrides(overrides);
    model = load_model(job.model);
    cluster = load_cluster(job.cluster);
    plan = make_job_plan(job, model, cluster);
  }

  struct End {
    TrainOutcome outcome;
    TensorsByName values;
  };
  End run(Checkpoints checkpoints = Checkpoints::kOn,
          const std::function<void(Session&, const StepRecord&)>& on_step = {}) {
    const Dataset text = counting_data();
    const Processes processes;
    Trainer trainer(job, model, cluster, plan, text, processes, checkpoints);
    End result;
    result.outcome = trainer.run([&](const StepRecord& record) {
      if (on_step) on_step(trainer.session(), record);
    });
    result.values = trainer.session().values();
    return result;
  }
  /// As a run does it before its first step.
  void make_balancer() const {
    const ProfileSet profiles = load_profiles(cluster);
    StepBalancer(job, model, cluster, plan, profiles);
  }
  fs::path checkpoints() const { return fs::path(job.output) / "checkpoints"; }
  std::vector<i64> steps() const {
    std::vector<i64> out;
    for (const FoundCheckpoint& found : find_checkpoints(checkpoints(), kIgnore))
      out.push_back(found.info.step);
    return out;
  }
};

inline void expect_equal(const TensorsByName& a, const TensorsByName& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

}  // namespace hetermoe
