#include "hetermoe/train/session/presence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "tests/mpi/job.h"
#include "tests/support/counting_data.h"
#include "tests/train/tiny_run.h"

// What ranks leave for whoever starts a run anew.
namespace hetermoe::testing {
namespace {

/// A host is a place of its process, but no device that could vanish: `launch --replan` plans over devices.
TEST(Mpi, RankFilesNameDevicesAndNoHosts) {
  if (job->num_ranks() != 2) GTEST_SKIP() << "one size is enough: a process for each of the two nodes";
  std::optional<WorkFolder> own;
  if (job->rank() == 0) own.emplace();
  const std::string shared = job->gather(job->rank() == 0 ? own->path().string() : "").front();
  const TinyRun rig(
      shared + "/run",
      {{"cluster", "demo-hosts"}, {"plan.offload", "all"}, {"train.steps", "1"}, {"checkpoint.every", "0"}});
  const Dataset text = counting_data();
  {
    Trainer trainer(rig.job, rig.model, rig.cluster, rig.plan, text, *job, Checkpoints::kOn);
    const std::vector<DeviceId>& local = trainer.session().local();
    const bool has_host = std::any_of(local.begin(), local.end(),
                                      [&](DeviceId place) { return place >= rig.cluster.num_devices(); });
    const std::vector<std::string> hosts = job->gather(has_host ? "host" : "");
    EXPECT_NE(std::count(hosts.begin(), hosts.end(), "host"), 0);
    trainer.run();
  }
  job->gather("done");
  std::vector<DeviceId> devices;
  for (const RankEnd& end : read_rank_ends(shared + "/run"))
    devices.insert(devices.end(), end.devices.begin(), end.devices.end());
  std::sort(devices.begin(), devices.end());
  EXPECT_EQ(devices, (std::vector<DeviceId>{0, 1, 2, 3}));
  job->gather("looked");  // before rank 0 removes the folder
}

}  // namespace
}  // namespace hetermoe::testing
