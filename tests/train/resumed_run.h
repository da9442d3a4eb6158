#pragma once
#include "tests/train/tiny_run.h"

namespace hetermoe {

/// Six steps at once, and four with two more in a second run, end with equal bits. Returns the former.
inline TinyRun::End expect_resumed_to_the_bit(const Settings& settings) {
  const WorkFolder once_folder, twice_folder;
  TinyRun::End expected = TinyRun(once_folder.path(), settings).run();
  TinyRun twice(twice_folder.path(), settings);
  twice.job.train.steps = 4;
  twice.run();
  twice.job.train.steps = 6;
  const TinyRun::End resumed = twice.run();
  EXPECT_EQ(resumed.outcome.first_step, 4);
  expect_equal(resumed.values, expected.values);
  return expected;
}

}  // namespace hetermoe
