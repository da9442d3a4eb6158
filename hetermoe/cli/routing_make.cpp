#include <iostream>
#include <memory>

#include "hetermoe/base/words.h"
#include "hetermoe/cli/routing.h"
#include "hetermoe/report/table.h"
#include "hetermoe/routing/synthetic.h"
#include "hetermoe/routing/writer.h"

namespace hetermoe {
namespace {

struct RoutingMakeArguments {
  std::string model = "demo", output;
  SyntheticOptions trace{.seq_len = 256, .sequences = 8, .microbatches = 1, .steps = 1};
  double gini = 0, mock_ratio = 0;
  i64 seed = 1;
  bool json = false;
};

TraceHeader header_of_model(const ModelConfig& model) {
  TraceHeader header;
  header.layers = layers_with_experts(model);
  header.num_experts = model.num_experts;
  header.top_k = model.top_k;
  header.model = model.name;
  header.source = "hetermoe routing make";
  if (header.layers.empty()) fail<ConfigError>("--model", "model {} has no layer with experts", model.name);
  return header;
}

struct Made {
  std::string path;
  double spread = 0, gini = 0;
};

/// A trace with this Gini coefficient, 0 = with what the options say.
Made make_trace(const RoutingMakeArguments& options, const ModelConfig& model, const std::string& path,
                double gini) {
  SyntheticOptions trace = options.trace;
  trace.seed = static_cast<u64>(options.seed);
  const TraceHeader header = header_of_model(model);
  if (gini > 0) trace.spread = SyntheticTrace(header, trace).spread_for(gini);
  const SyntheticTrace made(header, trace);
  RoutingWriter writer(path, made.header());
  for (i64 step = 0; step < trace.steps; ++step) writer.step(made.step(step));
  writer.finish();
  return {path, trace.spread, made.gini()};
}

/// x.routes -> x-mock.routes
std::string mock_path(const std::string& path) {
  const std::filesystem::path given(path);
  return (given.parent_path() / (given.stem().string() + "-mock" + given.extension().string())).string();
}

void check(const RoutingMakeArguments& options) {
  const SyntheticOptions& trace = options.trace;
  if (trace.microbatches > trace.sequences)
    fail<ConfigError>("--microbatches", "got {}, expected at most --sequences ({})", trace.microbatches,
                      trace.sequences);
  if (options.mock_ratio > 0 && options.gini <= 0)
    fail<ConfigError>("--mock-ratio",
                      "got {} without --gini, expected both: it says how many times the Gini "
                      "coefficient of the second trace is",
                      options.mock_ratio);
  if (options.gini > 0 && trace.zipf > 0)
    fail<ConfigError>("--gini", "got {} and --zipf {}, expected one of the two", options.gini, trace.zipf);
  if (trace.domain_spread > 0 && trace.domains < 1)
    fail<ConfigError>("--domain-spread", "got {} without --domains, expected both", trace.domain_spread);
}

int run_make(const RoutingMakeArguments& options) {
  check(options);
  const ModelConfig model = load_model(options.model);
  std::vector<Made> all = {make_trace(options, model, options.output, options.gini)};
  if (options.mock_ratio > 0)
    all.push_back(make_trace(options, model, mock_path(options.output), options.gini * options.mock_ratio));
  Json json = Json::array();
  for (const Made& made : all) {
    json.push_back({{"file", made.path}, {"gini", made.gini}, {"spread", made.spread}});
    if (!options.json)
      std::cout << fmt::format("wrote {}: {} of {} of {}, Gini {:.4f} (all steps, mean over layers)\n",
                               made.path, counted(options.trace.steps, "step"),
                               counted(options.trace.sequences, "sequence"),
                               counted(options.trace.seq_len, "token"), made.gini);
  }
  if (options.json) print_json(json);
  return 0;
}

}  // namespace

std::function<int()> make_routing_make(Flags& flags) {
  const auto options = std::make_shared<RoutingMakeArguments>();
  SyntheticOptions& trace = options->trace;
  flags.add_option("--model", options->model, "a name of configs/models, a config.json or its folder")
      ->capture_default_str();
  flags.add_option("--seq", trace.seq_len, "tokens per sequence")
      ->capture_default_str()
      ->range(between(1, 1e8));
  flags.add_option("--sequences", trace.sequences, "sequences of a step")
      ->capture_default_str()
      ->range(between(1, 1e6));
  flags.add_option("--microbatches", trace.microbatches, "microbatches of a step")
      ->capture_default_str()
      ->range(between(1, 65535));
  flags.add_option("--steps", trace.steps, "steps")->capture_default_str()->range(between(1, 1e9));
  flags
      .add_option(
          "--gini", options->gini,
          "Gini coefficient of the copies of all steps, mean over layers: popularity is spread until it is "
          "reached [default: even popularity]")
      ->range(above(0));
  flags.add_option("--zipf", trace.zipf, "popularity 1 / rank^ZIPF, expert 0 first, instead of --gini")
      ->range(between(0, 100));
  flags
      .add_option("--drift", trace.drift,
                  "how much popularity changes with the microbatch (standard deviation of logits)")
      ->range(between(0, 20));
  flags.add_option("--domains", trace.domains, "each sequence is of one of so many domains")
      ->range(between(1, 65535));
  flags.add_option("--domain-spread", trace.domain_spread, "how much popularity differs between domains")
      ->range(between(0, 20));
  flags
      .add_option("--mock-ratio", options->mock_ratio,
                  "write a second trace FILE-mock with so many times the Gini coefficient")
      ->range(above(0));
  flags.add_option("--seed", options->seed, "of all random numbers")
      ->capture_default_str()
      ->range(at_least(0));
  flags.add_option("-o,--output", options->output, "file of the trace")->required()->is_output();
  flags.add_flag("--json", options->json, "print what was made as JSON");
  return [options] { return run_make(*options); };
}

}  // namespace hetermoe
