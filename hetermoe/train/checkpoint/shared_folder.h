#pragma once
#include <filesystem>
#include <functional>

#include "hetermoe/comm/processes.h"

namespace hetermoe {

/// Asks `done` until it says true, with growing pauses. False when that takes longer than the limit.
bool wait_until(const std::function<bool()>& done, Seconds limit);

/// Checks that all ranks see what rank 0 writes into the folder, which is created; collective. File systems
/// of a network may show a new file late: that is waited for. Throws ConfigError that names the first rank
/// that sees nothing, IoError when rank 0 cannot write.
void check_shared_folder(const Processes& processes, const std::filesystem::path& folder, Seconds limit = 60);

}  // namespace hetermoe
