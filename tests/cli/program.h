#pragma once
#include "tests/support/child.h"

namespace hetermoe {

/// Runs the real program as a user would.
inline ProgramResult run_hetermoe(const std::vector<std::string>& arguments,
                                  const Environment& variables = {}) {
  return Child(HM_BINARY_DIR "/hetermoe", arguments, variables).wait();
}

}  // namespace hetermoe
