#include <gtest/gtest.h>

#include "tests/cli/program.h"

namespace hetermoe {
namespace {

ProgramResult launch(const std::vector<std::string>& options, const std::string& script) {
  std::vector<std::string> words = {"launch", "--pause", "0", "--json"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "sh", "-c", script});
  return run_hetermoe(words);
}

TEST(Launch, StartsAgainUntilTheCommandSucceeds) {
  const WorkFolder folder;
  // Fails twice: each try leaves one more file.
  const std::string script =
      "for n in 1 2; do test -e " + folder / "$n" + " || { touch " + folder / "$n" + "; kill -9 $$; }; done";
  const ProgramResult result = launch({"--restarts", "3"}, script);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(parse_json(result.out, "output")["restarts"], 2);
  EXPECT_NE(result.err.find("failed with code 137: restart 1 of 3"), std::string::npos) << result.err;
}

TEST(Launch, GivesUpWithTheCodeOfTheCommand) {
  const ProgramResult result = launch({"--restarts", "1"}, "exit 7");
  EXPECT_EQ(result.code, 7);
  EXPECT_EQ(parse_json(result.out, "output")["restarts"], 1);
  EXPECT_NE(result.err.find("1 restarts are used up"), std::string::npos) << result.err;
}

TEST(Launch, WrongInputIsNotTriedAgain) {
  const ProgramResult result = launch({}, "exit 2");
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(parse_json(result.out, "output")["restarts"], 0);
}

TEST(Launch, PassesTheCommandOnAsItIs) {
  const ProgramResult result = run_hetermoe(
      {"launch", "--", "sh", "-c", "test \"$1\" = --x && test \"$2\" = false", "sh", "--x", "false"});
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST(Launch, NeedsACommand) {
  const ProgramResult result = run_hetermoe({"launch"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("[launch] no command"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace hetermoe
