#include "tests/weights/folders.h"

#include <fstream>

// Whatever is wrong with a folder is refused with the name of what is wrong: never are parameters left at
// random values, or half read.
namespace hetermoe {
namespace {

const std::string kQ = "model.layers.1.self_attn.q_proj.weight";
const std::string kExpert = "model.layers.1.block_sparse_moe.experts.2.w3.weight";

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_TRUE(has_part(text, part)) << part << "\nis not in\n" << text;
}

TEST(DamagedFolder, TheUndamagedOneIsReadToTheBit) {
  for (const std::string& family : all_families()) {
    const FolderCopy folder(family);
    expect_same_tensors(folder.read_all(), folder.tensors);
  }
}

TEST(DamagedFolder, RenamedTensor) {
  FolderCopy folder("mixtral");
  folder.tensors["model.layers.1.self_attn.query.weight"] = folder.tensors.at(kQ);
  folder.tensors.erase(kQ);
  folder.write();
  expect_parts(folder.error(), {"1 missing: " + kQ, "1 left over: model.layers.1.self_attn.query.weight"});
}

TEST(DamagedFolder, MissingTensor) {
  FolderCopy folder("mixtral");
  folder.tensors.erase(kExpert);
  folder.write();
  expect_parts(folder.error(),
               {"does not hold the weights of", "experts: per_expert", "1 missing: " + kExpert});
}

TEST(DamagedFolder, ManyMissingTensorsAreTenNames) {
  FolderCopy folder("mixtral");
  for (int e = 0; e < 4; ++e) {
    for (const char* part : {"w1", "w2", "w3"})
      folder.tensors.erase(fmt::format("model.layers.0.block_sparse_moe.experts.{}.{}.weight", e, part));
  }
  folder.write();
  const std::string error = folder.error();
  expect_parts(error, {"12 missing: ", ", ..."});
  std::size_t names = 0;
  for (std::size_t at = error.find("model.layers"); at != std::string::npos;
       at = error.find("model.layers", at + 1))
    ++names;
  EXPECT_EQ(names, 10u);
}

TEST(DamagedFolder, ExtraTensor) {
  FolderCopy folder("mixtral");
  folder.tensors["model.layers.1.self_attn.q_proj.bias"] = at::zeros({16});
  folder.write();
  expect_parts(folder.error(), {"1 left over: model.layers.1.self_attn.q_proj.bias"});
}

TEST(DamagedFolder, ExpertsOfFewerRanksThanThereWere) {
  // Only the experts of one device were saved (KempnerForge#202).
  FolderCopy folder("olmoe");
  std::erase_if(folder.tensors, [](const auto& item) {
    return has_part(item.first, ".experts.3.") || has_part(item.first, ".experts.4.") ||
           has_part(item.first, ".experts.5.");
  });
  folder.write();
  expect_parts(folder.error(), {"18 missing: model.layers.0.mlp.experts.3.gate_proj.weight"});
}

TEST(DamagedFolder, TransposedTensor) {
  FolderCopy folder("mixtral");
  folder.tensors[kExpert] = folder.tensors.at(kExpert).t().contiguous();
  folder.write();
  expect_parts(folder.error(), {"1 wrong: " + kExpert + ": got shape [16, 12], expected [12, 16]"});
}

TEST(DamagedFolder, CutFile) {
  const FolderCopy folder("mixtral");
  const auto size = std::filesystem::file_size(folder.file());
  std::filesystem::resize_file(folder.file(), size - 100);
  expect_parts(folder.error(), {"model.safetensors", "Is the file cut?"});
  std::filesystem::resize_file(folder.file(), 1000);
  expect_parts(folder.error(), {"no safetensors file: got a header of"});
}

TEST(DamagedFolder, FileWithMoreThanItsTensors) {
  const FolderCopy folder("mixtral");
  std::ofstream(folder.file(), std::ios::app) << "12345678";
  expect_parts(folder.error(), {"what is the rest?"});
}

TEST(DamagedFolder, WrongDtype) {
  FolderCopy folder("mixtral");
  folder.tensors[kQ] = folder.tensors.at(kQ).to(at::kInt);
  folder.write();
  expect_parts(folder.error(), {"1 wrong: " + kQ + ": got I32, expected F32, BF16, F16 or F64"});
}

TEST(DamagedFolder, NotANumber) {
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    FolderCopy folder("mixtral");
    folder.tensors[kQ][3][5] = bad;
    folder.write();
    expect_parts(folder.error(), {kQ + " has 1 values that are NaN or infinite"});
  }
}

TEST(DamagedFolder, ShardThatIsNotThere) {
  const FolderCopy folder("mixtral");
  folder.write_shards("model.layers.1");
  EXPECT_EQ(folder.error(), "no error");
  std::filesystem::remove(folder.path() / FolderCopy::shard_name(2));
  expect_parts(folder.error(), {FolderCopy::shard_name(2) + "] is missing"});
}

