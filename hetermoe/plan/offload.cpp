#include "hetermoe/plan/offload.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/plan/row_nodes.h"

namespace hetermoe {
namespace {

constexpr const char* kExpectedEntries =
    "all, none, weights, optimizer, saved, or a part (embed, attention, experts, head), alone or followed by "
    ".weights "
    "or .optimizer, after \"layers 0-7:\" or \"devices 2-5:\" if it holds for these alone";

/// One entry, understood.
struct Entry {
  i32 first_layer = 0, last_layer = 0;
  std::vector<DeviceId> devices = {};  // empty = all
  std::vector<UnitPart> parts = {UnitPart::kEmbed, UnitPart::kAttention, UnitPart::kExperts, UnitPart::kHead};
  Home home = {};
  bool of_parameters = true;  // says where parameters live
  std::optional<Residence> saved = {};
};

class Parser {
 public:
  Parser(const ModelConfig& model, const Cluster& cluster, const std::string& entry, const std::string& where)
      : model_(model), cluster_(cluster), text_(entry), where_(where) {}

  Entry parse() {
    Entry entry;
    entry.last_layer = static_cast<i32>(model_.num_layers) - 1;
    std::string rest = text_;
    for (std::size_t colon = rest.find(':'); colon != std::string::npos; colon = rest.find(':')) {
      scope(rest.substr(0, colon), entry);
      rest = rest.substr(colon + 1);
    }
    what(rest, entry);
    return entry;
  }

 private:
  void scope(const std::string& text, Entry& entry) const {
    const std::size_t blank = text.find(' ');
    const std::string kind = text.substr(0, blank);
    const std::string numbers = blank == std::string::npos ? "" : text.substr(blank + 1);
    if (kind == "layers") {
      std::tie(entry.first_layer, entry.last_layer) = range(numbers, static_cast<i32>(model_.num_layers));
    } else if (kind == "devices") {
      const auto [first, last] = range(numbers, cluster_.num_devices());
      entry.devices.resize(idx(last - first + 1));
      std::iota(entry.devices.begin(), entry.devices.end(), first);
    } else {
      wrong();
    }
  }

  /// "3" or "0-7", of numbers below `end`.
  std::pair<i32, i32> range(const std::string& text, i32 end) const {
    const std::size_t dash = text.find('-');
    const i32 first = number(text.substr(0, dash));
    const i32 last = dash == std::string::npos ? first : number(text.substr(dash + 1));
    if (first > last || last >= end)
      fail<ConfigError>(where_, "got {} to {} in \"{}\", expected numbers from 0 to {}", first, last, text_,
                        end - 1);
    return {first, last};
  }

  i32 number(const std::string& text) const {
    i32 value = -1;
    const auto [rest, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || rest != text.data() + text.size() || value < 0) wrong();
    return value;
  }

  void what(const std::string& text, Entry& entry) const {
    if (text == "saved") {
      if (!entry.devices.empty())
        fail<ConfigError>(
            where_, "got \"{}\", but saved holds for all devices of a layer: expected no devices", text_);
      entry.of_parameters = false;
      entry.saved = Residence::kHost;
      return;
    }
    const std::size_t dot = text.find('.');
    const std::string name = text.substr(0, dot);
    std::string kept = dot == std::string::npos ? "weights" : text.substr(dot + 1);
    if (dot == std::string::npos &&
        (name == "all" || name == "none" || name == "weights" || name == "optimizer")) {
      kept = name == "all" ? "weights" : name;
    } else {
      entry.parts = {part(name)};
    }
    if (kept == "none" && entry.devices.empty()) entry.saved = Residence::kDevice;
    if (kept == "none") return;
    if (kept != "weights" && kept != "optimizer") wrong();
    entry.home.optimizer = Residence::kHost;
    if (kept == "weights") entry.home.weights = Residence::kHost;
  }

  UnitPart part(const std::string& name) const {
    const std::vector<std::string>& names = EnumNames<UnitPart>::names();
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) wrong();
    return static_cast<UnitPart>(found - names.begin());
  }

  [[noreturn]] void wrong() const {
    fail<ConfigError>(where_, "got \"{}\", expected {}", text_, kExpectedEntries);
  }

  const ModelConfig& model_;
  const Cluster& cluster_;
  const std::string &text_, &where_;
};

void apply(const Entry& entry, Plan& plan) {
  for (Group& group : plan.groups) {
    // A search makes plans of the first layers alone.
    const i32 last = std::min(entry.last_layer, static_cast<i32>(group.layers.size()) - 1);
    for (i32 l = entry.first_layer; entry.saved && l <= last; ++l) {
      LayerPlacement& layer = group.layers[idx(l)];
      const bool keeps = layer.recompute && keeps_activations(*layer.recompute);
      layer.saved = keeps ? Residence::kDevice : *entry.saved;
    }
    if (!entry.of_parameters) continue;
    for (const UnitPart part : entry.parts) {
      std::optional<Home> value;
      if (entry.home.optimizer != Residence::kDevice) {
        value.emplace(entry.home);
        value->devices = entry.devices;
      }
      if (part == UnitPart::kEmbed) group.embed_home = value;
      if (part == UnitPart::kHead) group.head_home = value;
      for (i32 l = entry.first_layer; l <= last; ++l) {
        LayerPlacement& layer = group.layers[idx(l)];
        if (part == UnitPart::kAttention) layer.attention_home = value;
        if (part == UnitPart::kExperts && !layer.experts.empty()) layer.experts_home = value;
      }
    }
  }
}

template <class Is>
bool any_home(const Plan& plan, const Is& is) {
  const auto asks = [&](const std::optional<Home>& home) { return home && is(*home); };
  return std::any_of(plan.groups.begin(), plan.groups.end(), [&](const Group& group) {
    return asks(group.embed_home) || asks(group.head_home) ||
           std::any_of(group.layers.begin(), group.layers.end(), [&](const LayerPlacement& layer) {
             return asks(layer.attention_home) || asks(layer.experts_home);
           });
  });
}

bool saves_on_hosts(const Plan& plan) {
  return std::any_of(plan.groups.begin(), plan.groups.end(), [](const Group& group) {
    return std::any_of(group.layers.begin(), group.layers.end(),
                       [](const LayerPlacement& layer) { return layer.saved == Residence::kHost; });
  });
}

bool wants_hosts(const Plan& plan) {
  return saves_on_hosts(plan) ||
         any_home(plan, [](const Home& home) { return home.optimizer == Residence::kHost; });
}

}  // namespace

void offload(Plan& plan, const ModelConfig& model, const Cluster& cluster,
             const std::vector<std::string>& entries, const std::string& where) {
  for (const std::string& entry : entries) apply(Parser(model, cluster, entry, where).parse(), plan);
  if (!wants_hosts(plan) || uses_hosts(plan)) return;
  plan.hosts = nodes_of_devices(cluster);
}

void shard_weights(Plan& plan) {
  const Home sharded{.weights = Residence::kSharded, .optimizer = Residence::kSharded};
  plan.shard_optimizer = true;
  for (Group& group : plan.groups) {
    group.embed_home = group.head_home = sharded;
    for (LayerPlacement& layer : group.layers) layer.attention_home = sharded;
  }
}

bool shards_weights(const Plan& plan) {
  return any_home(plan, [](const Home& home) { return home.weights == Residence::kSharded; });
}

}  // namespace hetermoe
