#pragma once
#include "hetermoe/base/types.h"

namespace hetermoe {

/// From now on, tensor operators that the calling thread runs use `count` threads. Other threads keep theirs.
void use_threads(i32 count);

}  // namespace hetermoe
