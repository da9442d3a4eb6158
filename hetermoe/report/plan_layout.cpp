#include "hetermoe/report/plan_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/report/device_classes.h"
#include "hetermoe/report/escape.h"
#include "hetermoe/report/table.h"

namespace hetermoe {
namespace {

/// Share of all tokens of the rows.
double share_of(const Shares& shares, i64 seq_len, DeviceId device) {
  double own = 0, all = 0;
  for (const ShareRow& row : shares) {
    for (const Share& share : row) {
      const double tokens = real(tokens_of(share, seq_len));
      all += tokens, own += share.device == device ? tokens : 0;
    }
  }
  return all > 0 ? own / all : 0;
}

double experts_of(const LayerPlacement& layer, DeviceId device) {
  double sum = 0;
  for (const ExpertOwners& owners : layer.experts) {
    for (const ExpertOwner& owner : owners) sum += owner.device == device ? owner.share : 0;
  }
  return sum;
}

/// "4", or "3 to 5".
std::string range_text(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return *low == *high ? fmt::format("{:.3g}", *low) : fmt::format("{:.3g} to {:.3g}", *low, *high);
}

/// "layers 0 to 3", "layers 0, 2, ... 6", or how many where they do not follow each other.
std::string layers_text(const std::set<i64>& layers, i64 num_layers) {
  const auto count = static_cast<i64>(layers.size());
  if (count == num_layers) return "of every layer";
  const bool follow = *layers.rbegin() - *layers.begin() + 1 == count;
  if (count == 1) return fmt::format("of layer {}", *layers.begin());
  if (follow) return fmt::format("of layers {} to {}", *layers.begin(), *layers.rbegin());
  if (count <= 3) return fmt::format("of layers {}", fmt::join(layers, ", "));
  const i64 step = *std::next(layers.begin()) - *layers.begin();
  const bool even = std::adjacent_find(layers.begin(), layers.end(),
                                       [&](i64 a, i64 b) { return b - a != step; }) == layers.end();
  if (!even) return fmt::format("of {} layers", count);
  return fmt::format("of layers {}, {}, ... {}", *layers.begin(), *layers.begin() + step, *layers.rbegin());
}

/// Devices of a group with the same type and role that have parts of the same layers, in their numbers.
using DeviceSet = std::vector<std::size_t>;
constexpr std::size_t kMostTeams = 12;  ///< of a group that are described

/// A part of each layer of which a device has some: attention, then experts.
std::vector<bool> layers_of_last(const PlanLayout& layout) {
  std::vector<bool> has;
  for (const double share : layout.attention.back()) has.push_back(share > 0);
  for (const double experts : layout.experts.back()) has.push_back(experts > 0);
  return has;
}

/// "2 A40 compute the attention part of every layer, each 50 % of the sequences".
std::string set_text(const PlanLayout& layout, const DeviceSet& set, const std::string& type,
                     const std::string& role) {
  std::set<i64> attention, experts;
  std::vector<double> shares, owned;
  for (i64 l = 0; l < layout.num_layers; ++l) {
    for (const std::size_t d : set) {
      if (layout.attention[d][idx(l)] > 0) attention.insert(l), shares.push_back(layout.attention[d][idx(l)]);
      if (layout.experts[d][idx(l)] > 0) experts.insert(l), owned.push_back(layout.experts[d][idx(l)]);
    }
  }
  const std::string who = fmt::format("{} {} ({})", set.size(), type, role);
  std::vector<std::string> what;
  if (!attention.empty()) {
    for (double& share : shares) share *= 100;
    what.push_back(
        fmt::format("{} the attention part {}{}", agree(set.size(), "computes", "compute"),
                    layers_text(attention, layout.num_layers),
                    shares[0] == 100 && shares.back() == 100
                        ? ""
                        : fmt::format(", each of {} % of the {}", range_text(shares), layout.shared)));
  }
  if (!experts.empty())
    what.push_back(fmt::format("{} {} of the {} experts {}", agree(set.size(), "owns", "own each"),
                               range_text(owned), layout.num_experts,
                               layers_text(experts, layout.num_layers)));
  if (what.empty()) return who + " hold state and compute nothing of a layer";
  return who + " " + fmt::format("{}", fmt::join(what, " and "));
}

std::string order_text(const Plan& plan) {
  std::string text = fmt::format("Order {}: ", name_of(plan.order));
  const auto count = plan.groups[0].microbatches.size();
  text += count == 1         ? "one microbatch"
          : plan.window == 0 ? fmt::format("all {} microbatches in flight", count)
                             : fmt::format("{} of {} in flight", plan.window, counted(count, "microbatch"));
  if (plan.chunks > 1) text += fmt::format(", each layer dispatched in {} chunks", plan.chunks);
  if (plan.head_parts > 1) text += fmt::format(", heads of a team in {} parts", plan.head_parts);
  if (plan.tally || plan.foreseen) text += ", copies divided over the owners by their counts";
  if (plan.guest_slots > 0)
    text += fmt::format(", {} for experts lent for one exchange", counted(plan.guest_slots, "slot"));
  return text + ".";
}

std::string memory_text(const Plan& plan) {
  std::string text = fmt::format(
      "Computes in {}, rows travel in {}{}, recompute {}", dtypes_text(plan), name_of(plan.wire_forward),
      plan.row_nodes.empty() ? "" : ", once to each node", name_of(plan.recompute));
  if (plan.shard_optimizer) text += ", optimizer divided over the devices that hold the same parameters";
  if (uses_hosts(plan)) text += ", part of the state in the main memory of the hosts";
  return text + ".";
}

/// Experts with several owners, in all layers.
i64 num_replicated(const Plan& plan) {
  i64 count = 0;
  for (const Group& group : plan.groups) {
    for (const LayerPlacement& layer : group.layers) {
      count += std::count_if(layer.experts.begin(), layer.experts.end(),
                             [](const ExpertOwners& owners) { return owners.size() > 1; });
    }
  }
  return count;
}

void add_device(PlanLayout& layout, const Plan& plan, const Group& group, DeviceId device,
                const std::string& name) {
  layout.devices.push_back(name);
  layout.embed.push_back(share_of(group.embed, plan.seq_len, device));
  layout.head.push_back(share_of(group.head, plan.seq_len, device));
  std::vector<double> attention, experts;
  for (const LayerPlacement& layer : group.layers) {
    attention.push_back(share_of(layer.attention, plan.seq_len, device));
    experts.push_back(experts_of(layer, device));
  }
  layout.attention.push_back(std::move(attention));
  layout.experts.push_back(std::move(experts));
}

constexpr int kLayoutLeft = 150, kLayoutTop = 62, kLayoutWide = 880, kLayoutRight = 20, kLayoutBottom = 14;

/// One half of a cell.
std::string half_svg(double x, int y, double wide, int high, double part, const char* colour,
                     const std::string& text) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" "
      "fill-opacity=\"{:.3f}\"><title>{}</title></rect>\n",
      x, y, wide, high, colour, part > 0 ? 0.15 + 0.85 * part : 0, escape_markup(text));
}

