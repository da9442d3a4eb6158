#pragma once

namespace hetermoe {

/// Version of hetermoe, as 0.1.0.
const char* version();

}  // namespace hetermoe
