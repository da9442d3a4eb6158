#include <fmt/ranges.h>
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/cli/inspect_activations.h"
#include "hetermoe/cli/inspect_cluster.h"
#include "hetermoe/cluster/assumed_links.h"
#include "hetermoe/cluster/cluster.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/report/table.h"
#include "hetermoe/weights/hf_weights.h"

namespace hetermoe {
namespace {

struct InspectArguments {
  std::string model, cluster;
  i64 seq_len = 0, team = 0;
  bool activations = false, json = false;
};

/// A kind of weights, summed over the layers that have it.
struct Part {
  std::string name;
  i64 parameters = 0, active = 0;  ///< active: of one token
  i64 num_layers = 0;              ///< 0 = not in a layer
  Flops forward = 0;               ///< per token
};

std::vector<Part> parts_of(const ModelConfig& model, i64 seq_len) {
  const ParamCounts counts = count_parameters(model);
  Part projections{"attention projections"}, scores{"attention scores"}, norms{"norms"}, router{"router"},
      shared{"shared experts"}, dense{"dense MLP"}, experts{"routed experts"};
  for (i64 l = 0; l < model.num_layers; ++l) {
    const LayerWeights weights = layer_weights(model, l);
    const auto add = [](Part& part, i64 parameters, Flops forward) {
      part.parameters += parameters;
      part.active += parameters;
      part.num_layers += parameters > 0 || forward > 0;
      part.forward += forward;
    };
    add(projections, weights.projections + weights.biases, projection_flops(model));
    add(scores, 0, score_flops(model, l, seq_len) / static_cast<double>(seq_len));
    add(norms, weights.norms, 0);
    add(router, weights.router, router_flops(model, l));
    add(shared, weights.shared, shared_flops(model, l));
    add(dense, weights.dense, dense_flops(model, l));
    if (model.is_moe(l)) {
      add(experts, weights.experts, static_cast<double>(model.top_k) * expert_flops(model));
      experts.active -= (model.num_experts - model.top_k) * expert_weights(model);
    }
  }
  Part embedding{"embedding", counts.embedding, counts.embedding, 0, kEmbeddingFlops};
  Part head{"final norm and head", counts.head, counts.head, 0, head_flops(model)};
  std::vector<Part> parts = {embedding, projections, scores, norms, router, shared, dense, experts, head};
  std::erase_if(parts, [](const Part& part) { return part.parameters == 0 && part.forward == 0; });
  return parts;
}

std::string router_text(const ModelConfig& model) {
  if (model.num_moe_layers() == 0) return "none";
  std::string text =
      fmt::format("{} top-{} of {}", name_of(model.router_score), model.top_k, model.num_experts);
  if (model.has_expert_groups()) {
    text += fmt::format(", from the best {} of {} groups ({})", model.top_k_groups, model.num_expert_groups,
                        name_of(model.group_score));
  }
  text += model.normalize_top_k ? ", weights renormalised" : ", weights as they are";
  if (model.routed_scale != 1) text += fmt::format(", times {}", model.routed_scale);
  if (model.router_bias) text += ", with a correction bias";
  if (model.router_linear_bias) text += ", with a bias";
  return text;
}

std::string attention_text(const ModelConfig& model) {
  if (model.attention == AttentionKind::kMla) {
    return fmt::format(
        "multi-head latent, {} heads, queries of {} ({} with position), values of {}, latent {}",
        model.num_heads, model.head_dim, model.qk_rope_dim, model.v_dim, model.kv_lora_rank);
  }
  std::string text =
      fmt::format("{} heads, {} key/value heads of {}", model.num_heads, model.num_kv_heads, model.head_dim);
  if (model.rotary_dim > 0) text += fmt::format(" ({} with position)", model.rotary_dim);
  if (model.qkv_bias) text += ", biases";
  if (model.attention_sinks) text += ", sinks";
  if (model.qk_norm != QkNorm::kNone) text += ", normed queries and keys";
  return text;
}

i64 default_seq_len(const ModelConfig& model) {
  return model.max_positions > 0 ? std::min<i64>(model.max_positions, 4096) : 4096;
}

Json bytes_json(const StateBytes& bytes, double parameters) {
  return {{"weights", bytes.weights * parameters},
          {"gradients", bytes.gradients * parameters},
          {"optimizer", (bytes.master + bytes.moments) * parameters},
          {"total", bytes.total() * parameters}};
}

Json model_json(const ModelConfig& model, i64 seq_len) {
  const ParamCounts counts = count_parameters(model);
  const StateBytes state = state_bytes_per_parameter(2);
  Json parts = Json::array();
  for (const Part& part : parts_of(model, seq_len)) {
    parts.push_back({{"part", part.name},
                     {"layers", part.num_layers},
                     {"params", part.parameters},
                     {"active_params", part.active},
                     {"forward_flops_per_token", part.forward},
                     {"training_bytes", bytes_json(state, static_cast<double>(part.parameters))}});
  }
  return {{"name", model.name},
          {"model_type", model.model_type},
          {"total_params", counts.total},
          {"active_params", counts.active},
          {"layers", model.num_layers},
          {"moe_layers", model.num_moe_layers()},
          {"hidden", model.hidden},
          {"vocab", model.vocab},
          {"max_positions", model.max_positions},
          {"attention", name_of(model.attention)},
          {"heads", model.num_heads},
          {"kv_heads", model.num_kv_heads},
          {"experts", model.num_experts},
          {"top_k", model.top_k},
          {"expert_hidden", model.expert_hidden},
          {"expert_params", counts.expert},
          {"shared_experts", model.num_shared_experts},
          {"router", router_text(model)},
          {"tied_embeddings", model.tie_embeddings},
          {"seq_len", seq_len},
          {"forward_flops_per_token", model_flops_per_token(model, seq_len)},
          {"training_flops_per_token", training_flops_per_token(model, seq_len)},
          {"training_bytes", bytes_json(state, static_cast<double>(counts.total))},
          {"parts", parts},
          {"assumed", model.assumed},
          {"unsupported", model.unsupported}};
}

void print_parts(const ModelConfig& model, i64 seq_len) {
  const ParamCounts counts = count_parameters(model);
  const Flops total_flops = model_flops_per_token(model, seq_len);
  const double total = static_cast<double>(counts.total);
  const Bytes state = state_bytes_per_parameter(2).total();
  Table table(
      {"part", "layers", "parameters", "share", "active", "FLOPs/token", "share", "weights", "training"});
  for (const Part& part : parts_of(model, seq_len)) {
    const double parameters = static_cast<double>(part.parameters);
    table.add_row({part.name, part.num_layers > 0 ? std::to_string(part.num_layers) : "-",
                   format_count(parameters), format_percent(parameters / total),
                   format_count(static_cast<double>(part.active)), format_count(part.forward),
                   format_percent(part.forward / total_flops), format_bytes(2 * parameters),
                   format_bytes(state * parameters)});
  }
  table.add_row({"all", std::to_string(model.num_layers), format_count(total), "100 %",
                 format_count(static_cast<double>(counts.active)), format_count(total_flops), "100 %",
                 format_bytes(2 * total), format_bytes(state * total)});
  std::cout << table.str();
}

void print_model(const ModelConfig& model, i64 seq_len) {
  const ParamCounts counts = count_parameters(model);
  const i64 moe = model.num_moe_layers();
  const auto line = [](const char* key, const std::string& value) {
    std::cout << fmt::format("{:<12}{}\n", key, value);
  };
  line("model", fmt::format("{} ({})", model.name, model.model_type));
  line("parameters", fmt::format("{} in total ({}), {} active per token ({})",
                                 format_count(static_cast<double>(counts.total)), counts.total,
                                 format_count(static_cast<double>(counts.active)), counts.active));
  line("layers", fmt::format("{}: {} with experts, {} dense", model.num_layers, moe, model.num_layers - moe));
  line("sizes", fmt::format("hidden {}, vocabulary {}{}, positions {}", model.hidden, model.vocab,
                            model.tie_embeddings ? " (embeddings tied)" : "", model.max_positions));
  line("attention", attention_text(model));
  line("router", router_text(model));
  if (moe > 0) {
    line("experts",
         fmt::format(
             "{} of width {}, {} parameters each{}", model.num_experts, model.expert_hidden,
             format_count(static_cast<double>(counts.expert)),
             model.num_shared_experts > 0 ? fmt::format(", {} shared", model.num_shared_experts) : ""));
  }
  line("FLOPs",
       fmt::format("{} per token forward, {} in training, at {} per sequence",
                   format_count(model_flops_per_token(model, seq_len)),
                   format_count(training_flops_per_token(model, seq_len)), counted(seq_len, "token")));
  if (!model.assumed.empty()) line("assumed", model.assumed);
  for (const std::string& setting : model.unsupported) line("unsupported", setting + " (cannot be trained)");
  std::cout << "\n";
  print_parts(model, seq_len);
  std::cout << "weights: 2 bytes each; training: weights, gradients, fp32 master and two moments, "
            << state_bytes_per_parameter(2).total() << " bytes each, without activations\n";
}

/// What is in the files of a folder, beside what its config.json asks for.
struct Weights {
  HfFolder folder;
  TensorMap map;
  Weights(const std::string& path, const ModelConfig& model)
      : folder(path), map(map_tensors(model, folder.heads(), file_facts(folder.config()))) {}