TEST(DamagedFolder, ShardThatTheIndexDoesNotName) {
  const FolderCopy folder("mixtral");
  folder.write_shards("model.layers.1");
  Json map = folder.index(), part = Json::object();
  for (const auto& [name, file] : map.items()) {
    if (file == FolderCopy::shard_name(1)) part[name] = file;
  }
  folder.write_index(part);
  expect_parts(folder.error(), {FolderCopy::shard_name(2) + " is not part of the model"});
}

TEST(DamagedFolder, TensorThatTheIndexDoesNotName) {
  const FolderCopy folder("mixtral");
  folder.write_shards("model.layers.1");
  Json map = folder.index();
  map.erase(kQ);
  folder.write_index(map);
  expect_parts(folder.error(), {"index.json] does not name " + kQ});
}

TEST(DamagedFolder, TensorThatIsNotInItsFile) {
  const FolderCopy folder("mixtral");
  folder.write_shards("model.layers.1");
  Json map = folder.index();
  map[kQ] = FolderCopy::shard_name(1);
  folder.write_index(map);
  expect_parts(folder.error(), {FolderCopy::shard_name(1) + "] has no tensor " + kQ});
}

TEST(DamagedFolder, IndexThatLeadsOutOfTheFolder) {
  const FolderCopy folder("mixtral");
  folder.write_shards("model.layers.1");
  Json map = folder.index();
  map[kQ] = "../model.safetensors";
  folder.write_index(map);
  expect_parts(folder.error(), {kQ + ": got \"../model.safetensors\", expected the name of a file"});
}

TEST(DamagedFolder, TensorInTwoFiles) {
  const FolderCopy folder("mixtral");
  folder.write_shards("model.layers.1");
  Tensors first = tensors_of(folder.path() / FolderCopy::shard_name(1));
  first[kQ] = folder.tensors.at(kQ);
  write_file(folder.path() / FolderCopy::shard_name(1), first);
  expect_parts(folder.error(), {kQ + " is also in " + FolderCopy::shard_name(1)});
}

TEST(DamagedFolder, NameThatStandsTwiceInAFile) {
  const FolderCopy folder("mixtral");
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  write_text(folder.file(), length + header + "1234");
  expect_parts(folder.error(), {"\"a\" is given twice"});
}

TEST(DamagedFolder, NameThatStandsTwiceInTheIndex) {
  const FolderCopy folder("mixtral");
  folder.write_shards("model.layers.1");
  write_text(
      folder.path() / "model.safetensors.index.json",
      R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "a": "model-00002-of-00002.safetensors"}})");
  expect_parts(folder.error(), {"\"a\" is given twice"});
}

TEST(DamagedFolder, OneTensorUnderBothLayouts) {
  FolderCopy folder("olmoe");
  folder.tensors["model.layers.0.mlp.experts.down_proj"] = at::zeros({6, 16, 10});
  folder.write();
  expect_parts(folder.error(), {"1 left over: model.layers.0.mlp.experts.down_proj"});
}

TEST(DamagedFolder, BothAFileAndAnIndex) {
  const FolderCopy folder("mixtral");
  folder.write_index(Json::object());
  expect_parts(folder.error(), {"holds model.safetensors and model.safetensors.index.json"});
}

TEST(DamagedFolder, OtherFormats) {
  const FolderCopy folder("mixtral");
  std::filesystem::rename(folder.file(), folder.path() / "pytorch_model.bin");
  expect_parts(folder.error(), {"holds neither model.safetensors nor model.safetensors.index.json",
                                "save them as safetensors first"});
}

TEST(DamagedFolder, TiedHeadThatIsNotTheEmbedding) {
  FolderCopy folder("qwen3_moe");
  folder.tensors["lm_head.weight"] = folder.tensors.at("model.embed_tokens.weight").clone();
  folder.write();
  EXPECT_EQ(folder.error(), "no error");
  folder.tensors["lm_head.weight"][2][3] += 1;
  folder.write();
  expect_parts(folder.error(), {"lm_head.weight is not model.embed_tokens.weight"});
}

TEST(DamagedFolder, PredictionLayersAreIgnoredWhereTheConfigNamesThem) {
  FolderCopy folder("deepseek_v3");
  folder.tensors["model.layers.3.eh_proj.weight"] = at::zeros({4});
  folder.write();
  EXPECT_EQ(folder.error(), "no error");
  Json config = folder.config();
  config["num_nextn_predict_layers"] = 0;
  folder.set_config(config);
  expect_parts(folder.error(), {"1 left over: model.layers.3.eh_proj.weight"});
}

}  // namespace
}  // namespace hetermoe
