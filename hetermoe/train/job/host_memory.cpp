#include "hetermoe/train/job/host_memory.h"

#include <unistd.h>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/report/table.h"

namespace hetermoe {

void check_host_memory(const Job& job, const ModelConfig& model, const char* key) {
  const Bytes has = real(::sysconf(_SC_PHYS_PAGES)) * real(::sysconf(_SC_PAGESIZE));
  const double parameters = real(count_parameters(model).total);
  // What is frozen has no gradients and moments, and values of 2 bytes at least.
  const bool trains_all = job.train.freeze.empty() && job.train.lora.rank == 0;
  const Bytes each = trains_all ? state_bytes_per_parameter(4).total() : 2;
  if (has <= 0 || parameters * each <= has) return;
  fail<ConfigError>(key,
                    "{} has {} parameters, for which training keeps {} at least, but this machine has {} of "
                    "memory: expected a smaller model. plan, simulate and compare --seq need no such memory",
                    model.name, format_count(parameters), format_bytes(parameters * each), format_bytes(has));
}

}  // namespace hetermoe
