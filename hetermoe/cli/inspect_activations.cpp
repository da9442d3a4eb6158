#include "hetermoe/cli/inspect_activations.h"

#include <algorithm>
#include <iostream>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/placement/team.h"
#include "hetermoe/report/table.h"

namespace hetermoe {
namespace {

/// The first layer of each kind: dense, with experts.
std::vector<i64> layers_of_each_kind(const ModelConfig& model) {
  std::vector<i64> layers;
  for (const bool moe : {false, true}) {
    i64 l = 0;
    while (l < model.num_layers && model.is_moe(l) != moe) ++l;
    if (l < model.num_layers) layers.push_back(l);
  }
  return layers;
}

const char* name_of_kept(Activation::Kept kept) {
  switch (kept) {
    case Activation::Kept::kAlways:
      return "always";
    case Activation::Kept::kUnlessRecomputed:
      return "recompute off, select";
    case Activation::Kept::kUnlessSelected:
      return "recompute off";
    case Activation::Kept::kUnlessSent:
      return "unless resend, select";
    case Activation::Kept::kNever:
      return "never";
    case Activation::Kept::kPassing:
      return "not needed";
  }
  return "";
}

/// Of an even team of so many devices, which own equal numbers of experts; 0 = of no team.
ActivationOptions ledger_options(const ModelConfig& model, i64 team) {
  ActivationOptions options;
  if (team == 0) return options;
  options.of_team = true, options.team = team;
  options.latents = team <= most_for_latents(model);
  if (model.num_moe_layers() > 0)
    options.rows = real(team) * hit_chance(model, real(model.num_experts) / real(team));
  return options;
}

/// The lines of a layer, for tokens in numbers of 2 bytes.
struct Ledger {
  const ModelConfig& model;
  ActivationOptions options;
  std::vector<Activation> lines;

  Ledger(const ModelConfig& of, i64 layer, i64 team)
      : model(of), options(ledger_options(of, team)), lines(activation_ledger(of, layer, options)) {}
  double times(const Activation& line) const { return times_per_token(model, line, options); }
  Bytes kept(KeptActivations keeps) const {
    Bytes sum = 0;
    for (const Activation& line : lines) sum += is_kept(line.kept, keeps) ? times(line) * line.bytes(2) : 0;
    return sum;
  }
  Bytes all() const {
    Bytes sum = 0;
    for (const Activation& line : lines) sum += times(line) * line.bytes(2);
    return sum;
  }
};

}  // namespace

Json activations_json(const ModelConfig& model, i64 team) {
  Json layers = Json::array();
  for (const i64 l : layers_of_each_kind(model)) {
    const Ledger ledger(model, l, team);
    Json lines = Json::array();
    for (const Activation& line : ledger.lines) {
      lines.push_back({{"tensor", line.name},
                       {"times", ledger.times(line)},
                       {"elements", line.elements},
                       {"bytes", line.bytes(2)},
                       {"kept", name_of_kept(line.kept)}});
    }
    layers.push_back({{"layer", l},
                      {"kind", model.is_moe(l) ? "experts" : "dense"},
                      {"lines", lines},
                      {"bytes", ledger.all()},
                      {"kept_bytes_off", ledger.kept(KeptActivations::kAll)},
                      {"kept_bytes_select", ledger.kept(KeptActivations::kSelected)},
                      {"kept_bytes_recomputed", ledger.kept(KeptActivations::kInputs)}});
    if (team > 0) layers.back()["team"] = team;
  }
  return layers;
}

void print_activations(const ModelConfig& model, i64 seq_len, i64 team) {
  const std::string on_device =
      team > 0 ? fmt::format(" of a device in an even team of {}, per token of its own", team)
               : ", per token";
  for (const i64 l : layers_of_each_kind(model)) {
    const Ledger ledger(model, l, team);
    std::cout << fmt::format("\nactivations of a layer {}{}, in numbers of 2 bytes\n",
                             model.is_moe(l) ? "with experts" : "with a dense MLP", on_device);
    Table table({"tensor", "times", "elements", "bytes", "kept"});
    for (const Activation& line : ledger.lines) {
      table.add_row({line.name, format_digits(ledger.times(line), 4), format_digits(line.elements, 8),
                     format_digits(line.bytes(2), 8), name_of_kept(line.kept)});
    }
    std::cout << table.str();
    const double tokens = real(seq_len) / real(std::max<i64>(1, team));
    const auto of_sequence = [&](KeptActivations keeps) { return format_bytes(ledger.kept(keeps) * tokens); };
    if (team > 0)
      std::cout << fmt::format("made for a sequence of {}: {} on each device\n", counted(seq_len, "token"),
                               format_bytes(ledger.all() * tokens));
    std::cout << fmt::format("kept for a sequence of {}{}: {} with recompute off, {} with select, {} else\n",
                             counted(seq_len, "token"), team > 0 ? " on each device" : "",
                             of_sequence(KeptActivations::kAll), of_sequence(KeptActivations::kSelected),
                             of_sequence(KeptActivations::kInputs));
  }
}

}  // namespace hetermoe
