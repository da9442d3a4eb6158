#pragma once
#include "hetermoe/comm/mpi.h"

namespace hetermoe::testing {

extern const MpiJob* job;  ///< that mpirun has started

}  // namespace hetermoe::testing
