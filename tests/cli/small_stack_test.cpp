#include <gtest/gtest.h>

#include "tests/cli/program.h"

// What `ulimit -s` leaves the program.
namespace hetermoe {
namespace {

/// The program below a shell that sets the limit, soft and hard.
ProgramResult run_with_stack(const std::string& kib, std::vector<std::string> words) {
  words.insert(words.begin(),
               {"-c", "ulimit -s \"$1\" && shift && exec \"$0\" \"$@\"", HM_BINARY_DIR "/hetermoe", kib});
  return Child("/bin/sh", words).wait();
}

TEST(SmallStack, CommandsDoTheirWork) {
  const WorkFolder folder;
  std::vector<std::vector<std::string>> commands = {
      {"inspect", "tiny"},
      {"plan", "--model", "tiny", "--cluster", "demo"},
      {"data", "--data.paths", folder.file("x.txt", std::string(2000, 'x')), "--train.seq_len", "16"},
      train_words(folder, {"--train.steps", "2"})};
  for (const std::vector<std::string>& words : commands) {
    const ProgramResult result = run_with_stack("64", words);
    EXPECT_EQ(result.code, 0) << words[0] << ": " << result.err;
  }
}

}  // namespace
}  // namespace hetermoe
