#include <gtest/gtest.h>

#include <sstream>

#include "hetermoe/base/json.h"
#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

/// The lines of docs/schedule.md that are indented as code and begin with `word`.
std::string code_lines(const std::string& word) {
  std::istringstream page(read_text(HM_SOURCE_DIR "/docs/schedule.md"));
  std::string lines;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("    " + word)) lines += line.substr(4) + "\n";
  }
  return lines;
}

TEST(DocumentedExample, IsTheTextFormOfZebraOnTwoDevices) {
  const ModelConfig model = test::make_model({.num_layers = 1});
  const Plan plan = test::make_zebra_plan(model, test::make_cluster({2}), {});
  EXPECT_EQ(code_lines("device "), to_text(build_schedule(plan, model)));
}

}  // namespace
}  // namespace hetermoe
