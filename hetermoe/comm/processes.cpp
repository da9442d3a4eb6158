#include "hetermoe/comm/processes.h"

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/base/numbers.h"
#include "hetermoe/base/version.h"
#include "hetermoe/base/words.h"
#include "hetermoe/comm/mpi.h"
#include "hetermoe/comm/store_job.h"

namespace hetermoe {
namespace {

/// Variables that tell the number of processes, by launcher. Slurm's job variables are also set where srun
/// starts nothing, those of a step are not.
constexpr const char* kMpiCounts[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS",
                                      "SLURM_STEP_NUM_TASKS"};

i32 number_from(const char* name, const std::string& text, i64 least, const char* expected) {
  const std::optional<i64> number = whole_number(text);
  if (!number || *number < least || *number > kMaxRanks)
    fail<ConfigError>(name, "got \"{}\", expected {}", text, expected);
  return static_cast<i32>(*number);
}

i32 count_of(const char* name, const std::string& text) {
  return number_from(name, text, 1, "a number of processes");
}

}  // namespace

i32 Processes::local_rank() const {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    const std::string text = environment_variable(name);
    if (!text.empty()) return number_from(name, text, 0, "the number of a process on its machine");
  }
  return rank();
}

void Processes::abort(const Ending& ending) const { std::_Exit(ending.code); }

std::string environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value != nullptr ? value : "";
}

void end_run(const Processes& processes, const std::exception& error, int code) {
  // What is wrong for all ranks is said once: rank 0 has the first word.
  if (processes.rank() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::cerr << fmt::format("rank {}: {}", processes.rank(), error.what()) << std::endl;
  const bool of_transfer = dynamic_cast<const TransportError*>(&error) != nullptr;
  processes.abort({.code = code, .text = error.what(), .of_transfer = of_transfer});
  __builtin_unreachable();
}

void check_alike(const Processes& processes, const std::string& mine, const std::string& hint) {
  const std::vector<std::string> all = processes.gather(mine);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r] != all[0]) {
      fail<ConfigError>(fmt::format("rank {}", r), "is not started like rank 0: got {}, expected {}. {}",
                        all[r], all[0], hint);
    }
  }
}

Launch read_launch(const Variables& variable) {
  for (const char* name : kMpiCounts) {
    const std::string text = variable(name);
    if (!text.empty()) return {Launch::By::kMpi, count_of(name, text)};
  }
  const std::string world = variable("WORLD_SIZE");
  if (!world.empty() && !variable("RANK").empty())
    return {Launch::By::kTorchrun, count_of("WORLD_SIZE", world)};
  return {};
}

std::unique_ptr<Processes> join_processes(RunsOn device, StoreOptions options) {
  const Launch launch = read_launch(environment_variable);
  if (launch.num_ranks == 1) return std::make_unique<Processes>();
  if (launch.by == Launch::By::kTorchrun) {
    if (device == RunsOn::kGpu)
      return join_store(read_store_address(environment_variable), std::move(options));
    fail<ConfigError>(
        "WORLD_SIZE",
        "torchrun started {}, but this runs on CPUs, whose processes talk over MPI. Start it with: "
        "mpirun -np {} {} train ..., or use GPUs: --run.device cuda",
        counted(launch.num_ranks, "process"), launch.num_ranks, program());
  }
  auto job = std::make_unique<MpiJob>();
  if (job->num_ranks() != launch.num_ranks) {
    fail<TransportError>("mpi",
                         "the launcher started {}, but MPI sees {}: the launcher is of another MPI than this "
                         "build ({})",
                         counted(launch.num_ranks, "process"), job->num_ranks(), mpi_description());
  }
  return job;
}

}  // namespace hetermoe
