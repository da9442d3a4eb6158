#include <gtest/gtest.h>

#include "hetermoe/plan/offload.h"
#include "hetermoe/train/session/session.h"
#include "tests/gpus/fake_gpus.h"
#include "tests/mpi/job.h"
#include "tests/support/guest_plan.h"
#include "tests/support/rig.h"
#include "tests/support/with_hosts.h"

// Processes with GPUs of their own and, with one process for each node, hosts: the bits of one process.
namespace hetermoe::testing {
namespace {

struct StepsOnGpus {
  std::vector<double> losses, norms;
  TensorsByName values;
};

StepsOnGpus steps_on_gpus(Session& session) {
  session.initialize(1);
  StepsOnGpus out;
  for (i64 step = 0; step < 2; ++step) {
    StepInput input = random_input(session.plan(), session.model());
    input.step = step;
    input.learning_rate = 1e-2;
    input.max_grad_norm = 0.1;
    const StepResult result = session.train_step(input);
    out.losses.push_back(result.loss);
    out.norms.push_back(result.grad_norm);
  }
  out.values = session.values();
  return out;
}

/// A process for each node where there are as many, and its host with it.
std::vector<i32> ranks_of_places(const Cluster& cluster) {
  std::vector<i32> rank_of = spread_devices(cluster.num_devices(), job->num_ranks());
  for (std::size_t node = 0; node < cluster.nodes.size(); ++node)
    rank_of.push_back(static_cast<i32>(node) % job->num_ranks());
  return rank_of;
}

void expect_bits_of_one_process(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                                const std::string& what) {
  clear_fake_gpus();
  Session::Options options{{true, 1, true}, {}, {}};
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) options.where.push_back(fake_gpu(d));
  Session alone(model, cluster, plan, options);
  const std::vector<i32> rank_of = ranks_of_places(cluster);
  for (PlaceId place = 0; place < static_cast<PlaceId>(rank_of.size()); ++place) {
    if (rank_of[static_cast<std::size_t>(place)] == job->rank()) options.local.push_back(place);
  }
  Session part(model, cluster, plan, options,
               [&](const Schedule&) { return make_mpi_transport(*job, rank_of); });
  const StepsOnGpus expected = steps_on_gpus(alone), got = steps_on_gpus(part);
  EXPECT_EQ(got.losses, expected.losses) << what;
  EXPECT_EQ(got.norms, expected.norms) << what;
  for (const auto& [name, value] : got.values)
    EXPECT_TRUE(at::equal(value, expected.values.at(name))) << what << " " << name;
  EXPECT_EQ(faults_of_fake_gpus(), std::vector<std::string>{}) << what;
}

TEST(Mpi, GpusOfSeveralProcessesGiveTheBitsOfOne) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  for (NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    if (static_cast<i32>(devices_of(named.plan).size()) < cluster.num_devices()) continue;
    use_dtype(named.plan, Dtype::kFp32);
    expect_bits_of_one_process(model, cluster, named.plan, named.name);
    if (named.name == "ep" && use_guests(named.plan, model))
      expect_bits_of_one_process(model, cluster, named.plan, "ep with guests");
  }
}

TEST(Mpi, GpusAndHostsOfAProcessForEachNodeGiveTheBitsOfOne) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = with_hosts(make_cluster(4, 2));
  if (job->num_ranks() != static_cast<i32>(cluster.nodes.size())) GTEST_SKIP() << "one process for each node";
  for (const char* strategy : {"ep", "zebra", "pp-ep"}) {
    for (const std::vector<std::string>& entries :
         {std::vector<std::string>{"optimizer"}, {"all", "saved"}}) {
      Plan plan = find_strategy(strategy).make(model, cluster, small_step());
      use_dtype(plan, Dtype::kFp32);
      offload(plan, model, cluster, entries, "test");
      if (!validate(plan, model, cluster).empty()) continue;
      expect_bits_of_one_process(model, cluster, plan, std::string(strategy) + " with " + entries.back());
    }
  }
}

}  // namespace
}  // namespace hetermoe::testing
