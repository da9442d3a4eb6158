#include "hetermoe/plan/recompute.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<Recompute>::names() {
  static const std::vector<std::string> all =
      names_of_all<Recompute>({"off", "local", "resend", "ahead", "select"});
  return all;
}

namespace {

constexpr i64 kMostRanges = 3;  ///< that a text of a plan has one by one
constexpr const char* kExpectedRanges = "ranges of layers such as \"0-3:off,4-7:local\"";

/// The number that is all of `text`.
i64 layer_number(const std::string& text, const std::string& range, const std::string& where) {
  i64 value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || rest != end || value < 0)
    fail<ConfigError>(where, "got \"{}\", expected {}", range, kExpectedRanges);
  return value;
}

/// One of the ranges: "0-3:off" or "2:local".
void set_range(Plan& plan, const std::string& range, const std::string& where) {
  const std::size_t colon = range.find(':');
  if (colon == std::string::npos) fail<ConfigError>(where, "got \"{}\", expected {}", range, kExpectedRanges);
  const std::string layers = range.substr(0, colon);
  const Recompute recompute = enum_from<Recompute>(range.substr(colon + 1), where);
  const std::size_t dash = layers.find('-');
  const i64 first = layer_number(layers.substr(0, dash), range, where);
  const i64 last = dash == std::string::npos ? first : layer_number(layers.substr(dash + 1), range, where);
  const auto num_layers = plan.groups.empty() ? 0 : static_cast<i64>(plan.groups[0].layers.size());
  if (last < first || last >= num_layers) {
    fail<ConfigError>(where, "got \"{}\", expected layers of 0 to {} in ascending order", range,
                      num_layers - 1);
  }
  for (Group& group : plan.groups) {
    for (i64 l = first; l <= last; ++l) {
      std::optional<Recompute>& of_layer = group.layers[idx(l)].recompute;
      if (of_layer) fail<ConfigError>(where, "got layer {} twice, expected each once", l);
      of_layer = recompute;
    }
  }
}

}  // namespace

Recompute recompute_of(const Plan& plan, i32 group, i32 layer) {
  if (idx(group) >= plan.groups.size() || idx(layer) >= plan.groups[idx(group)].layers.size())
    return plan.recompute;
  return plan.groups[idx(group)].layers[idx(layer)].recompute.value_or(plan.recompute);
}

RecomputeTable::RecomputeTable(const Plan& plan) : all_(plan.recompute) {
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    for (std::size_t l = 0; l < plan.groups[g].layers.size(); ++l) {
      const std::optional<Recompute>& own = plan.groups[g].layers[l].recompute;
      if (own) own_[{static_cast<i32>(g), static_cast<i32>(l)}] = *own;
    }
  }
}

Recompute RecomputeTable::of(i32 group, i32 layer) const {
  const auto found = own_.find({group, layer});
  return found == own_.end() ? all_ : found->second;
}

void set_recompute_of_layers(Plan& plan, const std::string& ranges, const std::string& where) {
  for (std::size_t g = 0; !ranges.empty() && g < plan.groups.size(); ++g) {
    const std::vector<LayerPlacement>& layers = plan.groups[g].layers;
    if (std::any_of(layers.begin(), layers.end(), [](const auto& layer) { return layer.recompute; }))
      fail<ConfigError>(where, "got \"{}\", but strategy {} chooses for each layer itself: leave it out",
                        ranges, plan.strategy);
  }
  for (const std::string& range : cut_at_commas(ranges)) set_range(plan, range, where);
  if (!ranges.empty() && ranges.back() == ',')
    fail<ConfigError>(where, "got \"{}\", expected {}", ranges, kExpectedRanges);
}

std::string recompute_text(const Plan& plan) {
  const auto of_layers = [&](const Group& group) {
    std::vector<Recompute> out;
    for (const LayerPlacement& layer : group.layers) out.push_back(layer.recompute.value_or(plan.recompute));
    return out;
  };
  std::set<Recompute> used;
  for (const Group& group : plan.groups)
    for (const Recompute recompute : of_layers(group)) used.insert(recompute);
  if (used.size() == 1) return name_of(*used.begin());
  const std::vector<Recompute> of_first = of_layers(plan.groups[0]);
  std::string text = name_of(plan.recompute);
  std::map<Recompute, i64> layers_of;  // all but those of the plan
  i64 ranges = 0, all = 0;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const std::vector<Recompute> layers = of_layers(plan.groups[g]);
    if (g > 0 && layers == of_first) continue;  // the reader knows them
    for (std::size_t begin = 0, end; begin < layers.size(); begin = end) {
      end = begin + 1;
      while (end < layers.size() && layers[end] == layers[begin]) ++end;
      all += static_cast<i64>(end - begin);
      if (layers[begin] == plan.recompute) continue;
      ++ranges, layers_of[layers[begin]] += static_cast<i64>(end - begin);
      text += g > 0 ? fmt::format(", group {}", g) : ",";
      text += fmt::format(" {} {}", agree(end - begin, "layer", "layers"), begin);
      if (end > begin + 1) text += fmt::format("-{}", end - 1);
      text += " " + name_of(layers[begin]);
    }
  }
  if (ranges <= kMostRanges) return text;
  text = name_of(plan.recompute);
  for (const auto& [recompute, layers] : layers_of)
    text += fmt::format(", {} in {} of {}", name_of(recompute), layers, counted(all, "layer"));
  return text;
}

}  // namespace hetermoe
