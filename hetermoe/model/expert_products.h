#pragma once
#include "hetermoe/base/enum_count.h"
#include "hetermoe/base/fields.h"

namespace hetermoe {

/// How the matrix products of the experts of a layer are done on one device. auto: as a profile of its type
/// found it faster, else by what is known of the device (nn/experts.h).
enum class ExpertProducts {
  kAuto,
  kEach,    ///< one expert after another; on a CPU the threads share them
  kGrouped  ///< those of all experts in one kernel (at::_grouped_mm)
};

template <>
struct EnumNames<ExpertProducts> {
  static const std::vector<std::string>& names() {
    static const std::vector<std::string> all = names_of_all<ExpertProducts>({"auto", "each", "grouped"});
    return all;
  }
};

}  // namespace hetermoe
