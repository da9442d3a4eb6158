#include <algorithm>
#include <numeric>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/integer_split.h"

// Experts of all layers together so that the latest device finishes as early as possible, other work
// included, within memory. Every expert counts as one of load 1.
namespace hetermoe {
namespace {

constexpr std::size_t kMaxParts = 8;  ///< of equal devices, beyond which equal counts are not looked for

class Leveler {
 public:
  explicit Leveler(const BalanceInput& input) : devices_(input.devices) {
    for (const std::vector<double>& load : input.load) experts_.push_back(static_cast<i64>(load.size()));
    for (const BalanceDevice& device : devices_) {
      busy_.push_back(device.busy);
      cost_.push_back(device.unit_s);
      room_.push_back(device.owns ? device.room : 0);
    }
    set_totals();
  }

  std::vector<LayerOwners> place(bool by_part) const {
    std::vector<std::vector<i64>> counts;
    if (by_part) counts = equal_within_parts();
    if (counts.empty()) counts = spread(experts_, totals_);
    std::vector<LayerOwners> out;
    for (const std::vector<i64>& of_layer : counts) out.push_back(owners_in_runs(devices_, of_layer));
    return out;
  }

 private:
  void set_totals() {
    const i64 units = std::accumulate(experts_.begin(), experts_.end(), i64{0});
    totals_ = balance_units(units, busy_, cost_, room_);
    i64 missing = units - std::accumulate(totals_.begin(), totals_.end(), i64{0});
    HM_CHECK(missing == 0 || std::any_of(devices_.begin(), devices_.end(),
                                         [](const BalanceDevice& device) { return device.owns; }),
             "no device may own experts");
    for (std::size_t i = 0; missing > 0; i = (i + 1) % totals_.size()) {
      if (devices_[i].owns) ++totals_[i], --missing;
    }
  }

  /// Neighbours in the list that have the same work, speed and room.
  struct Parts {
    std::vector<i64> of_device;  ///< [devices] -1 = no room
    std::vector<i64> size, total, room;
    std::vector<double> cost;
  };

  Parts find_parts() const {
    Parts parts;
    parts.of_device.assign(devices_.size(), -1);
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (room_[i] == 0) continue;
      const bool same = i > 0 && parts.of_device[i - 1] >= 0 && busy_[i] == busy_[i - 1] &&
                        cost_[i] == cost_[i - 1] && room_[i] == room_[i - 1];
      if (!same) {
        parts.size.push_back(0), parts.total.push_back(0);
        parts.cost.push_back(cost_[i]), parts.room.push_back(room_[i]);
      }
      ++parts.size.back();
      parts.total.back() += totals_[i];
      parts.of_device[i] = static_cast<i64>(parts.size.size()) - 1;
    }
    return parts;
  }

  /// [layers][devices]. Empty when no whole numbers add up, or when they do not fit.
  std::vector<std::vector<i64>> equal_within_parts() const {
    Parts parts = find_parts();
    if (experts_.empty() || parts.size.empty() || parts.size.size() > kMaxParts) return {};
    std::vector<std::vector<i64>> out;
    for (const std::vector<i64>& of_part :
         equal_counts(static_cast<i64>(experts_.size()), experts_[0], parts.size, parts.total, parts.cost)) {
      out.emplace_back();
      for (const i64 part : parts.of_device) out.back().push_back(part < 0 ? 0 : of_part[idx(part)]);
      for (std::size_t p = 0; p < parts.size.size(); ++p) parts.room[p] -= of_part[p];
    }
    const bool fits = std::all_of(parts.room.begin(), parts.room.end(), [](i64 left) { return left >= 0; });
    return fits ? out : std::vector<std::vector<i64>>{};
  }

  const std::vector<BalanceDevice>& devices_;
  std::vector<i64> experts_;         // [layers]
  std::vector<double> busy_, cost_;  // [devices] cost: time of an expert of load 1
  std::vector<i64> room_, totals_;   // [devices] experts of all layers
};

}  // namespace

/// What a layer leaves over or short, so that equal devices own equally many, other layers even out.
std::vector<LayerOwners> place_level_by_part(const BalanceInput& input) { return Leveler(input).place(true); }

std::vector<LayerOwners> place_level_by_device(const BalanceInput& input) {
  return Leveler(input).place(false);
}

}  // namespace hetermoe
