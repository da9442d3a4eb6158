#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "hetermoe/nn/reference.h"
#include "tests/cli/program.h"
#include "tests/weights/folders.h"

// Hugging Face folders on the command line.
namespace hetermoe {
namespace {

namespace fs = std::filesystem;

at::Tensor logits_of(const fs::path& folder) {
  const ModelConfig model = model_of(HfFolder(folder));
  const HfWeights weights(folder, model);
  TensorsByName values;
  // Copies: products of matrices round by where they lie in memory.
  for (const ParamInfo& parameter : parameters(model))
    values[parameter.name] = weights.read(parameter.name).clone();
  return reference_logits(model, values, at::arange(14).mul(11).remainder(model.vocab).view({2, 7}));
}

/// A text of the 40 tokens that the small folders know: an order that can be learned.
std::string text_file(const WorkFolder& folder) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += i % 9 == 8 ? '\n' : static_cast<char>(' ' + i % 7);
  return folder.file("text.txt", text);
}

std::vector<std::string> words(const WorkFolder& folder, const std::string& family,
                               const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"train",
                                  "--train.init_from",
                                  parity_folder(family),
                                  "--cluster",
                                  "demo3",
                                  "--output",
                                  folder / "run",
                                  "--train.steps",
                                  "50",
                                  "--train.seq_len",
                                  "8",
                                  "--train.sequences",
                                  "4",
                                  "--train.microbatches",
                                  "2",
                                  "--train.learning_rate",
                                  "0.01",
                                  "--train.validation_sequences",
                                  "0",
                                  "--data.paths",
                                  text_file(folder),
                                  "--data.tokenizer",
                                  "bytes",
                                  "--clock.threads",
                                  "1"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(HfFolders, AMixedClusterTrainsFromOneAndLeavesOne) {
  for (const std::string family : {"mixtral", "deepseek_v3"}) {
    const WorkFolder folder;
    const ProgramResult result =
        run_hetermoe(words(folder, family, {"--train.save_hf", folder / "hf", "--checkpoint.every", "50"}));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(contains(result.out, "starts from ")) << result.out;
    EXPECT_TRUE(contains(result.out, "parameter tensors after 50 steps to " + (folder / "hf"))) << result.out;
    // What was saved is what was trained, to the bit, and no longer what it started from.
    const at::Tensor saved = logits_of(folder / "hf");
    EXPECT_TRUE(at::equal(saved, logits_of(folder / "run/checkpoints/step-00000050")));
    EXPECT_FALSE(at::allclose(saved, logits_of(parity_folder(family)), 0.1, 0.1));
    std::vector<double> losses;
    std::istringstream metrics(read_text(folder / "run/metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);) losses.push_back(Json::parse(line).at("loss"));
    ASSERT_EQ(losses.size(), 50u);
    EXPECT_LT(losses.back(), 0.5 * losses.front());
    const Json seen = json_of({"inspect", folder / "hf", "--json"});
    EXPECT_TRUE(seen.at("weights").at("complete").get<bool>());
    EXPECT_EQ(seen.at("model_type"), family);
  }
}

TEST(HfFolders, ARunThatGoesOnKeepsTheLearningRateOfItsCheckpoint) {
  const WorkFolder folder;
  // `written`: by the job; empty = nothing.
  const auto rate_of = [&](const std::string& steps, const std::string& written) {
    std::vector<std::string> train =
        words(folder, "mixtral", {"--train.steps", steps, "--checkpoint.every", "1"});
    const auto key = std::find(train.begin(), train.end(), "--train.learning_rate");
    if (written.empty())
      train.erase(key, key + 2);
    else
      *(key + 1) = written;
    const ProgramResult result = run_hetermoe(train);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(contains(result.out, "train.learning_rate is 5e-05, the default"), steps == "4") << result.out;
    return read_json(folder / "run/job.json").at("train").at("learning_rate").get<double>();
  };
  EXPECT_EQ(rate_of("1", "0.002"), 0.002);
  EXPECT_EQ(rate_of("2", ""), 0.002);
  EXPECT_EQ(rate_of("3", "0.001"), 0.001);
  fs::remove_all(folder / "run");
  EXPECT_EQ(rate_of("4", ""), 5e-5);
}

TEST(HfFolders, VerifyChecksAPlanWithTheWeightsOfTheFolder) {
  const WorkFolder folder;
  std::vector<std::string> verify = words(folder, "qwen3_moe", {"--strategy", "zebra"});
  verify[0] = "verify";
  const ProgramResult result = run_hetermoe(verify);
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  EXPECT_TRUE(contains(result.out, "PASSED")) << result.out;
}

TEST(HfFolders, AWrongFolderEndsTheProgramWithCode2BeforeAnythingIsWritten) {
  const WorkFolder folder;
  FolderCopy copy("mixtral");
  copy.tensors.erase("model.norm.weight");
  copy.write();
  std::vector<std::string> train = words(folder, "mixtral", {"--train.save_hf", folder / "hf"});
  train[2] = copy.path();
  const ProgramResult result = run_hetermoe(train);
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "1 missing: model.norm.weight")) << result.err;
  EXPECT_FALSE(fs::exists(folder / "hf"));
}

TEST(HfFolders, InspectSaysWhatIsMissingAndLeftOver) {
  FolderCopy copy("olmoe");
  copy.tensors["x.weight"] = copy.tensors.at("model.norm.weight");
  copy.tensors.erase("model.norm.weight");
  copy.write();
  const ProgramResult text = run_hetermoe({"inspect", copy.path()});
  EXPECT_EQ(text.code, 1);
  EXPECT_TRUE(contains(text.out, "1 missing: model.norm.weight; 1 left over: x.weight")) << text.out;
  const ProgramResult json = run_hetermoe({"inspect", copy.path(), "--json"});
  EXPECT_EQ(json.code, 1);
  const Json weights = Json::parse(json.out).at("weights");
  EXPECT_EQ(weights.at("missing"), Json::array({"model.norm.weight"}));
  EXPECT_EQ(weights.at("unexpected"), Json::array({"x.weight"}));
  EXPECT_EQ(weights.at("layout"), "per_expert");
  EXPECT_EQ(weights.at("bytes_by_dtype").size(), 1u);
}

TEST(HfFolders, ConvertVerifiesWhatItWrote) {
  const WorkFolder folder;
  const Json json = json_of({"convert", parity_folder("qwen3_moe"), folder / "bf16", "--dtype", "bf16",
                             "--layout", "fused", "--verify", "--json"});
  EXPECT_TRUE(json.at("verified").get<bool>());
  EXPECT_EQ(json.at("layout"), "fused");
  EXPECT_EQ(json_of({"inspect", folder / "bf16", "--json"}).at("weights").at("layout"), "fused");
  const ProgramResult again = run_hetermoe({"convert", folder / "bf16", "-o", folder / "bf16"});
  EXPECT_EQ(again.code, 2);
  EXPECT_TRUE(contains(again.err, "is the folder that the weights are read from")) << again.err;
  EXPECT_EQ(run_hetermoe({"convert", folder / "bf16", folder / "x", "--layout", "none"}).code, 2);
}

}  // namespace
}  // namespace hetermoe
