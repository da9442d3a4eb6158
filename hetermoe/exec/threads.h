#pragma once
#include <string>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// The most threads that an op may use on this machine: four times its cores, at least 16. When the system
/// gives the OpenMP runtime fewer than it wants, the runtime ends the process.
i64 most_threads();
/// Throws ConfigError at `key` for fewer than one or more than that.
void check_threads(const std::string& key, i64 count);

/// From now on, tensor operators that the calling thread runs use `count` threads. Other threads keep theirs.
void use_threads(i32 count);

}  // namespace hetermoe
