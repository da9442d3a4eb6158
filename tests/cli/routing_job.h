#pragma once
#include "tests/cli/program.h"

// A made trace, and a job that fits it.
namespace hetermoe {

/// A trace of two steps of the tiny model.
inline std::string made_trace(const WorkFolder& folder, const std::vector<std::string>& more = {}) {
  const std::string path = folder / "made.routes";
  std::vector<std::string> words = {"routing",     "make", "--model",        "tiny", "--seq",   "16",
                                    "--sequences", "4",    "--microbatches", "2",    "--steps", "2",
                                    "-o",          path};
  words.insert(words.end(), more.begin(), more.end());
  const ProgramResult made = run_hetermoe(words);
  EXPECT_EQ(made.code, 0) << made.err;
  return path;
}

inline const std::vector<std::string> kJob = {"--model",
                                              "tiny",
                                              "--cluster",
                                              "demo",
                                              "--train.seq_len",
                                              "16",
                                              "--train.sequences",
                                              "4",
                                              "--train.microbatches",
                                              "2"};

inline ProgramResult run_with_job(std::vector<std::string> words, const std::vector<std::string>& more = {}) {
  words.insert(words.end(), kJob.begin(), kJob.end());
  words.insert(words.end(), more.begin(), more.end());
  return run_hetermoe(words);
}

}  // namespace hetermoe