  std::map<std::string, i64> bytes_by_dtype() const {
    std::map<std::string, i64> bytes;
    for (const TensorHead& head : folder.heads()) bytes[dtype_text(head.dtype)] += head.bytes();
    return bytes;
  }
};

Json weights_json(const Weights& weights) {
  const TensorMap& map = weights.map;
  return {{"files", weights.folder.files().size()},
          {"bytes", weights.folder.bytes()},
          {"tensors", weights.folder.heads().size()},
          {"parameter_tensors", map.sources.size()},
          {"bytes_by_dtype", weights.bytes_by_dtype()},
          {"layout", name_of(map.layout)},
          {"complete", map.complete()},
          {"missing", map.missing},
          {"unexpected", map.unexpected},
          {"wrong", map.wrong},
          {"ignored", map.ignored}};
}

void print_weights(const Weights& weights) {
  const TensorMap& map = weights.map;
  std::vector<std::string> dtypes;
  for (const auto& [dtype, bytes] : weights.bytes_by_dtype())
    dtypes.push_back(fmt::format("{} {}", dtype, format_bytes(static_cast<double>(bytes))));
  std::cout << fmt::format(
      "\n{:<12}{} in {}, {}: {}\n", "files", counted(weights.folder.heads().size(), "tensor"),
      counted(weights.folder.files().size(), "file"),
      format_bytes(static_cast<double>(weights.folder.bytes())), fmt::join(dtypes, ", "));
  std::cout << fmt::format("{:<12}{}\n", "experts", name_of(map.layout));
  if (!map.ignored.empty())
    std::cout << fmt::format("{:<12}{}, such as {}\n", "not read", counted(map.ignored.size(), "tensor"),
                             map.ignored[0]);
  std::cout << fmt::format(
      "{:<12}{}\n", "weights",
      map.complete() ? "complete: every parameter once, nothing left over" : faults_of(map));
}

/// Whether a name or file given for a model is that of a cluster.
bool is_cluster(const std::string& model) {
  const auto names = [&](const std::vector<std::string>& known) {
    return std::find(known.begin(), known.end(), model) != known.end();
  };
  if (names(known_models())) return false;
  return names(known_clusters()) || model.ends_with(".yaml") || model.ends_with(".yml");
}

/// With a model also how far its experts hide their transfers there.
void inspect_cluster(const InspectArguments& options) {
  const Cluster cluster = load_cluster(options.cluster);
  std::optional<ModelConfig> model;
  if (!options.model.empty()) model = load_model(options.model);
  const std::string assumed = assumed_links(options.cluster);
  if (options.json) {
    Json json = cluster_json(cluster, model);
    if (!assumed.empty()) json["assumed_links"] = assumed;
    print_json(json);
    return;
  }
  print_cluster(cluster, model);
  if (!assumed.empty()) std::cout << assumed << ".\n";
}

void check_team(const InspectArguments& options, const ModelConfig& model) {
  if (options.team == 0) return;
  if (!options.activations)
    fail<ConfigError>("--team", "got {} without --activations, which shows what a team keeps: give both",
                      options.team);
  if (options.team > model.num_heads)
    fail<ConfigError>("--team",
                      "got {}, expected at most {}: a device of an even team has one of the {} query "
                      "heads of model {} at least",
                      options.team, model.num_heads, model.num_heads, model.name);
}

int inspect(const InspectArguments& options) {
  if (options.model.empty() && options.cluster.empty()) {
    fail<ConfigError>("inspect", "nothing to inspect: expected a model or --cluster NAME_OR_PATH.{}",
                      known_names_hint("", known_models()));
  }
  if (is_cluster(options.model)) {
    fail<ConfigError>("inspect", "{} is a cluster, expected a model here: give it as --cluster {}",
                      options.model, options.model);
  }
  if (!options.cluster.empty()) {
    inspect_cluster(options);
    return 0;
  }
  const ModelConfig model = load_model(options.model);
  const i64 seq_len = options.seq_len > 0 ? options.seq_len : default_seq_len(model);
  if (model.max_positions > 0 && seq_len > model.max_positions)
    fail<ConfigError>("--seq", "got {}, expected at most the {} positions of model {}", seq_len,
                      model.max_positions, model.name);
  check_team(options, model);
  std::optional<Weights> weights;
  if (model.assumed.empty() && has_weights(options.model)) weights.emplace(options.model, model);
  if (options.json) {
    Json json = model_json(model, seq_len);
    if (options.activations) json["activations"] = activations_json(model, options.team);
    if (weights) json["weights"] = weights_json(*weights);
    print_json(json);
  } else {
    print_model(model, seq_len);
    if (options.activations) print_activations(model, seq_len, options.team);
    if (weights) print_weights(*weights);
  }
  return weights && !weights->map.complete() ? 1 : 0;
}

}  // namespace

std::function<int()> make_inspect(Flags& flags) {
  const auto options = std::make_shared<InspectArguments>();
  flags.add_option("model,--model", options->model,
                   "a name of configs/models, a config.json or its folder; of a folder with weights also "
                   "what they are, with "
                   "exit code 1 when they are not those of the model");
  flags.add_option("--cluster", options->cluster,
                   "a name of configs/clusters, a YAML file or a hostfile, instead of a model; with a model "
                   "also how far its experts hide their transfers there");
  flags
      .add_option(
          "--seq", options->seq_len,
          "tokens per sequence, for FLOPs of attention [default: the model's positions, at most 4096]")
      ->range(at_least(1));
  flags.add_flag("--activations", options->activations,
                 "also every tensor that a layer makes for a token, and whether backward finds it kept");
  flags
      .add_option("--team", options->team,
                  "with --activations: of a device in an even team of so many, which share each sequence")
      ->range(at_least(1));
  flags.add_flag("--json", options->json, "print JSON");
  return [options] { return inspect(*options); };
}

}  // namespace hetermoe
