#include <gtest/gtest.h>

#include <map>

#include "hetermoe/base/error.h"
#include "hetermoe/comm/processes.h"

namespace hetermoe {
namespace {

Launch launch_with(const std::map<std::string, std::string>& variables) {
  return read_launch([&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
}

TEST(ReadLaunch, StartedByHandIsOneProcess) {
  const Launch launch = launch_with({{"HOME", "/root"}});
  EXPECT_EQ(launch.by, Launch::By::kHand);
  EXPECT_EQ(launch.num_ranks, 1);
}

TEST(ReadLaunch, EveryMpiLauncherIsKnown) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS"}) {
    const Launch launch = launch_with({{name, "4"}});
    EXPECT_EQ(launch.by, Launch::By::kMpi) << name;
    EXPECT_EQ(launch.num_ranks, 4) << name;
  }
}

TEST(ReadLaunch, AShellInsideASlurmJobIsStartedByHand) {
  EXPECT_EQ(launch_with({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "8"}}).num_ranks, 1);
}

TEST(ReadLaunch, ASlurmStepHasSomeRanksOnEveryNode) {
  const Launch launch = launch_with({{"SLURM_JOB_ID", "7"},
                                     {"SLURM_NTASKS", "8"},
                                     {"SLURM_STEP_NUM_TASKS", "5"},
                                     {"SLURM_STEP_TASKS_PER_NODE", "4,1"},
                                     {"SLURM_PROCID", "4"},
                                     {"SLURM_LOCALID", "0"}});
  EXPECT_EQ(launch.by, Launch::By::kMpi);
  EXPECT_EQ(launch.num_ranks, 5);
}

TEST(ReadLaunch, TorchrunNeedsRankAndWorldSize) {
  const Launch launch = launch_with({{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_ADDR", "a"}});
  EXPECT_EQ(launch.by, Launch::By::kTorchrun);
  EXPECT_EQ(launch.num_ranks, 2);
  EXPECT_EQ(launch_with({{"WORLD_SIZE", "2"}}).by, Launch::By::kHand);
}

TEST(ReadLaunch, MpiInsideOfTorchVariablesIsMpi) {
  EXPECT_EQ(launch_with({{"OMPI_COMM_WORLD_SIZE", "2"}, {"WORLD_SIZE", "2"}, {"RANK", "0"}}).by,
            Launch::By::kMpi);
}

TEST(ReadLaunch, ACountThatIsNoNumberIsNamed) {
  for (const char* text : {"four", "0", "-1", "2x"}) {
    try {
      launch_with({{"PMI_SIZE", text}});
      ADD_FAILURE() << text;
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()),
                std::string("[PMI_SIZE] got \"") + text + "\", expected a number of processes");
    }
  }
}

TEST(JoinProcesses, ACpuRunUnderTorchrunNamesMpirun) {
  setenv("WORLD_SIZE", "4", 1);
  setenv("RANK", "0", 1);
  try {
    join_processes();
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("mpirun -np 4 hetermoe train"), std::string::npos)
        << error.what();
  }
  unsetenv("WORLD_SIZE");
  unsetenv("RANK");
}

}  // namespace
}  // namespace hetermoe
