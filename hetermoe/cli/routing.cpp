#include "hetermoe/cli/routing.h"

#include <charconv>

#include <iostream>
#include <limits>

#include "hetermoe/base/numbers.h"
#include "hetermoe/base/words.h"

namespace hetermoe {

StepRange parse_steps(const std::string& text, const std::string& where) {
  if (text.empty()) return {0, std::numeric_limits<i64>::max()};
  const std::size_t dots = text.find("..");
  const std::optional<i64> first = whole_number(text.substr(0, dots)),
                           last = dots == std::string::npos ? first : whole_number(text.substr(dots + 2));
  if (!first || !last || *first < 0 || *last < *first)
    fail<ConfigError>(where, "got \"{}\", expected a step or two with dots between them, as 10..20", text);
  return {*first, *last};
}

RoutingTrace open_trace(const std::string& path) {
  RoutingTrace trace(path);
  for (const std::string& note : trace.notes()) std::cerr << note << std::endl;
  if (trace.steps().empty())
    fail<InputError>(path, "has no whole step: got {} frames. Record at least one step to its end",
                     trace.num_frames());
  return trace;
}

std::pair<std::string, std::string> trace_and_steps(const std::string& reference) {
  const std::size_t colon = reference.rfind(':');
  const bool has_steps = !std::filesystem::exists(reference) && colon != std::string::npos;
  return {has_steps ? reference.substr(0, colon) : reference, has_steps ? reference.substr(colon + 1) : ""};
}

void check_model(const TraceHeader& header, const ModelConfig& model, const std::string& where) {
  check_trace_model(header, model, where);
  const std::string note = note_of_model(header, model);
  if (!note.empty()) std::cerr << "note: " << note << std::endl;
}

TraceRouting load_trace_routing(const std::string& reference, const ModelConfig& model) {
  const auto [path, range] = trace_and_steps(reference);
  const RoutingTrace trace = open_trace(path);
  StepRange steps{trace.steps().back(), trace.steps().back()};
  if (!range.empty()) steps = parse_steps(range, "--routing " + path);
  check_model(trace.header(), model, path);
  return TraceRouting(trace.header(), read_steps(trace, steps.first, steps.last), model, path);
}

std::shared_ptr<const RoutingLoad> routing_load_of(const std::string& text, const ModelConfig& model) {
  if (text == "uniform" || text == "even") return std::make_shared<ExpectedRouting>(model);
  if (!text.starts_with("zipf:")) {
    const bool is_trace =
        std::filesystem::exists(text.substr(0, text.rfind(':'))) || std::filesystem::exists(text);
    if (is_trace) return std::make_shared<TraceRouting>(load_trace_routing(text, model));
  }
  const std::string_view number = std::string_view(text).substr(std::min<std::size_t>(5, text.size()));
  double exponent = -1;
  const auto [rest, code] = std::from_chars(number.data(), number.data() + number.size(), exponent);
  const bool whole = code == std::errc() && rest == number.data() + number.size();
  if (!text.starts_with("zipf:") || !whole || !(exponent >= 0 && exponent <= 100)) {
    fail<ConfigError>(
        "--routing",
        "got \"{}\", expected uniform or zipf:EXPONENT with an exponent of 0 to 100, as zipf:1.2, or a "
        "routing trace that is there, as FILE, FILE:STEP or FILE:A..B",
        text);
  }
  return std::make_shared<ExpectedRouting>(model, zipf_popularity(model.num_experts, exponent));
}

void tell_unused(const TraceRouting& step, const Plan& plan) {
  const i64 taken = total_sequences(plan), all = step.step().num_sequences();
  if (all > taken)
    std::cerr << fmt::format("note: a step of the trace has {}; of them the plan's step takes the first {}\n",
                             counted(all, "sequence"), taken);
}

std::function<int()> make_routing(Flags& flags) {
  struct Below {
    Flags flags;
    std::function<int()> run;
  };
  const auto all = std::make_shared<std::vector<Below>>();
  const auto add = [&](const char* name, const char* summary, const char* example,
                       std::function<int()> (*make)(Flags&)) {
    Flags below = flags.add_command(name, summary, example);
    std::function<int()> run = make(below);
    all->push_back({below, std::move(run)});
  };
  add("analyse", "how uneven the routing of a trace is, and what it costs under a plan",
      "hetermoe routing analyse out/demo.routes --ep 1,2,4 --window step\n"
      "  hetermoe routing analyse out/demo.routes configs/jobs/demo.yaml --strategy ep --json",
      make_routing_analyse);
  add("balance", "who should own which experts by a recorded trace: balancers side by side",
      "hetermoe routing balance out/demo.routes configs/jobs/demo.yaml --balancers none,lpt,eplb --replicas "
      "4",
      make_routing_balance);
  add("cluster", "which sequences use the same experts, and what placing experts by that saves",
      "hetermoe routing cluster out/demo.routes --groups 4 --prefix 32\n"
      "  hetermoe routing cluster out/demo.routes --by domain --groups 2 --output out/clusters",
      make_routing_cluster);
  add("import", "a trace of router logits or expert ids that another program recorded",
      "hetermoe routing import logits.safetensors --model tiny --seq 128 -o imported.routes",
      make_routing_import);
  add("make", "a synthetic trace: even, by popularity, drifting, of several domains",
      "hetermoe routing make --model deepseek-v2-lite --seq 1024 --sequences 8 --gini 0.24 -o made.routes",
      make_routing_make);
  add("record", "a trace of what a model's routers choose on its data, by forward passes",
      "hetermoe routing record configs/jobs/demo.yaml --steps 4 -o out/ahead.routes\n"
      "  hetermoe train configs/jobs/demo.yaml --routing.replay out/ahead.routes --train.steps 4",
      make_routing_record);
  return [all] {
    for (const Below& below : *all) {
      if (below.flags.is_named()) return below.run();
    }
    return 2;
  };
}

}  // namespace hetermoe
