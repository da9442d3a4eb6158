#include "hetermoe/base/version.h"

namespace hetermoe {

const char* version() { return HM_VERSION; }

}  // namespace hetermoe
