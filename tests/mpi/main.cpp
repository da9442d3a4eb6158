#include <gtest/gtest.h>

#include "tests/mpi/job.h"

namespace hetermoe::testing {

const MpiJob* job = nullptr;

}  // namespace hetermoe::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const hetermoe::MpiJob job;
  hetermoe::testing::job = &job;
  const int code = RUN_ALL_TESTS();
  // Another rank may have failed where this one has not.
  for (const std::string& other : job.gather(std::to_string(code))) {
    if (other != "0") return 1;
  }
  return 0;
}
