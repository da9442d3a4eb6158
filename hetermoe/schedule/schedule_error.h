#pragma once
#include "hetermoe/base/error.h"

namespace hetermoe {

/// A plan's order in which an op would read what no earlier one writes.
class ScheduleError : public ConfigError {
  using ConfigError::ConfigError;
};

}  // namespace hetermoe