constexpr const char* kAttentionColour = "#0b6aa8";
constexpr const char* kExpertColour = "#c44e00";
constexpr const char* kEndColour = "#77762a";

/// Devices with the same shares, one after another.
using PlanRow = std::vector<std::size_t>;

/// Of many devices those that are alike are a row.
std::vector<PlanRow> plan_rows(const PlanLayout& layout) {
  std::vector<PlanRow> rows;
  const auto alike = [&](std::size_t a, std::size_t b) {
    return layout.attention[a] == layout.attention[b] && layout.experts[a] == layout.experts[b] &&
           layout.embed[a] == layout.embed[b] && layout.head[a] == layout.head[b];
  };
  for (std::size_t d = 0; d < layout.devices.size(); ++d) {
    if (layout.devices.size() > kFewDevices && !rows.empty() && alike(rows.back()[0], d))
      rows.back().push_back(d);
    else
      rows.push_back({d});
  }
  return rows;
}

/// high: pixels of the row.
std::string row_svg(const PlanLayout& layout, const PlanRow& row, int y, int high, double column) {
  const std::size_t d = row[0];
  const std::string name =
      row.size() == 1 ? layout.devices[d] : fmt::format("{} x as {}", row.size(), layout.devices[d]);
  const double gap = column > 8 ? 1 : 0;
  std::string svg = fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLayoutLeft - 8,
                                y + high / 2 + 4, escape_markup(name));
  const auto end = [&](double x, double share, const char* what) {
    svg += half_svg(x, y, column - gap, high - 2, share, kEndColour,
                    fmt::format("{}: {} of {} of the {}", name, what, format_percent(share), layout.shared));
  };
  end(kLayoutLeft, layout.embed[d], "embedding");
  for (std::size_t l = 0; l < idx(layout.num_layers); ++l) {
    const double x = kLayoutLeft + column * real(l + 1);
    const double attention = layout.attention[d][l], experts = layout.experts[d][l];
    const bool has_experts = layout.num_experts > 0;
    svg += half_svg(x, y, column - gap, has_experts ? high / 2 - 1 : high - 2, attention, kAttentionColour,
                    fmt::format("{}, layer {}: attention part of {} of the {}", name, l,
                                format_percent(attention), layout.shared));
    if (!has_experts) continue;
    svg += half_svg(x, y + high / 2 - 1, column - gap, high / 2 - 1, experts / real(layout.num_experts),
                    kExpertColour,
                    fmt::format("{}, layer {}: {:.3g} of {} experts", name, l, experts, layout.num_experts));
  }
  end(kLayoutLeft + column * real(layout.num_layers + 1), layout.head[d], "head");
  return svg;
}

}  // namespace

