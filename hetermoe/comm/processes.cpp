#include "hetermoe/comm/processes.h"

#include <charconv>
#include <cstdlib>

#include "hetermoe/base/error.h"
#include "hetermoe/comm/mpi.h"

namespace hetermoe {
namespace {

/// Variables that tell the number of processes, by launcher. Slurm's job variables are also set where srun
/// starts nothing, those of a step are not.
constexpr const char* kMpiCounts[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS",
                                      "SLURM_STEP_NUM_TASKS"};

i32 whole_number(const char* name, const std::string& text, i32 least, const char* expected) {
  i32 number = 0;
  const auto [rest, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || rest != text.data() + text.size() || number < least)
    fail<ConfigError>(name, "got \"{}\", expected {}", text, expected);
  return number;
}
i32 count_of(const char* name, const std::string& text) {
  return whole_number(name, text, 1, "a number of processes");
}
i32 rank_of(const char* name, const std::string& text) {
  return whole_number(name, text, 0, "the number of a process");
}

}  // namespace

i32 Processes::local_rank() const {
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    const char* text = std::getenv(name);
    if (text != nullptr && *text != '\0') return rank_of(name, text);
  }
  return rank();
}

void Processes::abort(int code) const { std::_Exit(code); }

Launch read_launch(const std::function<std::string(const std::string&)>& variable) {
  for (const char* name : kMpiCounts) {
    const std::string text = variable(name);
    if (!text.empty()) return {Launch::By::kMpi, count_of(name, text)};
  }
  const std::string world = variable("WORLD_SIZE");
  if (!world.empty() && !variable("RANK").empty())
    return {Launch::By::kTorchrun, count_of("WORLD_SIZE", world)};
  return {};
}

std::unique_ptr<Processes> join_processes() {
  const Launch launch = read_launch([](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value != nullptr ? value : "");
  });
  if (launch.num_ranks == 1) return std::make_unique<Processes>();
  if (launch.by == Launch::By::kTorchrun) {
    fail<ConfigError>(
        "WORLD_SIZE",
        "torchrun started {} processes, but this build runs on CPUs, whose processes talk over MPI. "
        "Start it with: mpirun -np {} hetermoe train ...",
        launch.num_ranks, launch.num_ranks);
  }
  auto job = std::make_unique<MpiJob>();
  if (job->num_ranks() != launch.num_ranks) {
    fail<TransportError>(
        "mpi",
        "the launcher started {} processes, but MPI sees {}: the launcher is of another MPI than this "
        "build ({})",
        launch.num_ranks, job->num_ranks(), mpi_description());
  }
  return job;
}

}  // namespace hetermoe
