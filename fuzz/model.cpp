#include "fuzz/target.h"
#include "hetermoe/model/model_config.h"

// A Hugging Face config.json.
namespace hetermoe::fuzz {
namespace {

/// Counting every tensor of a model with more layers and experts than this takes seconds.
constexpr i64 kMaxListed = 10000;

void run(const std::string& input) {
  const ModelConfig model = model_from_hf(parse_json(input, "config.json"), "config.json");
  if (model.num_layers * (model.num_experts + 1) > kMaxListed) return;
  count_parameters(model);
  if (!model.unsupported.empty()) return;
  const Json written = to_hf(model);
  ModelConfig again = model_from_hf(written, "written");
  again.name = model.name;
  expect_same(written.dump(), to_hf(again).dump(), "a model");
}

std::vector<std::string> seeds() { return config_texts("models", "json"); }

}  // namespace

extern const Target kModel{"model", run, seeds};

}  // namespace hetermoe::fuzz
