#include "hetermoe/weights/convert.h"

#include <fstream>

#include "tests/weights/folders.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

TEST(Convert, ThereAndBackThroughEveryLayoutGivesTheSameFile) {
  for (const std::string& family : kParityFamilies) {
    const WorkFolder out;
    const fs::path source = parity_folder(family), fused = out / "fused", back = out / "back";
    const ConvertOptions to_fused{.dtype = {}, .layout = ExpertLayout::kFused};
    const Converted done = convert_folder(source, fused, to_fused);
    EXPECT_EQ(done.from, ExpertLayout::kPerExpert);
    EXPECT_EQ(HfWeights(fused, done.model).map().layout, ExpertLayout::kFused);
    verify_converted(source, fused, to_fused);
    convert_folder(fused, back, {});
    expect_same_tensors(tensors_of(back / "model.safetensors"), tensors_of(source / "model.safetensors"));
  }
}

TEST(Convert, InterleavedExpertsStayAsTransformersWantsThemUnlessAskedOtherwise) {
  for (const std::string family : {"gpt_oss", "gpt_oss_other"}) {
    const WorkFolder out;
    const fs::path source = parity_folder(family), apart = out / "apart", back = out / "back";
    const ConvertOptions per_expert{.dtype = {}, .layout = ExpertLayout::kPerExpert};
    const Converted done = convert_folder(source, apart, per_expert);
    EXPECT_EQ(done.from, ExpertLayout::kInterleaved);
    EXPECT_EQ(HfWeights(apart, done.model).map().layout, ExpertLayout::kPerExpert);
    verify_converted(source, apart, per_expert);
    EXPECT_EQ(convert_folder(apart, back, {}).to, ExpertLayout::kInterleaved);
    expect_same_tensors(tensors_of(back / "model.safetensors"), tensors_of(source / "model.safetensors"));
    const std::string error =
        error_of<ConfigError>([&] { convert_folder(source, out / "no", {.layout = ExpertLayout::kFused}); });
    EXPECT_TRUE(has_part(error, "[--layout] got fused, which has no place for biases")) << error;
  }
}

TEST(Convert, ExpertsOfFourBitsBecomeThoseOfSixteen) {
  const WorkFolder out;
  const fs::path source = parity_folder("gpt_oss_mxfp4");
  EXPECT_EQ(convert_folder(source, out / "bf16", {}).from, ExpertLayout::kMxfp4);
  verify_converted(source, out / "bf16", {});
  const Tensors before = read_all(source), after = read_all(out / "bf16");
  const std::string name = "model.layers.0.mlp.experts.1.up_proj.weight";
  EXPECT_EQ(after.at(name).scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(after.at(name).to(at::kFloat), before.at(name)));  // no bit is lost
  EXPECT_FALSE(at::equal(before.at(name)[0], before.at(name)[1]));
  const Json config = read_json(out / "bf16/config.json");
  EXPECT_FALSE(config.contains("quantization_config"));
}

TEST(Convert, WithoutExpertsThereIsOneLayout) {
  for (const std::string& family : kDenseFamilies) {
    const WorkFolder out;
    const fs::path source = parity_folder(family);
    for (const ExpertLayout layout : {ExpertLayout::kPerExpert, ExpertLayout::kFused}) {
      const fs::path to = out / std::to_string(static_cast<int>(layout));
      const ConvertOptions options{.dtype = {}, .layout = layout};
      const Converted done = convert_folder(source, to, options);
      EXPECT_EQ(done.from, ExpertLayout::kNone);
      verify_converted(source, to, options);
      expect_same_tensors(tensors_of(to / "model.safetensors"), tensors_of(source / "model.safetensors"));
    }
  }
}

TEST(Convert, DtypesAreRoundedOnceAndBuffersKeepTheirs) {
  const WorkFolder out;
  const fs::path source = parity_folder("deepseek_v3");
  const ConvertOptions bf16{.dtype = at::kBFloat16};
  convert_folder(source, out / "bf16", bf16);
  verify_converted(source, out / "bf16", bf16);
  const Tensors before = read_all(source), after = read_all(out / "bf16");
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  for (const auto& [name, tensor] : after) {
    const bool is_bias = has_part(name, "e_score_correction_bias");
    EXPECT_EQ(tensor.scalar_type(), is_bias ? at::kFloat : at::kBFloat16) << name;
    EXPECT_TRUE(at::equal(tensor, before.at(name).to(tensor.scalar_type()))) << name;
  }
  EXPECT_EQ(read_json(out / "bf16/config.json").at("dtype"), "bfloat16");
}

