#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "hetermoe/schedule/schedule.h"

// Faults in schedules, which validate() must find. No torch.
namespace hetermoe::testing {

struct Planted {
  const char* name;
  std::function<bool(Schedule&, OpId)> plant;  ///< false: this op is not the place
  const char* expected;
};

/// Takes away the first dependency of an op; false where it has none.
inline bool drop_dependency(Schedule& s, OpId op) {
  const auto begin = s.dep_begin[static_cast<std::size_t>(op)];
  if (s.dep_begin[static_cast<std::size_t>(op) + 1] == begin) return false;
  s.deps.erase(s.deps.begin() + begin);
  for (std::size_t i = static_cast<std::size_t>(op) + 1; i < s.dep_begin.size(); ++i) --s.dep_begin[i];
  return true;
}

/// Plants the fault at the first op that has it; validate() says what is expected.
inline void expect_found(const Planted& fault, const Schedule& sound, const Plan& plan,
                         const ModelConfig& model) {
  Schedule planted = sound;
  OpId op = 0;
  while (op < planted.num_ops() && !fault.plant(planted, op)) ++op;
  ASSERT_LT(op, planted.num_ops()) << fault.name;
  bool found = false;
  for (const std::string& told : validate(planted, plan, model, {}))
    found = found || told.find(fault.expected) != std::string::npos;
  EXPECT_TRUE(found) << fault.name;
}

}  // namespace hetermoe::testing
