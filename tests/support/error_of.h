#pragma once
#include <string>

#include "hetermoe/base/error.h"

namespace hetermoe {

/// The words of the error of this type with which `run` ends, "no error" when it returns. Other errors go
/// through.
template <class E = Error, class F>
std::string error_of(F&& run) {
  try {
    run();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace hetermoe
