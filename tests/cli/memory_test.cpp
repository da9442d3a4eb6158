#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/cli/program.h"
#include "tests/support/case_count.h"

// How much memory the program holds at once, as the kernel counts it.
namespace hetermoe {
namespace {

/// The high-water mark of a program that ends with code 0, read from /proc until it does. In bytes.
Bytes peak_of(const std::vector<std::string>& words) {
  Child child(hetermoe_path(), words, {{"OMP_NUM_THREADS", "1"}});
  const std::string status = fmt::format("/proc/{}/status", child.id());
  Bytes peak = 0;
  for (bool runs = true; runs;) {
    std::ifstream in(status);
    runs = false;  // one that has ended has no such line
    for (std::string line; std::getline(in, line);) {
      if (!line.starts_with("VmHWM:")) continue;
      peak = std::stod(line.substr(6)) * 1024;
      runs = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const ProgramResult result = child.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  return peak;
}

/// Keys and values grow with the prompt; one forward pass over it would grow with its square.
TEST(Memory, OfGenerateGrowsWithTheLengthOfThePromptAlone) {
  if (!testing::every_case()) GTEST_SKIP() << "reads 64k tokens for a minute: ./dev check-all";
  const WorkFolder folder;
  Json config = Json::parse(read_text(HM_SOURCE_DIR "/configs/models/tiny-qwen3.json"));
  config["max_position_embeddings"] = 1 << 17, config["num_hidden_layers"] = 1;
  const std::string model = folder.file("model/config.json", config.dump());
  ASSERT_EQ(run_hetermoe(train_words(folder, {"--model", model, "--train.steps", "1", "--train.save_hf",
                                              folder / "weights"}))
                .code,
            0);
  const auto peak = [&](std::size_t tokens) {
    return peak_of({"generate", folder / "weights", "--tokenizer", "bytes", "--tokens", "2", "--prompt",
                    std::string(tokens, 'x')});
  };
  const Bytes of_4k = peak(1 << 12), of_16k = peak(1 << 14), of_64k = peak(1 << 16);
  RecordProperty("MiB_of_64k_tokens", static_cast<int>(of_64k / (1 << 20)));
  // Four times as much where it grows with the length, sixteen times with the square.
  EXPECT_LT(of_64k - of_16k, 6 * (of_16k - of_4k));
}

/// A checkpoint that is written beside the training holds one copy of what it writes.
TEST(Memory, OfCheckpointsBesideTheTrainingIsOneCopy) {
  if (!testing::every_case()) GTEST_SKIP() << "trains a larger model: ./dev check-all";
  const auto peak = [](const char* every, const char* async) {
    const WorkFolder folder;
    return peak_of(train_words(folder, {"--model", "demo", "--train.steps", "12", "--checkpoint.every", every,
                                        "--checkpoint.async", async}));
  };
  const Bytes without = peak("0", "false"), blocking = peak("1", "false"), beside = peak("1", "true");
  const double parameters = 3.4e6;
  const Bytes copy = 12 * parameters;  // fp32 master and two moments
  RecordProperty("MiB_without", static_cast<int>(without / (1 << 20)));
  RecordProperty("MiB_blocking", static_cast<int>(blocking / (1 << 20)));
  RecordProperty("MiB_beside", static_cast<int>(beside / (1 << 20)));
  EXPECT_LT(blocking, without + 0.5 * copy);
  EXPECT_LT(beside, without + 1.5 * copy);
}

/// Clusters of sequences are made step by step: of a trace that is longer nothing more stays but what each
/// sequence used.
TEST(Memory, OfClusteringIsAPartOfTheTrace) {
  if (!testing::every_case()) GTEST_SKIP() << "makes a trace of 50 MB: ./dev check-all";
  const WorkFolder folder;
  const auto trace = [&](const char* steps) {
    const std::string path = folder / fmt::format("{}.routes", steps);
    EXPECT_EQ(run_hetermoe({"routing", "make", "--model", "olmoe-1b-7b", "--seq", "1024", "--sequences", "8",
                            "--steps", steps, "-o", path})
                  .code,
              0);
    return path;
  };
  const std::string shorter = trace("4"), longer = trace("24");
  const auto peak = [](const std::string& path) { return peak_of({"routing", "cluster", path}); };
  const auto size = [](const std::string& path) { return static_cast<Bytes>(fs::file_size(path)); };
  const Bytes more = size(longer) - size(shorter), grown = peak(longer) - peak(shorter);
  RecordProperty("percent_of_the_trace", static_cast<int>(100 * grown / more));
  EXPECT_LT(grown, 0.25 * more);
}

}  // namespace
}  // namespace hetermoe
