#include <fmt/ranges.h>

#include <iostream>
#include <memory>

#include "hetermoe/base/index.h"
#include "hetermoe/base/numbers.h"
#include "hetermoe/base/version.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/cli/upcycle_sparse.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/train/growth/grow_run.h"
#include "hetermoe/train/growth/growth_scores.h"
#include "hetermoe/train/job/lora.h"
#include "hetermoe/weights/upcycle.h"

namespace hetermoe {
namespace {

struct UpcycleArguments {
  std::string from, to, factor, layers, mode = "fixed-k", score = "uniform", counts, moments, job;
  i64 experts = 0, top_k = 2, cap = 3, seed = 1, batches = 10;
  double noise = 1e-3, cosine = 0.999, shard_gb = static_cast<double>(kMostShardBytes) * 1e-9;
  bool measure = false, verify = false, json = false;
};

/// Of the job of --job, or that of the checkpoint: the batches that come next.
GrowthData growth_data(const UpcycleArguments& options, const GrowthSource& source) {
  const std::optional<FoundCheckpoint>& from = source.checkpoint;
  if (options.job.empty() && !from) {
    fail<ConfigError>(
        "--job", "is missing: {} says nothing of data and plan, by which gradients and losses are computed",
        options.from);
  }
  Job job = options.job.empty() ? parse_job(from->info.job.dump(), from->path.string(), {})
                                : load_job(options.job, {});
  return {std::move(job), source.model, from ? from->info.sequences : 0, options.batches};
}

/// A number that is not one.
i64 factor_from(const std::string& text, const UpcycleArguments& options) {
  const std::optional<i64> factor = whole_number(text);
  if (!factor || *factor < 1)
    fail<ConfigError>("--factor", "got {}, expected a whole number, or 1/2, 1/3, ... to shrink",
                      options.factor);
  return *factor;
}

/// 1/2 and its like.
bool shrinks(const UpcycleArguments& options) { return options.factor.starts_with("1/"); }

i64 factor_of(const UpcycleArguments& options, const ModelConfig& model) {
  if (options.experts == 0) return options.factor.empty() ? 2 : factor_from(options.factor, options);
  if (!options.factor.empty())
    fail<ConfigError>("--experts", "is given beside --factor, expected one of them");
  if (options.experts % model.num_experts != 0) {
    fail<ConfigError>("--experts", "got {}, expected a multiple of the {} experts that {} has",
                      options.experts, model.num_experts, model.name);
  }
  return options.experts / model.num_experts;
}

Growth growth_of(const UpcycleArguments& options, const GrowthSource& source) {
  const ModelConfig& model = source.model;
  const ScoreChoice choice{.score = enum_from<GrowthScore>(options.score, "--score"),
                           .counts = options.counts,
                           .seed = static_cast<u64>(options.seed)};
  if (choice.score != GrowthScore::kLoad && !choice.counts.empty())
    fail<ConfigError>("--counts", "is given with --score {}, expected it with --score load", options.score);
  GrowthOptions how{.factor = factor_of(options, model),
                    .mode = enum_from<GrowthMode>(options.mode, "--mode"),
                    .cap = options.cap,
                    .noise = options.noise,
                    .seed = static_cast<u64>(options.seed)};
  if (!options.moments.empty()) how.moments = enum_from<GrownMoments>(options.moments, "--moments");
  plan_growth(model, how);  // what cannot be is told before scores are computed
  how.scores = growth_scores(choice, source, [&] { return growth_data(options, source); });
  return plan_growth(model, how);
}

std::string right_after(const Growth& growth) {
  if (growth.mode == GrowthMode::kDormant)
    return "the same function: copies get no token until train.router_bias_rate wakes them";
  if (growth.mode == GrowthMode::kWideK)
    return fmt::format("the same function, {} times the expert work for a token", growth.factor);
  if (growth.mode == GrowthMode::kRandom)
    return "another function: new experts are drawn, and routers know nothing of them";
  const std::optional<ModelConfig> seen = model_right_after(growth);
  if (!seen) return "another function: some of a token's experts stand twice among those that it sees";
  if (seen->top_k == growth.before.top_k) return "the same function";
  return fmt::format("that of the source with top-k {}: the loss jumps", seen->top_k);
}

Json instances_of(const Growth& growth) {
  Json layers = Json::array();
  for (i64 l = 0; l < growth.before.num_layers; ++l) {
    if (!growth.before.is_moe(l)) continue;
    Json counts = Json::array();
    for (ExpertId e = 0; e < growth.before.num_experts; ++e) counts.push_back(growth.instances(l, e));
    layers.push_back({{"layer", l}, {"instances", counts}});
  }
  return layers;
}

Json growth_json(const UpcycleArguments& options, const Growth& growth) {
  return {{"from", options.from},
          {"to", options.to},
          {"mode", name_of(growth.mode)},
          {"factor", growth.factor},
          {"before", sizes_json(growth.before)},
          {"after", sizes_json(growth.after)},
          {"layers", instances_of(growth)},
          {"right_after", right_after(growth)}};
}

void print_growth(const Growth& growth) {
  const ModelConfig& model = growth.before;
  std::cout << fmt::format("{} ({}): {} experts, a token sees {}; grown ({}): {}, it sees {}\n", model.name,
                           model.model_type, model.num_experts, model.top_k, name_of(growth.mode),
                           growth.after.num_experts, growth.after.top_k)
            << sizes_text(growth.before, growth.after);
  const bool copies = growth.mode != GrowthMode::kRandom;
  for (const Json& layer : copies ? instances_of(growth) : Json::array()) {
    std::cout << fmt::format("layer {}: instances of each expert {}\n", layer.at("layer").get<i64>(),
                             fmt::join(layer.at("instances").get<std::vector<i64>>(), " "));
  }
  std::cout << "right after growth: " << right_after(growth) << "\n";
  if (growth.noise == 0 && copies) std::cout << "without noise twins that see the same tokens never part\n";
}

/// Of the grown model, told and put into `json`.
void tell_losses(const GrowthLoss& loss, bool talk, Json& json) {
  json["loss"] = {{"before", loss.before}, {"after", loss.after}};
  if (loss.predicted) json["loss"]["predicted"] = *loss.predicted;
  if (!talk) return;
  const std::string predicted = loss.predicted ? fmt::format(" predicted {:.6f},", *loss.predicted) : "";
  std::cout << fmt::format("loss before {:.6f}, right after{} measured {:.6f}\n", loss.before, predicted,
                           loss.after);
}

int grow_folder(const UpcycleArguments& options, const GrowthSource& source) {
  if (!options.moments.empty()) {
    fail<ConfigError>("--moments", "got {}, but {} has no moments: expected a checkpoint of a run",
                      options.moments, options.from);
  }
  const HfWeights weights(source.weights, source.model);
  const Growth growth = growth_of(options, source);
  const std::filesystem::path to = folder_path(options.to);
  const Upcycled done = upcycle_folder(weights, to, growth, static_cast<i64>(options.shard_gb * 1e9));
  if (options.verify) verify_upcycled(weights, to, growth);
  if (!options.json) print_growth(growth);
  Json json = growth_json(options, growth);
  json.update({{"bytes", done.bytes}, {"files", done.num_files}, {"verified", options.verify}});
  if (options.measure)
    tell_losses(measure_growth(growth_data(options, source), source, growth, to), !options.json, json);
  if (options.json) {
    print_json(json);
    return 0;
  }
  if (options.verify) std::cout << "verified: every parameter is that of the source, grown, to the bit\n";
  std::cout << fmt::format("written: {} ({} in {})\n", options.to, format_bytes(real(done.bytes)),
                           counted(done.num_files, "file"));
  return 0;
}

/// What a run with sleeping copies should know.
std::vector<std::string> notes_of_sleep(const Growth& growth, const Json& job) {
  if (growth.mode != GrowthMode::kDormant) return {};
  std::vector<std::string> notes;
  const Json& train = job.at("train");
  if (train.value("router_bias_rate", 0.0) == 0)
    notes.push_back("train.router_bias_rate is 0: copies never wake");
  const double shrink = train.value("learning_rate", 0.0) * train.value("weight_decay", 0.0);
  if (shrink > 0)
    notes.push_back(
        fmt::format("weight decay shrinks a sleeping copy by up to {:.2g} of its size in each step", shrink));
  return notes;
}

/// The command by which a run goes on with `job`. One that had reached its end needs more steps.
std::string goes_on_text(const FoundCheckpoint& from, const std::string& job) {
  const i64 steps = from.info.job.value(Json::json_pointer("/train/steps"), i64{0}), done = from.info.step;
  return fmt::format("it goes on by: {} train {}{}", program(), job,
                     done < steps ? "" : fmt::format(" --train.steps {}", 2 * done));
}

int grow_run(const UpcycleArguments& options, const GrowthSource& source) {
  const FoundCheckpoint& from = *source.checkpoint;
  if (options.verify) {
    fail<ConfigError>(
        "--verify",
        "compares Hugging Face folders, but {} is a checkpoint, whose tensors have checksums: leave "
        "it out",
        from.path.string());
  }
  if (source.model.num_experts == 0) {
    fail<ConfigError>("from",
                      "{} is a checkpoint of a dense model, whose moments fit no experts: make a Hugging "
                      "Face folder of it (convert), and that one sparse",
                      from.path.string());
  }
  if (adapter_rank(from.info.job) > 0)
    fail<ConfigError>("from",
                      "{} is a checkpoint with adapters (train.lora), which do not grow: merge them into "
                      "a folder first, by training with train.save_hf, and grow that one",
                      from.path.string());
  check_grown_output(options.to);
  const Growth growth = growth_of(options, source);
  GrownRun done = write_grown_run(from, growth, folder_path(options.to));
  for (const std::string& note : notes_of_sleep(growth, from.info.job)) done.notes.push_back(note);
  if (!options.json) print_growth(growth);
  Json json = growth_json(options, growth);
  json.update({{"step", from.info.step},
               {"moments", name_of(growth.moments)},
               {"checkpoint", done.checkpoint.string()},
               {"job", done.job.string()},
               {"notes", done.notes}});
  if (options.measure)
    tell_losses(measure_growth(growth_data(options, source), source, growth, done.checkpoint), !options.json,
                json);
  if (options.json) {
    print_json(json);
    return 0;
  }
  for (const std::string& note : done.notes) std::cout << note << "\n";
  std::cout << fmt::format("written: {} of step {}, moments: {}\n{}\n", done.checkpoint.string(),
                           from.info.step, name_of(growth.moments), goes_on_text(from, done.job.string()));
  return 0;
}

/// The options of which dense MLPs that become experts have none.
int sparsify(const UpcycleArguments& options, const GrowthSource& source) {
  const bool known = options.experts > 0 || source.model.num_experts > 0;
  const UpcycleArguments unset;
  for (const auto& [given, key] : {std::pair{known && !options.factor.empty(), "--factor"},
                                   {options.measure, "--measure"},
                                   {options.mode != unset.mode, "--mode"},
                                   {options.noise != unset.noise, "--noise"},
                                   {options.cap != unset.cap, "--cap"},
                                   {options.cosine != unset.cosine, "--cosine"},
                                   {options.batches != unset.batches, "--batches"},
                                   {options.score != unset.score, "--score"},
                                   {!options.counts.empty(), "--counts"},
                                   {!options.job.empty(), "--job"},
                                   {!options.moments.empty(), "--moments"}}) {
    if (given)
      fail<ConfigError>(key, "is given, expected none: experts that are made of an MLP are that MLP's");
  }
  return make_sparse({.from = options.from,
                      .to = options.to,
                      .layers = options.layers,
                      .experts = options.experts,
                      .top_k = options.top_k,
                      .seed = static_cast<u64>(options.seed),
                      .most_bytes = static_cast<i64>(options.shard_gb * 1e9),
                      .verify = options.verify,
                      .json = options.json},
                     source);
}

/// The options of which a model that shrinks has none.
void check_shrinking(const UpcycleArguments& options, const GrowthSource& source) {
  if (options.experts != 0) fail<ConfigError>("--experts", "is given beside --factor, expected one of them");
  if (options.score != "uniform")
    fail<ConfigError>("--score",
                      "got {} with --factor {}, expected uniform: every expert has as many instances",
                      options.score, options.factor);
  if (!source.checkpoint && !options.moments.empty())
    fail<ConfigError>("--moments", "got {}, but {} has no moments: expected a checkpoint of a run",
                      options.moments, options.from);
  if (source.checkpoint && options.verify)
    fail<ConfigError>("--verify", "compares Hugging Face folders, but {} is a checkpoint: leave it out",
                      options.from);
}

/// Writes the model with merged experts. Returns its weights, and what it tells of them.
std::filesystem::path write_shrunk(const UpcycleArguments& options, const GrowthSource& source,
                                   const Growth& growth, Json& json) {
  const std::filesystem::path to = folder_path(options.to);
  if (source.checkpoint) {
    const GrownRun done =
        write_changed_run(shrink_checkpoint(*source.checkpoint, growth, options.cosine), to);
    json.update({{"step", source.checkpoint->info.step},
                 {"moments", name_of(growth.moments)},
                 {"checkpoint", done.checkpoint.string()},
                 {"job", done.job.string()},
                 {"notes", done.notes}});
    return done.checkpoint;
  }
  check_hf_target(to, source.weights);
  const HfWeights weights(source.weights, source.model);
  const Upcycled done =
      merge_folder(weights, to, growth, options.cosine, static_cast<i64>(options.shard_gb * 1e9));
  if (options.verify) verify_merged(weights, to, growth);
  json.update({{"bytes", done.bytes}, {"files", done.num_files}, {"verified", options.verify}});
  return to;
}

int shrink(const UpcycleArguments& options, const GrowthSource& source) {
  check_shrinking(options, source);
  if (source.checkpoint) check_grown_output(options.to);
  GrowthOptions how{.factor = factor_from(options.factor.substr(2), options),
                    .mode = enum_from<GrowthMode>(options.mode, "--mode"),
                    .noise = 0};
  if (!options.moments.empty()) how.moments = enum_from<GrownMoments>(options.moments, "--moments");
  const Growth growth = plan_shrink(source.model, how);
  const ModelConfig &model = source.model, &small = growth.before;
  Json json = {{"from", options.from},         {"to", options.to},
               {"mode", name_of(growth.mode)}, {"factor", options.factor},
               {"before", sizes_json(model)},  {"after", sizes_json(small)}};
  const std::filesystem::path written = write_shrunk(options, source, growth, json);
  if (options.measure) {
    const GrowthData data = growth_data(options, source);
    json["loss"] = {{"before", data.loss(model, source.weights, model)},
                    {"after", data.loss(small, written, small)}};
  }
  if (options.json) {
    print_json(json);
    return 0;
  }
  std::cout << fmt::format("{} ({}): {} experts, a token sees {}; merged ({}): {}, it sees {}\n", model.name,
                           model.model_type, model.num_experts, model.top_k, name_of(growth.mode),
                           small.num_experts, small.top_k)
            << sizes_text(model, small);
  if (json.contains("loss"))
    std::cout << fmt::format("loss before {:.6f}, right after {:.6f}\n", json["loss"]["before"].get<double>(),
                             json["loss"]["after"].get<double>());
  for (const Json& note : json.value("notes", Json::array())) std::cout << note.get<std::string>() << "\n";
  if (options.verify) std::cout << "verified: every parameter is that of its instances, to the bit\n";
  std::cout << fmt::format("written: {}\n", written.string());
  if (json.contains("job"))
    std::cout << goes_on_text(*source.checkpoint, json["job"].get<std::string>()) << "\n";
  return 0;
}

GrowthSource find_source(const std::filesystem::path& from) {
  const auto tell = [](const std::string& note) { std::cerr << note << std::endl; };
  GrowthSource out;
  out.checkpoint = checkpoint_in(from, tell);
  if (!out.checkpoint) {
    out.model = model_of(HfFolder(from));
    out.weights = from;
    return out;
  }
  out.weights = out.checkpoint->path;
  HfFolder{out.weights};  // a changed config.json is refused
  out.model = load_model(out.weights.string());
  const Json& job = out.checkpoint->info.job;
  out.model.name = std::filesystem::path(job.value("model", out.model.name)).stem().string();
  return out;
}

int upcycle(const UpcycleArguments& options) {
  const GrowthSource source = find_source(folder_path(options.from));
  if (!options.layers.empty() && source.checkpoint) {
    fail<ConfigError>(
        "--layers",
        "is given, but {} is a checkpoint, whose moments fit no new experts: make a Hugging Face "
        "folder of it (convert)",
        source.weights.string());
  }
  if (source.model.num_experts > 0 && options.top_k != UpcycleArguments().top_k)
    fail<ConfigError>("--top-k", "got {}, but {} has experts, of which a token sees {}: leave it out",
                      options.top_k, source.model.name, source.model.top_k);
  if (shrinks(options) && options.layers.empty()) return shrink(options, source);
  if (source.checkpoint) return grow_run(options, source);
  check_hf_target(folder_path(options.to), source.weights);
  const bool dense = source.model.num_experts == 0 || !options.layers.empty();
  return dense ? sparsify(options, source) : grow_folder(options, source);
}

/// Of scores and losses.
void add_data_options(Flags& flags, UpcycleArguments& options) {
  flags
      .add_option("--score", options.score,
                  "which experts get copies: uniform; gradient, saliency, fisher (of --batches of the data); "
                  "weight (norm "
                  "of the weights); load (--counts); random")
      ->capture_default_str();
  flags.add_option("--counts", options.counts, "a routing trace, for --score load");
  flags.add_option(
      "--job", options.job,
      "whose data, plan and cluster gradients and losses are computed with [of a checkpoint: its own]");
  flags.add_option("--batches", options.batches, "of the data that come next, for gradients and losses")
      ->capture_default_str()
      ->range(at_least(1));
  flags.add_flag("--measure", options.measure,
                 "the loss before, right after as predicted on the source, and right after as it is");
}

}  // namespace

std::function<int()> make_upcycle(Flags& flags) {
  const auto options = std::make_shared<UpcycleArguments>();
  flags
      .add_option(
          "from", options->from,
          "a Hugging Face folder with weights, a checkpoint, or the output folder of a run: its newest "
          "checkpoint")
      .required();
  flags
      .add_option("-o,--output,to", options->to,
                  "the folder to write; of a run: its output folder from then on")
      .required();
  flags.add_option(
      "--factor", options->factor,
      "so many times as many experts in each layer [2]; 1/2: instances of an expert become one again");
  flags.add_option("--experts", options->experts, "so many experts in each layer; of a dense model: to make")
      ->range(at_least(1));
  flags.add_option("--layers", options->layers,
                   "of a model with dense layers: these get experts, as 0-2,5 [of one without experts: all]");
  flags
      .add_option(
          "--mode", options->mode,
          "fixed-k: top-k stays, the loss jumps; wide-k: top-k grows, the same function; dormant: copies "
          "sleep (routers with a choice bias), the same function; random: new experts are drawn, the control")
      ->capture_default_str();
  add_data_options(flags, *options);
  flags.add_option("--cap", options->cap, "copies of one expert before the next best is looked at")
      ->capture_default_str()
      ->range(at_least(1));
  flags
      .add_option("--noise", options->noise,
                  "half-width of what is added to the logits of copies, so that twins part; 0 = none")
      ->capture_default_str()
      ->range(between(0, 1));
  flags.add_option("--seed", options->seed, "of noise and draws")->capture_default_str()->range(at_least(0));
  flags.add_option(
      "--moments", options->moments,
      "of a checkpoint: reset, copy, split (instances share gradients) or zero (of copies) [fixed-k: "
      "reset, wide-k: split, dormant: zero]");
  flags
      .add_option("--cosine", options->cosine,
                  "--factor 1/2: instances that are less alike than this are not merged")
      ->capture_default_str()
      ->range(between(-1, 1));
  flags.add_option("--top-k", options->top_k, "of a model without experts: experts that a token will see")
      ->capture_default_str()
      ->range(at_least(1));
  flags.add_option("--shard-gb", options->shard_gb, "a file has at most so many 10^9 bytes of tensors")
      ->capture_default_str()
      ->range(above(0));
  flags.add_flag("--verify", options->verify, "read both folders again and compare every parameter");
  flags.add_flag("--json", options->json, "print JSON");
  return [options] { return upcycle(*options); };
}

}  // namespace hetermoe
