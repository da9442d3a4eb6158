#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cli/routing.h"
#include "hetermoe/nn/router.h"
#include "hetermoe/routing/writer.h"
#include "hetermoe/weights/safetensors.h"

// Choices that other programs recorded: router logits, or expert ids. docs/routing.md says what the file
// holds.
namespace hetermoe {
namespace {

struct RoutingImportArguments {
  std::string input, model = "demo", output, condition;
  i64 seq_len = 0;
  bool json = false;
};

std::string shape_text(const at::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
}

/// Reads tensors of the file and refuses what does not fit.
class ImportedFile {
 public:
  ImportedFile(const RoutingImportArguments& options, const ModelConfig& model)
      : options_(options), model_(model), file_(options.input) {
    if (file_.has("topk")) {
      all_ = checked("topk", 3);
      const auto num_layers = static_cast<i64>(layers_with_experts(model).size());
      if (all_.size(1) != num_layers || all_.size(2) != model.top_k)
        fail<InputError>(options.input, "topk: got shape {}, expected [tokens, {}, {}]", shape_text(all_),
                         num_layers, model.top_k);
    }
  }

  /// int64 [tokens, K], -1 = none. number: of the layer among those with experts.
  at::Tensor choices(i64 layer, i64 number) const {
    const std::string logits = fmt::format("layers.{}.router_logits", layer),
                      topk = fmt::format("layers.{}.topk", layer);
    if (all_.defined()) return checked_ids("topk", all_.select(1, number));
    if (file_.has(topk)) return checked_ids(topk, checked(topk, 2));
    if (file_.has(logits)) return chosen(logits, layer);
    fail<InputError>(options_.input,
                     "layer {}: got neither {} nor {} nor topk, expected one of them for each layer with "
                     "experts of model {}",
                     layer, logits, topk, model_.name);
  }

  /// [B] numbers; undefined = the file has none.
  at::Tensor of_sequences(const std::string& name, i64 num_sequences) const {
    if (!file_.has(name)) return {};
    const at::Tensor values = checked(name, 1).to(at::kLong);
    if (values.size(0) != num_sequences)
      fail<InputError>(options_.input, "{}: got shape {}, expected [{}], one for each sequence", name,
                       shape_text(values), num_sequences);
    return values;
  }
  /// int64 [B, S], 0 = padding; undefined = the file has none.
  at::Tensor mask() const {
    return file_.has("attention_mask") ? checked("attention_mask", 2).to(at::kLong).contiguous()
                                       : at::Tensor();
  }

 private:
  at::Tensor checked(const std::string& name, i64 dims) const {
    const at::Tensor tensor = file_.read(name);
    if (tensor.dim() != dims)
      fail<InputError>(options_.input, "{}: got shape {}, expected {} dimensions", name, shape_text(tensor),
                       dims);
    return tensor;
  }

  at::Tensor chosen(const std::string& name, i64 layer) const {
    const at::Tensor logits = checked(name, 2).to(at::kFloat);
    if (logits.size(1) != model_.num_experts)
      fail<InputError>(options_.input, "{}: got shape {}, expected [tokens, {}]", name, shape_text(logits),
                       model_.num_experts);
    if (!at::isfinite(logits).all().item<bool>())
      fail<InputError>(options_.input, "{}: got values that are not finite, expected numbers", name);
    const std::string bias = fmt::format("layers.{}.e_score_correction_bias", layer);
    at::Tensor bias_E;
    if (file_.has(bias)) bias_E = checked(bias, 1).to(at::kFloat);
    if (bias_E.defined() && bias_E.size(0) != model_.num_experts)
      fail<InputError>(options_.input, "{}: got shape {}, expected [{}]", bias, shape_text(bias_E),
                       model_.num_experts);
    return choose_experts(model_, router_scores(model_, logits), bias_E);
  }

  at::Tensor checked_ids(const std::string& name, const at::Tensor& given) const {
    if (at::isFloatingType(given.scalar_type()) || given.size(1) != model_.top_k)
      fail<InputError>(options_.input, "{}: got {} of shape {}, expected integers [tokens, {}]", name,
                       c10::toString(given.scalar_type()), shape_text(given), model_.top_k);
    const at::Tensor ids = given.to(at::kLong).contiguous();
    const i64* id = ids.const_data_ptr<i64>();
    for (i64 t = 0; t < ids.size(0); ++t, id += model_.top_k) {
      for (i64 k = 0; k < model_.top_k; ++k) {
        if (id[k] < -1 || id[k] >= model_.num_experts)
          fail<InputError>(options_.input, "{}: token {}: got expert {}, expected 0 to {}, or -1 for none",
                           name, t, id[k], model_.num_experts - 1);
        if (id[k] >= 0 && std::count(id, id + k, id[k]) > 0)
          fail<InputError>(options_.input, "{}: token {} has expert {} twice", name, t, id[k]);
      }
    }
    return ids;
  }

