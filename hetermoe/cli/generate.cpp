#include <fmt/ranges.h>

#include <cmath>
#include <iostream>
#include <memory>

#include "hetermoe/base/index.h"
#include "hetermoe/base/printable.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/cli/readable.h"
#include "hetermoe/data/tokenizer.h"
#include "hetermoe/nn/decoder.h"
#include "hetermoe/train/resume.h"
#include "hetermoe/weights/hf_weights.h"

namespace hetermoe {
namespace {
namespace fs = std::filesystem;

struct Options {
  std::string folder, prompt, tokenizer, dtype = "fp32";
  std::vector<i64> prompt_tokens;
  i64 tokens = 100, seed = 1;
  double temperature = 0, top_p = 1;
  bool json = false;
};

/// Weights, and the tokenizer of the data that they learned from, where that is known.
struct FoundModel {
  fs::path weights;
  std::string tokenizer;
};

/// A Hugging Face folder, a checkpoint, or the newest checkpoint of a run's output folder.
FoundModel find_model(const fs::path& folder) {
  const auto tell = [](const std::string& note) { std::cerr << note << std::endl; };
  const std::optional<FoundCheckpoint> checkpoint = checkpoint_in(folder, tell);
  FoundModel out;
  out.weights = checkpoint ? checkpoint->path : folder;
  if (!has_weights(out.weights)) {
    fail<ConfigError>(folder.string(),
                      "has neither weights (config.json and model.safetensors) nor checkpoints of a run");
  }
  if (fs::exists(out.weights / "tokenizer.model")) out.tokenizer = (out.weights / "tokenizer.model").string();
  if (checkpoint) {
    const Json& job = checkpoint->info.job;
    const Json::json_pointer key("/data/tokenizer");
    if (job.contains(key) && job[key].is_string()) out.tokenizer = job[key].get<std::string>();
  }
  return out;
}

std::shared_ptr<const Tokenizer> find_tokenizer(const Options& options, const FoundModel& found) {
  const std::string& name = options.tokenizer.empty() ? found.tokenizer : options.tokenizer;
  if (!name.empty()) return make_tokenizer(name);
  if (!options.prompt_tokens.empty()) return nullptr;
  fail<ConfigError>(
      "--tokenizer",
      "nothing in {} says how text becomes tokens: give --tokenizer bytes or FILE.model, or the prompt "
      "as --prompt-tokens",
      found.weights.string());
}

ModelState read_weights(const HfWeights& weights, const ModelConfig& model, Dtype dtype) {
  const at::ScalarType type = dtype == Dtype::kFp64   ? at::kDouble
                              : dtype == Dtype::kBf16 ? at::kBFloat16
                              : dtype == Dtype::kFp16 ? at::kHalf
                                                      : at::kFloat;
  ModelState state = make_model_state(model, at::TensorOptions().dtype(type));
  for (NamedView& view : state.views(model)) view.value.copy_(weights.read(view.name));
  return state;
}

std::vector<i64> prompt_of(const Options& options, const Tokenizer* tokenizer, const ModelConfig& model) {
  std::vector<i64> prompt = options.prompt_tokens;
  if (prompt.empty() && tokenizer != nullptr) prompt = tokenizer->encode(options.prompt);
  if (prompt.empty()) fail<ConfigError>("--prompt", "is no token, expected a text from which to go on");
  for (const i64 token : prompt) {
    if (token < 0 || token >= model.vocab) {
      fail<ConfigError>("--prompt", "has token {}, but {} has tokens 0 to {}: is this its tokenizer?", token,
                        model.name, model.vocab - 1);
    }
  }
  return prompt;
}

struct Generated {
  std::vector<i64> tokens;
  double loss = 0;  ///< mean of -ln(probability) of the tokens, at temperature 1
  bool ended = false;
};

Generated generate(Decoder& decoder, const std::vector<i64>& prompt, const Options& options,
                   std::optional<i64> end_token) {
  const SamplingOptions sampling{options.temperature, options.top_p, static_cast<u64>(options.seed)};
  Generated out;
  at::Tensor logits = decoder.read(at::tensor(prompt, at::kLong));
  while (static_cast<i64>(out.tokens.size()) < options.tokens && !out.ended) {
    const at::Tensor last = logits[logits.size(0) - 1];
    const i64 token = choose_token(last, sampling, decoder.size());
    out.loss -= at::log_softmax(last.to(at::kDouble), 0)[token].item<double>();
    out.tokens.push_back(token);
    out.ended = end_token == token;
    if (static_cast<i64>(out.tokens.size()) < options.tokens && !out.ended)
      logits = decoder.read(at::tensor(std::vector<i64>{token}, at::kLong));
  }
  if (!out.tokens.empty()) out.loss /= real(out.tokens.size());
  return out;
}

int run(const Options& options) {
  const FoundModel found = find_model(options.folder);
  const std::shared_ptr<const Tokenizer> tokenizer = find_tokenizer(options, found);
  const HfFolder folder(found.weights);
  const ModelConfig model = model_of(folder);
  const std::vector<i64> prompt = prompt_of(options, tokenizer.get(), model);
  const ModelState state = read_weights(HfWeights(found.weights, model), model, parse_dtype(options.dtype));
  Decoder decoder(model, state, static_cast<i64>(prompt.size()) + options.tokens);
  if (!options.json && tokenizer != nullptr)
    std::cout << printable_lines(valid_utf8(tokenizer->decode(prompt))) << std::flush;
  const std::optional<i64> end = tokenizer != nullptr ? tokenizer->end_token() : std::nullopt;
  const Generated made = generate(decoder, prompt, options, end);
  const std::string text = tokenizer != nullptr ? tokenizer->decode(made.tokens) : "";
  if (options.json) {
    print_json({{"weights", found.weights.string()},
                {"prompt_tokens", prompt},
                {"tokens", made.tokens},
                {"text", valid_utf8(text)},
                {"ended", made.ended},
                {"loss", made.loss}});
    return 0;
  }
  std::cout << (tokenizer != nullptr ? printable_lines(valid_utf8(text))
                                     : fmt::format("{}", fmt::join(made.tokens, " ")))
            << fmt::format("\n[{} tokens of {}, {:.3f} nats each under the model]\n", made.tokens.size(),
                           printable(found.weights.string()), made.loss);
  return 0;
}

}  // namespace

std::function<int()> make_generate(Flags& flags) {
  const auto options = std::make_shared<Options>();
  flags
      .add_option("folder", options->folder,
                  "a Hugging Face folder, a checkpoint, or the output folder of a run: its newest checkpoint")
      .required();
  flags.add_option("--prompt", options->prompt, "text from which to go on");
  flags.add_option("--prompt-tokens", options->prompt_tokens, "the same as tokens: 1,2,3")->delimiter(',');
  flags.add_option("--tokens", options->tokens, "tokens to write, at most")
      ->capture_default_str()
      ->range(at_least(1));
  flags
      .add_option("--temperature", options->temperature,
                  "0 = always the most likely token; 1 = as the model has it")
      ->capture_default_str()
      ->range(at_least(0));
  flags
      .add_option("--top-p", options->top_p,
                  "draw from the likeliest tokens that have this probability together")
      ->capture_default_str()
      ->range({0, 1, true});
  flags.add_option("--seed", options->seed, "of the draw")->capture_default_str()->range(at_least(0));
  flags.add_option(
      "--tokenizer", options->tokenizer,
      "bytes, or a SentencePiece model; by default that of the run, or tokenizer.model of the folder");
  flags.add_option("--dtype", options->dtype, "of weights and arithmetic: fp32, bf16, fp64")
      ->capture_default_str();
  flags.add_flag("--json", options->json, "print the result as JSON");
  return [options] { return run(*options); };
}

}  // namespace hetermoe
