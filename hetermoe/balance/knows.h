#pragma once
#include "hetermoe/base/fields.h"

namespace hetermoe {

/// The loads that a balancer uses: the steps before, or the step's own choices.
enum class Knows { kHistory, kForesight };
template <>
struct EnumNames<Knows> {
  static const std::vector<std::string>& names();
};

}  // namespace hetermoe
