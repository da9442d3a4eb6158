#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "tests/mpi/job.h"
#include "tests/support/guest_plan.h"
#include "tests/support/rig.h"
#include "tests/support/work_folder.h"
#include "tests/train/tiny_run.h"

// Experts that are lent between processes.
namespace hetermoe::testing {
namespace {

std::vector<StepResult> three_steps(Session& session, i64& guests) {
  session.initialize(1);
  std::vector<StepResult> results;
  for (i64 step = 0; step < 3; ++step) {
    StepInput input = random_input(session.plan(), session.model());
    input.step = step;
    input.learning_rate = 1e-2;
    input.max_grad_norm = 0.1;
    results.push_back(session.train_step(input));
    const RecordedRouting routing = session.executor().recorded_routing();
    const Placement placement(session.plan(), session.model(), {});
    for (const Op& op : session.schedule().ops) {
      if (op.kind != OpKind::kLend) continue;
      const auto& owners = placement.owners(op.group, op.layer);
      const bool local = std::any_of(owners.begin(), owners.end(), [&](DeviceId owner) {
        for (const DeviceState* state : session.states()) {
          if (state->device() == owner) return true;
        }
        return false;
      });
      if (local)
        guests +=
            static_cast<i64>(routing.exchange(placement, op.group, op.layer, op.microbatch, 0).guests.size());
    }
  }
  return results;
}

TEST(Mpi, GuestsOfOtherProcessesEqualThoseInOneProcessBitForBit) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  const std::vector<i32> rank_of = spread_devices(cluster.num_devices(), job->num_ranks());
  i64 guests = 0;
  for (const char* strategy : {"ep", "zebra"}) {
    Plan plan = find_strategy(strategy).make(model, cluster, small_step());
    use_dtype(plan, Dtype::kFp32);
    use_guests(plan, model);
    Session::Options options{{true, 1, true}, {}, {}};
    Session alone(model, cluster, plan, options);
    for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
      if (rank_of[static_cast<std::size_t>(d)] == job->rank()) options.local.push_back(d);
    }
    Session part(model, cluster, plan, options,
                 [&](const Schedule&) { return make_mpi_transport(*job, rank_of); });
    i64 theirs = 0;
    const std::vector<StepResult> expected = three_steps(alone, guests), got = three_steps(part, theirs);
    for (std::size_t step = 0; step < expected.size(); ++step) {
      EXPECT_EQ(got[step].loss, expected[step].loss) << strategy;
      EXPECT_EQ(got[step].grad_norm, expected[step].grad_norm) << strategy;
    }
    const TensorsByName values = alone.values();
    for (DeviceState* state : part.states()) {
      for (const LogicalTensor& tensor : state->store().tensors())
        EXPECT_TRUE(at::equal(tensor.value, values.at(tensor.name))) << strategy << " " << tensor.name;
    }
  }
  EXPECT_GT(guests, 5);
}

TrainOutcome run_with(const fs::path& folder, const Settings& balancer, const Processes& processes) {
  Settings settings = {{"strategy", "ep"},      {"checkpoint.every", "0"},   {"train.sequences", "16"},
                       {"balancer.every", "1"}, {"balancer.guard", "false"}, {"balancer.guest_cost", "0"}};
  settings.insert(settings.end(), balancer.begin(), balancer.end());
  const TinyRun rig(folder.string(), settings);
  const Dataset text = two_domains();
  Trainer trainer(rig.job, rig.model, rig.cluster, rig.plan, text, processes, Checkpoints::kOff);
  return trainer.run();
}

void expect_runs_equal_one_process(const Settings& balancer) {
  std::optional<WorkFolder> own;
  if (job->rank() == 0) own.emplace();
  const fs::path shared = job->gather(job->rank() == 0 ? own->path().string() : "").front();
  const WorkFolder of_one;
  const TrainOutcome expected = run_with(of_one / "run", balancer, Processes()),
                     got = run_with(shared / "run", balancer, *job);
  ASSERT_EQ(got.records.size(), expected.records.size());
  for (std::size_t s = 0; s < expected.records.size(); ++s) {
    EXPECT_EQ(got.records[s].loss, expected.records[s].loss) << s;
    EXPECT_EQ(got.records[s].sent, expected.records[s].sent) << s;
    EXPECT_EQ(got.records[s].sent_between_nodes, expected.records[s].sent_between_nodes) << s;
    EXPECT_GT(got.records[s].sent_between_nodes, 0) << s;
  }
  EXPECT_GE(got.changes.size(), 1U);
  EXPECT_EQ(got.changes.size(), expected.changes.size());
  job->gather("looked");
}

Settings with_probe(const std::string& balancer) {
  return {{"balancer.name", balancer}, {"balancer.knows", "foresight"}, {"balancer.probe", "true"}};
}

/// Choices that a forward pass finds are told to all, and all lend alike.
TEST(Mpi, ProbedRunsEqualThoseOfOneProcessBitForBit) { expect_runs_equal_one_process(with_probe("relibra")); }

TEST(Mpi, SequencesInAnotherOrderEqualThoseOfOneProcessBitForBit) {
  expect_runs_equal_one_process(with_probe("locality"));
}

/// Copies of experts by shares, and by the counts that a tally tells.
// Claim (Mpi.RunsWithCopies*, ChangePlan.ThereAndBackOfABalancersOwners*): copies over processes equal those
// in one to the bit; owners of every balancer, and back: all tensors and moments bit-equal
TEST(Mpi, RunsWithCopiesEqualThoseOfOneProcessBitForBit) {
  expect_runs_equal_one_process({{"balancer.name", "eplb"}, {"balancer.replicas", "4"}});
  expect_runs_equal_one_process({{"balancer.name", "lplb"}, {"balancer.topology", "ring"}});
}

/// What domains chose is added over processes.
TEST(Mpi, ByDomainsRunsEqualThoseOfOneProcessBitForBit) {
  expect_runs_equal_one_process({{"balancer.name", "locality"}});
}

}  // namespace
}  // namespace hetermoe::testing
