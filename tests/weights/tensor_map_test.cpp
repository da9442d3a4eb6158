#include "hetermoe/weights/convert.h"
#include "tests/weights/folders.h"

// Layouts: what a parameter is in files of each of them.
namespace hetermoe {
namespace {

/// The experts of all layers fused into gate_up_proj and down_proj; transposed: [E, in, out].
void fuse(FolderCopy& folder, bool transposed) {
  const ModelConfig model = folder.model();
  const bool mixtral = folder.tensors.count("model.layers.0.block_sparse_moe.gate.weight") > 0;  // its names
  const std::string block = mixtral ? "block_sparse_moe" : "mlp";
  const auto take = [&](i64 layer, i64 e, const char* plain, const char* mixtrals) {
    const std::string name =
        fmt::format("model.layers.{}.{}.experts.{}.{}.weight", layer, block, e, mixtral ? mixtrals : plain);
    const at::Tensor tensor = folder.tensors.at(name);
    folder.tensors.erase(name);
    return tensor;
  };
  for (i64 layer = 0; layer < model.num_layers; ++layer) {
    if (!model.is_moe(layer)) continue;
    std::vector<at::Tensor> gate_up, down;
    for (i64 e = 0; e < model.num_experts; ++e) {
      const at::Tensor gate = take(layer, e, "gate_proj", "w1"), up = take(layer, e, "up_proj", "w3");
      gate_up.push_back(at::cat({gate, up}));
      down.push_back(take(layer, e, "down_proj", "w2"));
      if (!transposed) continue;
      gate_up.back() = gate_up.back().t();
      down.back() = down.back().t();
    }
    const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
    folder.tensors[prefix + "gate_up_proj"] = at::stack(gate_up).contiguous();
    folder.tensors[prefix + "down_proj"] = at::stack(down).contiguous();
    if (!mixtral) continue;
    const std::string gate = fmt::format("model.layers.{}.block_sparse_moe.gate.weight", layer);
    folder.tensors[fmt::format("model.layers.{}.mlp.gate.weight", layer)] = folder.tensors.at(gate);
    folder.tensors.erase(gate);
  }
  folder.write();
}

TensorMap map_of(const FolderCopy& folder) {
  const HfFolder files(folder.path());
  return map_tensors(folder.model(), files.heads(), file_facts(files.config()));
}

TEST(Layouts, AreDetectedAndReadToTheSameBits) {
  for (const std::string& family : kParityFamilies) {
    const FolderCopy plain(family);
    EXPECT_EQ(map_of(plain).layout, ExpertLayout::kPerExpert);
    for (const bool transposed : {false, true}) {
      FolderCopy fused(family);
      fuse(fused, transposed);
      const TensorMap map = map_of(fused);
      EXPECT_EQ(map.layout, transposed ? ExpertLayout::kFusedTransposed : ExpertLayout::kFused) << family;
      EXPECT_TRUE(map.complete()) << family << ": " << faults_of(map);
      expect_same_tensors(fused.read_all(), plain.tensors);
    }
  }
}

TEST(Layouts, TensorsThatPredictFurtherTokensAreNotRead) {
  for (const auto& [family, name] :
       std::map<std::string, std::string>{{"ernie4_5_moe", "model.mtp_block.0.input_layernorm.weight"},
                                          {"minimax_m2", "model.layers.2.mtp.norm.weight"},
                                          {"glm4_moe", "model.layers.3.eh_proj.weight"}}) {
    FolderCopy folder(family);
    folder.tensors[name] = at::ones({16});
    folder.write();
    const TensorMap map = map_of(folder);
    EXPECT_EQ(map.ignored, std::vector<std::string>{name}) << family;
    EXPECT_TRUE(map.complete()) << faults_of(map);
  }
  FolderCopy other("qwen2_moe");
  other.tensors["model.mtp_block.0.input_layernorm.weight"] = at::ones({16});
  other.write();
  EXPECT_FALSE(map_of(other).complete());
}

TEST(Layouts, SquareExpertsAreToldByTheOtherTensor) {
  // gate_up [E, 2I, H] is square where 2I = H; down [E, H, I] is not then.
  ModelConfig model = FolderCopy("olmoe").model();
  model.expert_hidden = model.hidden / 2;
  const i64 experts = model.num_experts, hidden = model.hidden, width = model.expert_hidden;
  for (const bool transposed : {false, true}) {
    std::vector<TensorHead> heads;
    for (const ParamInfo& parameter : parameters(model)) {
      if (parameter.expert < 0) heads.push_back({parameter.name, at::kFloat, parameter.shape});
    }
    for (i64 layer = 0; layer < model.num_layers; ++layer) {
      const FusedNames names = fused_names(layer);
      heads.push_back({names.gate_up, at::kFloat, {experts, hidden, hidden}});
      heads.push_back(
          {names.down, at::kFloat,
           transposed ? std::vector<i64>{experts, width, hidden} : std::vector<i64>{experts, hidden, width}});
    }
    const TensorMap map = map_tensors(model, heads);
    EXPECT_TRUE(map.complete()) << faults_of(map);
    EXPECT_EQ(map.layout, transposed ? ExpertLayout::kFusedTransposed : ExpertLayout::kFused);
  }
}

TEST(Layouts, OneTransposedTensorOfTwoIsRefused) {
  FolderCopy folder("olmoe");
  fuse(folder, false);
  at::Tensor& down = folder.tensors.at("model.layers.1.mlp.experts.down_proj");
  down = down.transpose(1, 2).contiguous();
  folder.write();
  EXPECT_TRUE(
      has_part(folder.error(),
               "1 wrong: model.layers.1.mlp.experts.gate_up_proj and down_proj: got shapes [6, 20, 16] and "
               "[6, 10, 16], expected [6, 20, 16] and [6, 16, 10], or both"))
      << folder.error();
}

TEST(Layouts, FewerFusedExpertsThanTheModelHasAreRefused) {
  FolderCopy folder("olmoe");
  fuse(folder, false);
  for (const char* name : {"gate_up_proj", "down_proj"}) {
    at::Tensor& tensor = folder.tensors.at(std::string("model.layers.0.mlp.experts.") + name);
    tensor = tensor.narrow(0, 0, 5).contiguous();
  }
  folder.write();
  EXPECT_TRUE(has_part(folder.error(), "got shapes [5, 20, 16] and [5, 16, 10]")) << folder.error();
}

TEST(Layouts, WhatIsWrongWithInterleavedExpertsIsNamed) {
  const std::string prefix = "model.layers.1.mlp.experts.";
  const auto error_of_folder = [&](const char* family, const auto& change) {
    FolderCopy folder(family);
    change(folder.tensors);
    folder.write();
    return folder.error();
  };
  const std::string lost =
      error_of_folder("gpt_oss", [&](Tensors& all) { all.erase(prefix + "gate_up_proj_bias"); });
  EXPECT_TRUE(has_part(lost, prefix + "gate_up_proj_bias")) << lost;
  const std::string turned = error_of_folder("gpt_oss", [&](Tensors& all) {
    at::Tensor& down = all.at(prefix + "down_proj");
    down = down.transpose(1, 2).contiguous();
  });
  EXPECT_TRUE(has_part(turned, "1 wrong: " + prefix + "down_proj: got shape [6, 16, 8], expected [6, 8, 16]"))
      << turned;
  const std::string scales =
      error_of_folder("gpt_oss_mxfp4", [&](Tensors& all) { all.erase(prefix + "down_proj_scales"); });
  EXPECT_TRUE(has_part(scales, prefix + "down_proj_scales")) << scales;
  const std::string dtype = error_of_folder("gpt_oss_mxfp4", [&](Tensors& all) {
    at::Tensor& blocks = all.at(prefix + "gate_up_proj_blocks");
    blocks = blocks.to(at::kFloat);
  });
  EXPECT_TRUE(has_part(dtype, prefix + "gate_up_proj_blocks: got F32, expected U8")) << dtype;
}

TEST(Fp8, IsReadAsValueTimesFactorOfItsBlock) {
  FolderCopy folder("deepseek_v3");
  Json config = folder.config();
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {4, 3}}};
  folder.set_config(config);
  const std::string name = "model.layers.1.self_attn.o_proj.weight";  // [16, 32]
  const at::Tensor values = at::arange(16 * 32).remainder(13).sub(6).view({16, 32});
  const at::Tensor factors = at::arange(4 * 11).add(1).view({4, 11}).to(at::kFloat) / 8;
  folder.tensors[name] = values.to(at::kFloat).to(at::kFloat8_e4m3fn);
  folder.tensors[name + "_scale_inv"] = factors;
  folder.write();
  const at::Tensor got = folder.read_all().at(name);
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  for (i64 row = 0; row < 16; ++row) {
    for (i64 column = 0; column < 32; ++column) {
      EXPECT_EQ(got[row][column].item<float>(),
                values[row][column].item<float>() * factors[row / 4][column / 3].item<float>());
    }
  }
  folder.tensors[name + "_scale_inv"] = factors.narrow(1, 0, 10).contiguous();
  folder.write();
  EXPECT_TRUE(has_part(folder.error(), name + "_scale_inv: got shape [4, 10], expected [4, 11]"))
      << folder.error();
  folder.tensors.erase(name + "_scale_inv");
  folder.write();
  EXPECT_TRUE(has_part(folder.error(), name + ": is F8_E4M3 without factors")) << folder.error();
}

}  // namespace
}  // namespace hetermoe
