#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>

#include "hetermoe/base/index.h"
#include "hetermoe/base/printable.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/data/model_template.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/model/lora.h"
#include "hetermoe/nn/decoder.h"
#include "hetermoe/report/escape.h"
#include "hetermoe/train/checkpoint/checkpoint_archive.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/train/job/gpu_run.h"
#include "hetermoe/train/job/lora_options.h"
#include "hetermoe/weights/hf_weights.h"

namespace hetermoe {
namespace {
namespace fs = std::filesystem;

struct GenerateArguments {
  std::string folder, prompt, tokenizer, chat_template, system, logits, dtype = "fp32", device = "cpu";
  std::vector<i64> prompt_tokens;
  i64 tokens = 100, seed = 1;
  double temperature = 0, top_p = 1;
  bool chat = false, json = false;
};

/// Weights, and tokenizer and chat template of the data that they learned from, where these are known.
struct FoundModel {
  fs::path weights;
  std::string tokenizer, chat_template;
  std::optional<FoundCheckpoint> checkpoint;
};

/// The job that left the weights: that of a checkpoint, or the one in hetermoe.json; null = there is none.
Json job_behind(const FoundModel& found) {
  if (found.checkpoint) return found.checkpoint->info.job;
  std::ifstream in(found.weights / "hetermoe.json");
  const Json origin = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  return origin.is_object() ? origin.value("job", Json()) : Json();
}

/// A Hugging Face folder, a checkpoint, or the newest checkpoint of a run's output folder.
FoundModel find_model(const fs::path& folder) {
  const auto tell = [](const std::string& note) { std::cerr << note << std::endl; };
  FoundModel out;
  out.checkpoint = checkpoint_in(folder, tell);
  out.weights = out.checkpoint ? out.checkpoint->path : folder;
  if (!has_weights(out.weights)) {
    fail<ConfigError>(
        folder.string(),
        "has neither weights (config.json and model.safetensors) nor a checkpoint of a run that can be read");
  }
  out.tokenizer = find_tokenizer(out.weights);
  const Json job = job_behind(out);
  const auto text_at = [&](const char* key, std::string& text) {
    const Json::json_pointer at(key);
    if (job.contains(at) && job[at].is_string()) text = job[at].get<std::string>();
  };
  if (out.checkpoint) text_at("/data/tokenizer", out.tokenizer);
  text_at("/data/template", out.chat_template);
  const bool is_known =
      try_chat_template(out.chat_template) != nullptr || has_chat_template(out.chat_template);
  if (!is_known && has_chat_template(out.weights.string())) out.chat_template = out.weights.string();
  return out;
}

/// How a question is put to the model; none unless the prompt is one.
std::optional<ChatEncoder> find_chat(const GenerateArguments& options, const FoundModel& found,
                                     const Tokenizer* tokenizer) {
  if (!options.chat && options.chat_template.empty()) return std::nullopt;
  const bool is_default = options.chat_template.empty() || options.chat_template == "model";
  const std::string& name = is_default ? found.chat_template : options.chat_template;
  if (name.empty()) {
    fail<ConfigError>("--chat",
                      "nothing in {} says which template its model knows: give --template, one of {}",
                      found.weights.string(), chat_template_list());
  }
  if (tokenizer == nullptr) fail<ConfigError>("--chat", "got tokens as prompt, expected a text as --prompt");
  const std::string& tokens = options.tokenizer.empty() ? found.tokenizer : options.tokenizer;
  return ChatEncoder(name, *tokenizer, tokens, tokenizer->end_token());
}

/// Null where the prompt is of tokens and nothing that the program has says what they stand for.
std::shared_ptr<const Tokenizer> tokenizer_for(const GenerateArguments& options, const FoundModel& found) {
  const bool is_given = !options.tokenizer.empty();
  const std::string& name = is_given ? options.tokenizer : found.tokenizer;
  const bool of_tokens = !options.prompt_tokens.empty();
  if (of_tokens && !is_given) return name.empty() ? nullptr : try_tokenizer(name);
  if (!name.empty()) return make_tokenizer(name);
  fail<ConfigError>("--tokenizer",
                    "nothing in {} says how text becomes tokens: give --tokenizer bytes, FILE.model or "
                    "tokenizer.json, or the prompt "
                    "as --prompt-tokens",
                    found.weights.string());
}

/// Where weights, keys and values are. Throws ConfigError for a GPU that is not there or cannot be used.
c10::Device find_place(const std::string& name) {
  const c10::Device device = find_device(name, "--device");
  if (device.is_cpu()) return device;
  configure_gpus({.fp64 = true});  // masks of some models have no fused kernel either
  const std::string fault = gpu_fault({gpu_facts(device)}, library_architectures());
  if (!fault.empty()) fail<ConfigError>("--device", "got \"{}\", but {}", name, fault);
  return device;
}

ModelState read_weights(const HfWeights& weights, const ModelConfig& model, Dtype dtype, c10::Device device) {
  const at::ScalarType type = dtype == Dtype::kFp64   ? at::kDouble
                              : dtype == Dtype::kBf16 ? at::kBFloat16
                              : dtype == Dtype::kFp16 ? at::kHalf
                                                      : at::kFloat;
  ModelState state = make_model_state(model, at::TensorOptions(device).dtype(type));
  for (NamedView& view : state.views(model)) view.value.copy_(weights.read(view.name));
  return state;
}

/// The adapters of a checkpoint, which lie beside the model that they change.
void merge_adapters(const FoundCheckpoint& checkpoint, const ModelConfig& model, ModelState& state) {
  const Json::json_pointer key("/train/lora");
  if (!checkpoint.info.job.contains(key)) return;
  LoraOptions options;
  read_fields(checkpoint.info.job[key], options, checkpoint.path.string());
  if (options.rank == 0) return;
  const Archive archive(checkpoint.path, checkpoint.files);
  for (NamedView& view : state.views(model)) {
    const std::string a = lora_a_name(view.name), b = lora_b_name(view.name);
    if (view.value.dim() != 2 || !archive.has(a)) continue;
    const at::Tensor a_RI = archive.read(a, {options.rank, view.value.size(1)}).to(at::kFloat);
    const at::Tensor b_OR = archive.read(b, {view.value.size(0), options.rank}).to(at::kFloat);
    view.value.add_(b_OR.mm(a_RI).to(view.value.options()), options.alpha / real(options.rank));
  }
}

/// Logits after each token of the prompt, for comparison with other programs.
void write_logits(const std::string& path, const std::vector<i64>& prompt, const at::Tensor& logits) {
  if (path.empty()) return;
  write_safetensors(path, {{"tokens", at::tensor(prompt, at::kLong)}, {"logits", logits.cpu().contiguous()}});
}

std::vector<i64> prompt_of(const GenerateArguments& options, const Tokenizer* tokenizer,
                           const ChatEncoder* chat, const ModelConfig& model) {
  std::vector<i64> prompt = options.prompt_tokens;
  if (chat != nullptr && !options.prompt.empty()) {
    std::vector<ChatMessage> said = {{ChatRole::kUser, options.prompt}};
    if (!options.system.empty()) said.insert(said.begin(), {ChatRole::kSystem, options.system});
    prompt = chat->encode(said, "--prompt", /*ask=*/true).tokens;
  } else if (prompt.empty() && tokenizer != nullptr) {
    prompt = tokenizer->begin_tokens();
    const std::vector<i64> said = tokenizer->encode(options.prompt);
    prompt.insert(prompt.end(), said.begin(), said.end());
  }
  if (prompt.empty())
    fail<ConfigError>("--prompt", "is missing or empty, expected a text from which to go on");
  const char* flag = options.prompt_tokens.empty() ? "--prompt" : "--prompt-tokens";
  for (const i64 token : prompt) {
    if (token < 0 || token >= model.vocab) {
      fail<ConfigError>(flag, "has token {}, but {} has tokens 0 to {}{}", token, model.name, model.vocab - 1,
                        options.prompt_tokens.empty() ? ": is this its tokenizer?" : "");
    }
  }
  return prompt;
}

/// Options that change nothing without another are refused: whoever gives them expects something of them.
void check_options(const GenerateArguments& options) {
  if (!options.system.empty() && !options.chat && options.chat_template.empty())
    fail<ConfigError>("--system", "is given without --chat, which puts it before the question: add --chat");
  if (options.top_p != 1 && options.temperature == 0)
    fail<ConfigError>(
        "--top-p",
        "got {} with --temperature 0, which takes the likeliest token: expected a temperature above 0",
        options.top_p);
}

/// Prompt and answer together must have positions that the model has learned; rotary embeddings of kind
/// dynamic have no last one.
void check_positions(const ModelConfig& model, i64 prompt, i64 tokens) {
  const i64 room = model.max_positions - prompt;
  if (model.max_positions == 0 || tokens <= room || model.rope_scaling.kind == RopeKind::kDynamic) return;
  fail<ConfigError>("--tokens", "got {} after a prompt of {}, but model {} has {}: expected {}", tokens,
                    counted(prompt, "token"), model.name, counted(model.max_positions, "position"),
                    room > 0
                        ? fmt::format("at most {}, or a shorter prompt", room)
                        : fmt::format("a prompt of at most {}", counted(model.max_positions - 1, "token")));
}

/// Logits [vocabulary] after the prompt. Those after each of its tokens are made only to be written.
at::Tensor read_prompt(Decoder& decoder, const std::vector<i64>& prompt, const GenerateArguments& options) {
  const at::Tensor tokens = at::tensor(prompt, at::kLong);
  if (options.logits.empty()) return decoder.read_prompt(tokens);
  const at::Tensor logits = decoder.read(tokens);
  write_logits(options.logits, prompt, logits);
  return logits[logits.size(0) - 1];
}

struct Generated {
  std::vector<i64> tokens;
  double loss = 0;  ///< mean of -ln(probability) of the tokens, at temperature 1
  bool ended = false;
};

bool ends_with(const std::vector<i64>& tokens, const std::vector<i64>& end) {
  return !end.empty() && tokens.size() >= end.size() && std::equal(end.rbegin(), end.rend(), tokens.rbegin());
}

/// end: the tokens by which the model says that it has ended; empty = it never does.
Generated generate(Decoder& decoder, const std::vector<i64>& prompt, const GenerateArguments& options,
                   const std::vector<i64>& end) {
  const SamplingOptions sampling{options.temperature, options.top_p, static_cast<u64>(options.seed)};
  Generated out;
  at::Tensor last = read_prompt(decoder, prompt, options);
  while (static_cast<i64>(out.tokens.size()) < options.tokens && !out.ended) {
    const i64 token = choose_token(last, sampling, decoder.size());
    out.loss -= at::log_softmax(last.to(at::kDouble), 0)[token].item<double>();
    out.tokens.push_back(token);
    out.ended = ends_with(out.tokens, end);
    if (static_cast<i64>(out.tokens.size()) < options.tokens && !out.ended)
      last = decoder.read(at::tensor(std::vector<i64>{token}, at::kLong))[0];
  }
  if (!out.tokens.empty()) out.loss /= real(out.tokens.size());
  return out;
}

/// By what the model ends an answer, or a text.
std::vector<i64> end_of(const Tokenizer* tokenizer, const ChatEncoder* chat) {
  if (chat != nullptr) return chat->answer_end();
  if (tokenizer == nullptr || !tokenizer->end_token()) return {};
  return {*tokenizer->end_token()};
}

int run_generate(const GenerateArguments& options) {
  check_options(options);
  const c10::Device device = find_place(options.device);
  const FoundModel found = find_model(options.folder);
  const std::shared_ptr<const Tokenizer> tokenizer = tokenizer_for(options, found);
  const HfFolder folder(found.weights);
  const ModelConfig model = model_of(folder);
  const std::optional<ChatEncoder> chat = find_chat(options, found, tokenizer.get());
  const ChatEncoder* asked = chat ? &*chat : nullptr;
  const std::vector<i64> prompt = prompt_of(options, tokenizer.get(), asked, model);
  check_positions(model, static_cast<i64>(prompt.size()), options.tokens);
  ModelState state = read_weights(HfWeights(found.weights, model), model, parse_dtype(options.dtype), device);
  if (found.checkpoint) merge_adapters(*found.checkpoint, model, state);
  Decoder decoder(model, state, static_cast<i64>(prompt.size()) + options.tokens);
  if (!options.json && tokenizer != nullptr)
    std::cout << printable_lines(valid_utf8(tokenizer->decode(prompt))) << std::flush;
  const Generated made = generate(decoder, prompt, options, end_of(tokenizer.get(), asked));
  const std::string text = tokenizer != nullptr ? tokenizer->decode(made.tokens) : "";
  const std::optional<double> per_byte =
      text.empty() ? std::nullopt : std::optional(made.loss * real(made.tokens.size()) / real(text.size()));
  if (options.json) {
    print_json({{"loss_per_byte", per_byte ? Json(*per_byte) : Json(nullptr)},
                {"weights", found.weights.string()},
                {"device", device.str()},
                {"prompt_tokens", prompt},
                {"tokens", made.tokens},
                {"text", valid_utf8(text)},
                {"ended", made.ended},
                {"loss", made.loss}});
    return 0;
  }
  std::cout << (tokenizer != nullptr ? printable_lines(valid_utf8(text))
                                     : fmt::format("{}", fmt::join(made.tokens, " ")))
            << fmt::format("\n[{} tokens of {}, {:.3f} nats each under the model{}]\n", made.tokens.size(),
                           printable(found.weights.string()), made.loss,
                           per_byte ? fmt::format(", {:.3f} a byte", *per_byte) : "");
  return 0;
}

}  // namespace

std::function<int()> make_generate(Flags& flags) {
  const auto options = std::make_shared<GenerateArguments>();
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
      "bytes, a SentencePiece model or a tokenizer.json; by default that of the run or the folder");
  flags.add_flag("--chat", options->chat,
                 "the prompt is a question: it is put as the model knows it, and the answer ends as its do");
  flags.add_option("--template", options->chat_template,
                   "how questions are put, as data.template has it; by default that of the run or folder");
  flags.add_option("--system", options->system, "what the system says before the question");
  flags
      .add_option("--logits", options->logits,
                  "write tokens of the prompt and the logits after each to FILE.safetensors")
      ->is_output();
  flags.add_option("--dtype", options->dtype, "of weights and arithmetic: fp32, bf16, fp16, fp64")
      ->capture_default_str();
  flags.add_option("--device", options->device, "where the model is: cpu, cuda or cuda:N")
      ->capture_default_str();
  flags.add_flag("--json", options->json, "print the result as JSON");
  return [options] { return run_generate(*options); };
}

}  // namespace hetermoe