std::string dtypes_text(const Plan& plan) {
  std::set<std::string> dtypes;
  for (const Group& group : plan.groups)
    for (const DeviceId device : group.devices) dtypes.insert(name_of(plan.dtype[idx(device)]));
  return fmt::format("{}", fmt::join(dtypes, " and "));
}

PlanLayout plan_layout(const Plan& plan, const ModelConfig& model, const Cluster& cluster) {
  PlanLayout layout;
  layout.num_layers = model.num_layers;
  layout.num_experts = model.num_experts;
  if (has_teams(plan)) layout.shared = "tokens";
  const std::vector<std::string> roles = roles_of(plan);
  std::vector<std::string> sets;
  std::vector<DeviceId> used;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const Group& group = plan.groups[g];
    using Key = std::tuple<std::string, std::string, std::vector<bool>>;  // role, type, layers
    std::vector<std::pair<Key, DeviceSet>> found;
    for (const char* role : {"attention", "both", "expert", "idle"}) {
      for (const DeviceId device : group.devices) {
        if (roles[idx(device)] != role) continue;
        add_device(layout, plan, group, device, cluster.device_name(device));
        const Key key{role, cluster.type_of(device).name, layers_of_last(layout)};
        auto at = std::find_if(found.begin(), found.end(), [&](const auto& set) { return set.first == key; });
        if (at == found.end()) at = found.insert(at, {key, {}});
        at->second.push_back(layout.devices.size() - 1);
        used.push_back(device);
      }
    }
    const std::size_t more = found.size() > kMostTeams ? found.size() - kMostTeams : 0;
    found.resize(found.size() - more);
    for (const auto& [key, set] : found) {
      const std::string of_group = plan.groups.size() > 1 ? fmt::format("group {}: ", g) : "";
      sets.push_back(of_group + set_text(layout, set, std::get<1>(key), std::get<0>(key)) + ".");
    }
    if (more > 0) sets.push_back(fmt::format("{} more sets of devices, each with layers of its own.", more));
  }
  layout.sentences = {
      fmt::format("{}: {} of {}, {} of {} in a step.", plan.strategy.empty() ? "plan" : plan.strategy,
                  counted(plan.groups.size(), "group"), counted(used.size(), "device"),
                  counted(total_sequences(plan), "sequence"), counted(plan.seq_len, "token"))};
  layout.sentences.insert(layout.sentences.end(), sets.begin(), sets.end());
  if (const i64 count = num_replicated(plan); count > 0)
    layout.sentences.push_back(fmt::format("Of all layers together {} {} several owners.",
                                           counted(count, "expert"), agree(count, "has", "have")));
  layout.sentences.push_back(order_text(plan));
  layout.sentences.push_back(memory_text(plan));
  return layout;
}

std::string plan_svg(const PlanLayout& layout) {
  const std::vector<PlanRow> devices = plan_rows(layout);
  const int high = devices.size() > 24 ? 14 : 26, rows = high * static_cast<int>(devices.size());
  const int width = kLayoutLeft + kLayoutWide + kLayoutRight, tall = kLayoutTop + rows + kLayoutBottom;
  const double column = kLayoutWide / real(layout.num_layers + 2);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"11\" role=\"img\">\n<rect width=\"{0}\" height=\"{1}\" "
      "fill=\"white\"/>\n",
      width, tall);
  int x = kLayoutLeft;
  for (const auto& [colour, text] :
       {std::pair(kAttentionColour,
                  fmt::format("{} (share of the {})", layout.num_experts > 0 ? "attention part" : "layer",
                              layout.shared)),
        std::pair(kExpertColour, std::string(layout.num_experts > 0 ? "experts (share of the layer's)" : "")),
        std::pair(kEndColour, fmt::format("embedding, head (share of the {})", layout.shared))}) {
    if (text.empty()) continue;
    svg += fmt::format(
        "<rect x=\"{}\" y=\"12\" width=\"14\" height=\"12\" fill=\"{}\"/><text x=\"{}\" y=\"22\">{}</text>\n",
        x, colour, x + 20, text);
    x += 260;
  }
  const i64 every = column >= 30 ? 1 : column >= 15 ? 2 : 8;  // of the layers that have their number
  for (i64 l = -1; l <= layout.num_layers; ++l) {
    const std::string name = l < 0 ? "emb" : l == layout.num_layers ? "head" : std::to_string(l);
    if (l >= 0 && l < layout.num_layers && l % every != 0) continue;
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                       kLayoutLeft + column * (real(l) + 1.5), kLayoutTop - 8, name);
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">layer</text>\n", kLayoutLeft - 8,
                     kLayoutTop - 8);
  for (std::size_t r = 0; r < devices.size(); ++r)
    svg += row_svg(layout, devices[r], kLayoutTop + high * static_cast<int>(r), high, column);
  return svg + "</svg>\n";
}

}  // namespace hetermoe
