#include "hetermoe/balance/balancers.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"

namespace hetermoe {

std::vector<LayerOwners> place_even(const BalanceInput& input);
std::vector<LayerOwners> place_proportional(const BalanceInput& input);
std::vector<LayerOwners> place_asym_ea(const BalanceInput& input);
std::vector<LayerOwners> place_level_by_part(const BalanceInput& input);
std::vector<LayerOwners> place_level_by_device(const BalanceInput& input);
std::vector<LayerOwners> place_lpt(const BalanceInput& input);
std::vector<LayerOwners> place_eplb(const BalanceInput& input);
std::vector<LayerOwners> place_lplb(const BalanceInput& input);
std::vector<LayerOwners> place_relibra(const BalanceInput& input);
std::vector<LayerOwners> place_locality(const BalanceInput& input);

/// A row whose owners are the same in every step.
static Balancer without_loads(const char* name, const char* summary,
                              std::vector<LayerOwners> (*place)(const BalanceInput&)) {
  Balancer row{name, summary, place};
  row.by_load = false;
  return row;
}

const std::vector<Balancer>& balancers() {
  static const std::vector<Balancer> all = {
      without_loads("even", "equally many experts on every device", place_even),
      without_loads("proportional", "numbers of experts in proportion to speed", place_proportional),
      without_loads("asym_ea", "as proportional, then some experts of some layers move to attention devices",
                    place_asym_ea),
      without_loads("level_by_part",
                    "earliest finish within memory, equal devices own equally many in every layer",
                    place_level_by_part),
      without_loads("level_by_device", "earliest finish within memory, every device by itself",
                    place_level_by_device),
      {"lpt", "the heaviest expert first, to the device that finishes it earliest", place_lpt},
      {"eplb",
       "further copies of busy experts, then as lpt with equally many, or as many as fit the speed, on each "
       "device",
       place_eplb},
      {"lplb",
       "dealt out by load, one copy each of the busiest experts by a fixed topology; exact splits in the "
       "step",
       place_lplb, CopySplit::kExact},
      {"relibra",
       "reordered by annealing so that every microbatch is even; sequences ordered to match; guests and "
       "exact "
       "splits in the step",
       place_relibra, CopySplit::kGuests, SequenceOrder::kWithinMicrobatches, false, true},
      {"locality",
       "where the sequences that use them are, under a cap on the load; sequences ordered to match",
       place_locality, CopySplit::kShares, SequenceOrder::kWithinStep, true},
  };
  return all;
}

const Balancer& find_balancer(const std::string& name, std::vector<std::string> known) {
  std::string key = name;
  std::replace(key.begin(), key.end(), '-', '_');
  for (const Balancer& balancer : balancers()) {
    if (balancer.name == key) return balancer;
    known.push_back(balancer.name);
  }
  fail<ConfigError>("balancer", "unknown balancer \"{}\".{}", name, known_names_hint(name, known));
}

namespace {

/// Takes out of a choice what is not among the parts.
void keep_parts(BalancerChoice& choice, const std::string& text) {
  const std::vector<std::string> kept = cut_at_commas(text), all = cut_at_commas(kAllParts);
  for (const std::string& part : kept) {
    if (std::find(all.begin(), all.end(), part) == all.end())
      fail<ConfigError>("balancer.parts", "unknown part \"{}\".{}", part, known_names_hint(part, all));
  }
  const auto has = [&](const char* part) { return std::find(kept.begin(), kept.end(), part) != kept.end(); };
  if (has("guests") && !has("split"))
    fail<ConfigError>("balancer.parts",
                      "got {}, expected split beside guests, whose copies are divided by it. Add split, or "
                      "leave guests out",
                      text);
  if (!has("reorder")) choice.balancer = nullptr;
  if (!has("samples")) choice.order = SequenceOrder::kAsTheyCome;
  if (!has("guests")) choice.split = has("split") ? CopySplit::kExact : CopySplit::kShares;
}

}  // namespace

BalancerChoice balancer_choice(const std::string& text, const std::string& parts) {
  const std::size_t plus = text.find('+');
  const std::string name = text.substr(0, plus);
  BalancerChoice choice;
  if (name == "oracle") {
    if (plus != std::string::npos)
      fail<ConfigError>("balancer", "got {}, expected oracle alone, which divides copies at will", text);
    choice.split = CopySplit::kOracle;
  } else if (name != "none") {
    choice.balancer = &find_balancer(name, {"none", "oracle"});
    choice.split = choice.balancer->split;
    choice.order = choice.balancer->order;
    if (choice.balancer->has_parts) keep_parts(choice, parts);
  }
  if (plus != std::string::npos) choice.split = enum_from<CopySplit>(text.substr(plus + 1), "balancer");
  return choice;
}

std::vector<BalanceDevice> owning_devices(const BalanceInput& input) {
  std::vector<BalanceDevice> owning;
  std::copy_if(input.devices.begin(), input.devices.end(), std::back_inserter(owning),
               [](const BalanceDevice& device) { return device.owns; });
  HM_CHECK(!owning.empty(), "no device may own experts");
  return owning;
}

std::vector<std::vector<double>> even_load(i64 layers, i64 experts) {
  return std::vector<std::vector<double>>(idx(layers), std::vector<double>(idx(experts), 1.0));
}

LayerOwners owners_in_runs(const std::vector<BalanceDevice>& devices, const std::vector<i64>& counts) {
  LayerOwners owners;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (i64 e = 0; e < counts[i]; ++e) owners.push_back({{.device = devices[i].id, .share = 1}});
  }
  return owners;
}

}  // namespace hetermoe
