#include "hetermoe/sim/migration_memory.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"

namespace hetermoe {
namespace {

/// The units of one part of one layer lie in storages of their own.
struct Shelf {
  i32 layer = -1;
  UnitPart part = UnitPart::kEmbed;
};

/// What devices hold under a plan.
class Held {
 public:
  Held(const Plan& plan, const ModelConfig& model, const MoveOptions& options)
      : plan_(plan), model_(model), options_(options), units_(units(model)), holders_(holders(plan, model)) {}

  Bytes all(DeviceId device) const { return sum(device, {0, units_.size()}); }
  Bytes on(const Shelf& shelf, DeviceId device) const { return sum(device, range_of(shelf)); }
  /// How the units of a shelf lie follows from who else holds them.
  bool lies_alike(const Held& other, const Shelf& shelf, DeviceId device) const {
    const Range range = range_of(shelf);
    for (std::size_t u = range.first; u < range.last; ++u) {
      if (!is_here(u, device) && !other.is_here(u, device)) continue;
      if (holders_[u] != other.holders_[u]) return false;
    }
    return true;
  }

 private:
  struct Range {
    std::size_t first = 0, last = 0;
  };
  Range range_of(const Shelf& shelf) const {
    const auto below = [](const Unit& unit, const Shelf& wanted) {
      return std::pair(unit.layer, unit.part) < std::pair(wanted.layer, wanted.part);
    };
    const auto above = [](const Shelf& wanted, const Unit& unit) {
      return std::pair(wanted.layer, wanted.part) < std::pair(unit.layer, unit.part);
    };
    const auto first = std::lower_bound(units_.begin(), units_.end(), shelf, below);
    const auto last = std::upper_bound(first, units_.end(), shelf, above);
    return {.first = idx(first - units_.begin()), .last = idx(last - units_.begin())};
  }
  bool is_here(std::size_t unit, DeviceId device) const {
    return std::binary_search(holders_[unit].begin(), holders_[unit].end(), device);
  }
  enum class Number { kTrained, kFrozen, kAdapter };

  /// Of one number of a unit, with its part of what is divided and without what is on hosts. Adapters stay on
  /// the device when their unit's weights are on a host.
  Bytes bytes_of_number(std::size_t unit, const StateBytes& each, Number number) const {
    const Home home = home_of(plan_.groups[0], units_[unit].part, units_[unit].layer);
    const auto replicas = real(holders_[unit].size());
    const bool of_some = !home.devices.empty();
    const bool holds = !of_some || std::find(home.devices.begin(), home.devices.end(), holders_[unit][0]) !=
                                       home.devices.end();
    const Bytes kept = each.total(plan_.shard_optimizer ? replicas : 1);
    if (holds && home.weights == Residence::kHost) return number == Number::kAdapter ? kept : 0;
    if (number == Number::kFrozen)
      return holds && home.weights == Residence::kSharded ? each.weights / replicas : each.weights;
    if (holds && home.optimizer == Residence::kHost) return each.weights_and_gradients();
    if (holds && home.weights == Residence::kSharded) return each.total() / replicas;
    return kept;
  }
  Bytes sum(DeviceId device, const Range& range) const {
    const StateBytes each = state_bytes_of(plan_, device);
    Bytes bytes = 0;
    for (std::size_t u = range.first; u < range.last; ++u) {
      if (!is_here(u, device)) continue;
      const Lora* lora = options_.lora.get();
      const bool frozen =
          lora != nullptr || std::binary_search(options_.frozen.begin(), options_.frozen.end(), units_[u]);
      bytes += real(num_parameters(model_, units_[u])) *
               bytes_of_number(u, each, frozen ? Number::kFrozen : Number::kTrained);
      if (lora != nullptr)
        bytes += real(lora->numbers_of(units_[u])) * bytes_of_number(u, each, Number::kAdapter);
    }
    return bytes;
  }

  const Plan& plan_;
  const ModelConfig& model_;
  const MoveOptions& options_;
  std::vector<Unit> units_;  // ascending
  Holders holders_;
};

std::vector<UnitPart> parts_of_layer(i32 layer, const ModelConfig& model) {
  if (layer < 0) return {UnitPart::kEmbed};
  if (layer == static_cast<i32>(model.num_layers)) return {UnitPart::kHead};
  return {UnitPart::kAttention, UnitPart::kExperts};
}

}  // namespace

std::vector<Bytes> migration_memory(const Plan& before, const Plan& after, const ModelConfig& model,
                                    const Cluster& cluster, const MoveOptions& options) {
  const Held old_held(before, model, options), new_held(after, model, options);
  const UnitMoves moves = moves_between(before, after, model, cluster, options);
  std::vector<Bytes> most;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    Bytes now = old_held.all(d);
    most.push_back(now);
    for (i32 layer = -1; layer <= static_cast<i32>(model.num_layers); ++layer) {
      Bytes comes = 0, goes = 0, arrives = 0;
      for (const UnitPart part : parts_of_layer(layer, model)) {
        if (old_held.lies_alike(new_held, {layer, part}, d)) continue;
        comes += new_held.on({layer, part}, d);
        goes += old_held.on({layer, part}, d);
      }
      for (const UnitMove& move : moves.moves) {
        if (move.unit.layer == layer && move.to == d) arrives += move.bytes;
      }
      most.back() = std::max(most.back(), now + comes + arrives);
      now += comes - goes;
    }
  }
  return most;
}

}  // namespace hetermoe