TEST(Convert, FilesAreNoLargerThanAskedAndTheirIndexIsRight) {
  const WorkFolder out;
  const fs::path source = parity_folder("olmoe");
  const Converted done = convert_folder(source, out / "small", {.most_bytes = 10000});
  EXPECT_GT(done.num_files, 3);
  const HfFolder folder(out / "small");  // compares index and files
  EXPECT_EQ(static_cast<i64>(folder.files().size()), done.num_files);
  for (const fs::path& file : folder.files()) {
    i64 bytes = 0;
    for (const TensorHead& head : SafetensorsReader(file).heads()) bytes += head.bytes();
    EXPECT_LE(bytes, 10000) << file;
  }
  EXPECT_EQ(read_json(out / "small/model.safetensors.index.json").at("metadata").at("total_size"),
            done.bytes);
  expect_same_tensors(read_all(out / "small"), read_all(source));
}

TEST(Convert, UnknownKeysOfTheConfigAndTokenizerFilesComeAlong) {
  const WorkFolder out;
  FolderCopy source("mixtral");
  Json config = source.config();
  config["a_key_of_tomorrow"] = {{"x", 1}};
  source.set_config(config);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "notes.txt"})
    write_text(source.path() / name, std::string("{") + name + "}");
  convert_folder(source.path(), out / "copy", {});
  EXPECT_EQ(read_json(out / "copy/config.json"), config);
  EXPECT_EQ(read_text(out / "copy/tokenizer.json"), "{tokenizer.json}");
  EXPECT_TRUE(fs::exists(out / "copy/generation_config.json"));
  EXPECT_FALSE(fs::exists(out / "copy/notes.txt"));
}

TEST(Convert, TooLargeForFp16IsRefusedAndNothingIsLeft) {
  const WorkFolder out;
  FolderCopy source("mixtral");
  source.tensors["lm_head.weight"][0][0] = 70000.0;
  source.write();
  const std::string error =
      error_of<IoError>([&] { convert_folder(source.path(), out / "fp16", {.dtype = at::kHalf}); });
  EXPECT_TRUE(has_part(error, "lm_head.weight in fp16 has 1 values that are NaN or infinite")) << error;
  EXPECT_TRUE(out.contents().empty());
}

TEST(Convert, VerifyFindsOneChangedBit) {
  const WorkFolder out;
  const fs::path source = parity_folder("mixtral");
  convert_folder(source, out / "copy", {});
  Tensors tensors = tensors_of(out / "copy/model.safetensors");
  const std::string name = "model.layers.1.block_sparse_moe.experts.3.w2.weight";
  tensors[name].view(at::kInt)[1][2].bitwise_xor_(1);
  write_file(out / "copy/model.safetensors", tensors);
  const std::string error = error_of<InputError>([&] { verify_converted(source, out / "copy", {}); });
  EXPECT_TRUE(has_part(error, "1 of ") && has_part(error, name)) << error;
}

TEST(Convert, AFolderWithOtherFilesIsNeverReplaced) {
  const WorkFolder out;
  const fs::path source = parity_folder("mixtral");
  const auto error = [&](const std::string& to) {
    return error_of<ConfigError>([&] { convert_folder(source, out / to, {}); });
  };
  convert_folder(source, out / "copy", {});
  EXPECT_EQ(error("copy"), "no error");  // its own result is replaced
  write_text(out / "copy/thesis.tex", "x");
  EXPECT_TRUE(has_part(error("copy"), "holds thesis.tex, which hetermoe has not written")) << error("copy");
  EXPECT_EQ(read_text(out / "copy/thesis.tex"), "x");
  out.file("mine/a", "x");
  EXPECT_TRUE(has_part(error("mine"), "holds other files")) << error("mine");
  EXPECT_TRUE(has_part(error_of<ConfigError>([&] { convert_folder(source, source, {}); }),
                       "is the folder that the weights are read from"));
}

}  // namespace
}  // namespace hetermoe
