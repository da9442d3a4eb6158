#include <gtest/gtest.h>

#include <optional>

#include "hetermoe/train/run/trainer.h"
#include "tests/mpi/job.h"
#include "tests/support/counting_data.h"
#include "tests/support/fast_nodes.h"
#include "tests/support/faults.h"
#include "tests/support/strategy_plans.h"
#include "tests/support/work_folder.h"
#include "tests/train/tiny_run.h"

// Weights that are divided over the devices of several processes.
namespace hetermoe::testing {
namespace {

std::vector<StepResult> two_steps(Session& session) {
  session.initialize(1);
  std::vector<StepResult> results;
  for (i64 step = 0; step < 2; ++step) {
    StepInput input = random_input(session.plan(), session.model());
    input.step = step;
    input.learning_rate = 1e-2;
    input.max_grad_norm = 0.1;
    results.push_back(session.train_step(input));
  }
  return results;
}

TEST(Mpi, ShardedWeightsEqualThoseInOneProcessBitForBit) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = with_fast_nodes("demo");  // sums go in two levels
  const std::vector<i32> rank_of = spread_devices(cluster.num_devices(), job->num_ranks());
  i64 parts = 0;
  for (const char* strategy : {"ep", "zebra", "pp-ep"}) {
    Plan plan = find_strategy(strategy).make(model, cluster, small_step());
    use_dtype(plan, Dtype::kFp32);
    shard_weights(plan);
    Session::Options options{{true, 1, true}, {}, {}};
    Session alone(model, cluster, plan, options);
    for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
      if (rank_of[static_cast<std::size_t>(d)] == job->rank()) options.local.push_back(d);
    }
    Session part(model, cluster, plan, options,
                 [&](const Schedule&) { return make_mpi_transport(*job, rank_of); });
    const std::vector<StepResult> expected = two_steps(alone), got = two_steps(part);
    for (std::size_t step = 0; step < expected.size(); ++step) {
      EXPECT_EQ(got[step].loss, expected[step].loss) << strategy;
      EXPECT_EQ(got[step].grad_norm, expected[step].grad_norm) << strategy;
    }
    const TensorsByName values = alone.values();
    for (DeviceState* state : part.states()) {
      for (const LogicalTensor& tensor : state->store().tensors()) {
        const at::Tensor kept = kept_value_of(tensor, values.at(tensor.name));
        EXPECT_TRUE(at::equal(tensor.value.flatten(), kept.flatten())) << strategy << " " << tensor.name;
        parts += tensor.gathered ? 1 : 0;
      }
    }
  }
  EXPECT_GT(parts, 20);
}

std::vector<double> losses_of(const fs::path& folder, const std::string& steps, const Processes& processes) {
  const TinyRun rig(folder.string(),
                    {{"train.steps", steps}, {"plan.shard_weights", "true"}, {"strategy", "ep"}});
  const Dataset text = counting_data();
  Trainer trainer(rig.job, rig.model, rig.cluster, rig.plan, text, processes, Checkpoints::kOn);
  std::vector<double> losses;
  for (const StepRecord& record : trainer.run().records) losses.push_back(record.loss);
  return losses;
}

/// Of several processes none has a whole tensor; one process goes on from what they wrote.
TEST(Mpi, ACheckpointOfDividedWeightsIsReadByOneProcess) {
  std::optional<WorkFolder> own;
  if (job->rank() == 0) own.emplace();
  const fs::path shared = job->gather(job->rank() == 0 ? own->path().string() : "").front();
  const WorkFolder of_one;
  const Processes one;
  const std::vector<double> expected = losses_of(of_one / "run", "4", one);
  EXPECT_EQ(losses_of(shared / "run", "4", *job), expected);
  job->gather("written");
  if (job->rank() == 0) {
    const std::vector<double> resumed = losses_of(shared / "run", "6", one);
    EXPECT_EQ(resumed.size(), 2U);
    EXPECT_EQ(resumed, losses_of(of_one / "run", "6", one));
  }
  job->gather("looked");
}

}  // namespace
}  // namespace hetermoe::testing
