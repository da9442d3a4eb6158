#include "hetermoe/nn/reference.h"
#include "tests/weights/folders.h"

// What transformers computed with a folder (tests/parity/make_models.py) is what the reference computes with
// it.
namespace hetermoe {
namespace {

/// max|a - b| / max(max|b|, floor).
double relative_error(const at::Tensor& a, const at::Tensor& b, double floor) {
  return (a - b).abs().max().item<double>() / std::max(b.abs().max().item<double>(), floor);
}

struct Expected {
  Tensors all;
  explicit Expected(const std::string& family)
      : all(tensors_of(parity_folder(family) / "expected.safetensors")) {}
  at::Tensor tokens() const { return all.at("tokens"); }
  /// The next token; the last has none.
  at::Tensor targets() const {
    at::Tensor out = tokens().roll(-1, 1).clone();
    out.select(1, out.size(1) - 1).fill_(-100);
    return out;
  }
  double number(const char* name) const { return all.at(name).item<double>(); }
};

Tensors weights_of(const std::string& family, at::ScalarType dtype) {
  Tensors out = FolderCopy(family).read_all();
  for (auto& [name, tensor] : out) tensor = tensor.to(dtype);
  return out;
}

class Parity : public ::testing::TestWithParam<std::pair<at::ScalarType, double>> {
 protected:
  void check(const std::string& family) const {
    const auto [dtype, tolerance] = GetParam();
    const ModelConfig model = load_model(parity_folder(family).string());
    const Expected expected(family);
    const Tensors weights = weights_of(family, dtype);
    const at::Tensor logits = reference_logits(model, weights, expected.tokens());
    EXPECT_EQ(logits.scalar_type(), dtype);
    EXPECT_LE(relative_error(logits, expected.all.at("logits"), 0), tolerance) << family;
    const ReferenceResult got = reference_step(model, weights, expected.tokens(), expected.targets());
    const double aux = expected.number("aux_loss");
    EXPECT_NEAR(got.loss - got.aux_loss, expected.number("loss"), tolerance * expected.number("loss"))
        << family;
    EXPECT_NEAR(got.aux_loss, aux, tolerance * std::max(aux, 1e-3)) << family;
    std::size_t compared = 0, zero = 0;
    for (const auto& [name, gradient] : got.grads) {
      const at::Tensor& other = expected.all.at("grad." + name);
      zero += other.abs().max().item<double>() == 0;  // an expert without tokens
      EXPECT_LE(relative_error(gradient, other, 1e-3), tolerance) << family << " " << name;
      ++compared;
    }
    EXPECT_EQ(compared + 4, expected.all.size());  // tokens, logits, loss, aux_loss
    EXPECT_LT(5 * zero, compared) << family;
  }
};

TEST_P(Parity, Mixtral) { check("mixtral"); }
TEST_P(Parity, Qwen3Moe) { check("qwen3_moe"); }
TEST_P(Parity, Olmoe) { check("olmoe"); }
TEST_P(Parity, DeepSeekV2) { check("deepseek_v2"); }
TEST_P(Parity, DeepSeekV3) { check("deepseek_v3"); }

TEST_P(Parity, KimiK2) { check("kimi_k2"); }
TEST_P(Parity, Qwen2Moe) { check("qwen2_moe"); }
TEST_P(Parity, Glm4Moe) { check("glm4_moe"); }
TEST_P(Parity, MiniMaxM2) { check("minimax_m2"); }
TEST_P(Parity, Ernie45Moe) { check("ernie4_5_moe"); }

/// gpt_oss_mxfp4: experts in 4 bits, as released models have them.
TEST_P(Parity, GptOss) {
  for (const char* name : {"gpt_oss", "gpt_oss_other", "gpt_oss_mxfp4"}) check(name);
}

TEST_P(Parity, DenseFamilies) {
  for (const std::string& family : kDenseFamilies) check(family);
}
TEST_P(Parity, SwitchesTheOtherWayRound) {
  for (const std::string& family : kParityFamilies) check(family + "_other");
}
TEST_P(Parity, ScaledRotaryEmbeddings) {
  for (const char* name : {"llama_linear", "llama_dynamic", "llama_llama3", "llama_yarn", "qwen3_moe_yarn",
                           "deepseek_v2_yarn", "deepseek_v3_yarn", "glm4_moe_yarn"})
    check(name);
}
TEST_P(Parity, SlidingWindows) {
  for (const char* name :
       {"mistral_window", "mixtral_window", "qwen3_moe_window", "qwen3_window", "qwen2_window"})
    check(name);
}

INSTANTIATE_TEST_SUITE_P(Precision, Parity,
                         ::testing::Values(std::pair(at::kDouble, 1e-9), std::pair(at::kFloat, 1e-5)),
                         [](const auto& info) { return info.param.first == at::kDouble ? "fp64" : "fp32"; });

/// No two of them agree by chance: what a variant adds is seen.
TEST(Parity, VariantsDifferFromTheirFamily) {
  for (const auto& [family, variants] :
       std::map<std::string, std::vector<std::string>>{{"llama", {"llama_linear", "llama_dynamic"}},
                                                       {"deepseek_v2", {"deepseek_v2_yarn"}},
                                                       {"deepseek_v3", {"deepseek_v3_yarn"}},
                                                       {"mistral", {"mistral_window"}},
                                                       {"mixtral", {"mixtral_window"}},
                                                       {"qwen3_moe", {"qwen3_moe_window"}},
                                                       {"qwen2", {"qwen2_window"}}}) {
    for (const std::string& variant : variants) {
      const Expected of_family(family), of_variant(variant);
      EXPECT_GT(relative_error(of_variant.all.at("logits"), of_family.all.at("logits"), 0), 1e-3) << variant;
    }
  }
}

TEST(Parity, AuxiliaryLossIsComputedWhereTheFamilyHasOne) {
  for (const char* family : {"mixtral", "qwen3_moe", "olmoe", "qwen2_moe"})
    EXPECT_GT(Expected(family).number("aux_loss"), 1e-3) << family;
}

}  // namespace
}  // namespace hetermoe
