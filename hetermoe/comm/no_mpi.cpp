#include "hetermoe/base/error.h"
#include "hetermoe/comm/mpi.h"

namespace hetermoe {

bool mpi_is_available() { return false; }
std::string mpi_description() { return "not built (install libopenmpi-dev and build again)"; }

MpiJob::MpiJob() {
  fail<TransportError>("mpi",
                       "this build has no MPI. Install libopenmpi-dev and openmpi-bin, then ./dev build");
}
MpiJob::~MpiJob() = default;
std::vector<std::string> MpiJob::gather(const std::string& text) const { return {text}; }
void MpiJob::abort(const Ending& ending) const { std::exit(ending.code); }

std::unique_ptr<Transport> make_mpi_transport(const Processes&, std::vector<i32>, MpiOptions) {
  fail<TransportError>("mpi", "this build has no MPI");
}

}  // namespace hetermoe
