#include "hetermoe/base/host_name.h"

#include <unistd.h>

namespace hetermoe {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

}  // namespace hetermoe