  const RoutingImportArguments& options_;
  const ModelConfig& model_;
  SafetensorsReader file_;
  at::Tensor all_;  // [tokens, layers, K]
};

/// Tokens of padding have no choice.
std::vector<std::uint16_t> as_choices(const at::Tensor& ids, const at::Tensor& mask) {
  const i64* id = ids.const_data_ptr<i64>();
  std::vector<std::uint16_t> out(idx(ids.numel()));
  const i64 k = ids.size(1);
  for (i64 i = 0; i < ids.numel(); ++i) {
    const bool is_token = !mask.defined() || mask.const_data_ptr<i64>()[i / k] != 0;
    out[idx(i)] = is_token && id[i] >= 0 ? static_cast<std::uint16_t>(id[i]) : kNoExpert;
  }
  return out;
}

/// How many sequences there are, of how many tokens.
std::pair<i64, i64> shape_of(const RoutingImportArguments& options, const at::Tensor& mask, i64 tokens) {
  const i64 seq_len = mask.defined() ? mask.size(1) : options.seq_len > 0 ? options.seq_len : tokens;
  const std::string what = mask.defined() ? "attention_mask" : "--seq";
  const i64 expected = mask.defined() ? mask.numel() : seq_len > 0 ? tokens / seq_len * seq_len : 0;
  if (tokens == 0 || seq_len == 0 || expected != tokens)
    fail<InputError>(options.input, "tokens: got {}, expected whole sequences of {} ({})", tokens, seq_len,
                     what);
  return {tokens / seq_len, seq_len};
}

/// Sequences of the step, with domain and prompt where the file has them.
void add_sequences(const ImportedFile& source, TraceHeader& header, TraceStep& step,
                   std::pair<i64, i64> shape) {
  const at::Tensor domain = source.of_sequences("domain", shape.first),
                   prompt = source.of_sequences("prompt", shape.first);
  const auto value = [](const at::Tensor& of, i64 s) { return of[s].item<i64>(); };
  for (i64 s = 0; s < shape.first; ++s) {
    TraceSequence sequence;
    sequence.tokens = sequence.prompt = static_cast<std::uint32_t>(shape.second);
    if (prompt.defined() && (value(prompt, s) < 0 || value(prompt, s) > shape.second))
      fail<InputError>("prompt", "sequence {}: got {}, expected 0 to {} tokens", s, value(prompt, s),
                       shape.second);
    if (prompt.defined()) sequence.prompt = static_cast<std::uint32_t>(value(prompt, s));
    if (domain.defined() && (value(domain, s) < 0 || value(domain, s) > 65534))
      fail<InputError>("domain", "sequence {}: got {}, expected 0 to 65534", s, value(domain, s));
    if (domain.defined()) {
      sequence.domain = static_cast<std::uint32_t>(value(domain, s));
      while (header.domains.size() <= sequence.domain)
        header.domains.push_back(fmt::format("domain-{}", header.domains.size()));
    }
    step.sequences.push_back(sequence);
  }
  index_tokens(step);
}

int run_import(const RoutingImportArguments& options) {
  const ModelConfig model = load_model(options.model);
  TraceHeader header;
  header.layers = layers_with_experts(model);
  header.num_experts = model.num_experts;
  header.top_k = model.top_k;
  header.model = model.name;
  header.source = "hetermoe routing import";
  if (!options.condition.empty()) header.condition = options.condition;
  if (header.layers.empty()) fail<ConfigError>("--model", "model {} has no layer with experts", model.name);
  const ImportedFile source(options, model);
  const at::Tensor mask = source.mask();
  TraceStep step;
  for (std::size_t l = 0; l < header.layers.size(); ++l) {
    const at::Tensor ids = source.choices(header.layers[l], static_cast<i64>(l)).contiguous();
    if (l == 0) {
      const std::pair<i64, i64> shape = shape_of(options, mask, ids.size(0));
      header.seq_len = shape.second;
      add_sequences(source, header, step, shape);
    }
    if (ids.size(0) != step.num_tokens())
      fail<InputError>(options.input, "layer {}: got {}, expected {} as layer {} has", header.layers[l],
                       counted(ids.size(0), "token"), step.num_tokens(), header.layers[0]);
    step.choices.push_back(as_choices(ids, mask));
  }
  RoutingWriter writer(options.output, header);
  writer.step(step);
  writer.finish();
  if (options.json) {
    print_json({{"file", options.output},
                {"sequences", step.num_sequences()},
                {"seq_len", *header.seq_len},
                {"layers", header.layers},
                {"num_experts", header.num_experts}});
    return 0;
  }
  std::cout << fmt::format("wrote {}: {} of {}, {} with {}\n", options.output,
                           counted(step.num_sequences(), "sequence"), counted(*header.seq_len, "token"),
                           counted(header.layers.size(), "layer"), counted(header.num_experts, "expert"));
  return 0;
}

}  // namespace

std::function<int()> make_routing_import(Flags& flags) {
  const auto options = std::make_shared<RoutingImportArguments>();
  flags
      .add_option("input", options->input,
                  "a safetensors file with layers.N.router_logits, layers.N.topk or topk")
      ->required();
  flags.add_option("--model", options->model, "a name of configs/models, a config.json or its folder")
      ->capture_default_str();
  flags
      .add_option("--seq", options->seq_len,
                  "tokens per sequence, where the file has no attention_mask [default: one "
                  "sequence]")
      ->range(at_least(1));
  flags.add_option("--condition", options->condition, "which data they are, for the header: text, mock, ...");
  flags.add_option("-o,--output", options->output, "file of the trace")->required()->is_output();
  flags.add_flag("--json", options->json, "print what was written as JSON");
  return [options] { return run_import(*options); };
}

}  // namespace hetermoe
