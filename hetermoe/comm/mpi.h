#pragma once
#include <memory>
#include <string>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/comm/transport.h"

// Processes of an MPI job, each with one or more devices. mpi.cpp is compiled when CMake finds MPI,
// no_mpi.cpp else.
namespace hetermoe {

/// Whether this build has MPI.
bool mpi_is_available();
/// Version of the MPI library, or why there is none.
std::string mpi_description();

/// This process within the job. Outside mpirun a job is one process.
class MpiJob : public Processes {
 public:
  /// Initialises MPI with threads. Throws TransportError when the library gives no MPI_THREAD_MULTIPLE or
  /// this build has no MPI.
  MpiJob();
  ~MpiJob() override;
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  i32 rank() const override { return rank_; }
  i32 num_ranks() const override { return num_ranks_; }
  bool has_mpi() const override { return true; }
  std::vector<std::string> gather(const std::string& text) const override;
  [[noreturn]] void abort(const Ending& ending) const override;

 private:
  i32 rank_ = 0, num_ranks_ = 1;
};

struct MpiOptions {
  /// Bytes of the largest piece in which a message travels: MPI counts them in an int. The same in all
  /// processes.
  std::size_t block = std::size_t{1} << 30;
};

/// rank_of: [num_devices] the process of each device, kNoRank = idle. Messages between devices of one process
/// stay there; others go by way of the host's memory, also from GPU to GPU. Collective. Throws TransportError
/// when MPI has too few tags for so many devices in a process.
std::unique_ptr<Transport> make_mpi_transport(const Processes& job, std::vector<i32> rank_of,
                                              MpiOptions options = {});

/// Devices over processes in contiguous runs, as equal as possible: [num_devices].
std::vector<i32> spread_devices(i32 num_devices, i32 num_ranks);

}  // namespace hetermoe
