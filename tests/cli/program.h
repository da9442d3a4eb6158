#pragma once
#include <gtest/gtest.h>

#include "tests/support/child.h"
#include "tests/support/work_folder.h"

namespace hetermoe {

/// Runs the real program as a user would.
/// As messages name it in commands that they propose.
inline std::string hetermoe_path() { return HM_BINARY_DIR "/hetermoe"; }

inline ProgramResult run_hetermoe(const std::vector<std::string>& arguments,
                                  const Environment& variables = {}) {
  return Child(hetermoe_path(), arguments, variables).wait();
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// What a command that has to succeed prints with --json.
inline Json json_of(const std::vector<std::string>& arguments) {
  const ProgramResult result = run_hetermoe(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  return parse_json(result.out, "stdout");
}

/// Six steps of the tiny model, with checkpoints after 2, 4 and 6; what `more` says again counts.
inline std::vector<std::string> train_words(const WorkFolder& folder,
                                            const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"train",
                                    "--model",
                                    "tiny",
                                    "--cluster",
                                    "demo",
                                    "--output",
                                    folder / "run",
                                    "--train.steps",
                                    "6",
                                    "--train.seq_len",
                                    "16",
                                    "--train.sequences",
                                    "4",
                                    "--train.microbatches",
                                    "2",
                                    "--train.validation_sequences",
                                    "0",
                                    "--data.max_bytes",
                                    "200000",
                                    "--checkpoint.every",
                                    "2"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace hetermoe
