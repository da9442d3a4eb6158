#pragma once
#include <string>

namespace hetermoe {

/// Name of the machine that this process runs on; "unknown" where the system tells none.
std::string host_name();

}  // namespace hetermoe
