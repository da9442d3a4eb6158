#include "hetermoe/planner/sketch.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <queue>

#include "hetermoe/model/op_cost.h"
#include "hetermoe/plan/strategies.h"
#include "hetermoe/planner/memory_estimate.h"

namespace hetermoe {
namespace {

double real(i64 value) { return static_cast<double>(value); }

/// Sequences of a step per attention device of each class.
std::vector<double> quotas(const Rates& rates, const Sketch& sketch, const SketchGroup& group) {
  std::vector<double> weights(rates.num_classes(), 0);
  double sum = 0;
  for (std::size_t c = 0; c < weights.size(); ++c) {
    if (group.attention[c] == 0) continue;
    weights[c] = group.by_speed ? 1 / rates.attention(c, 1, sketch.recompute).sum() : 1;
    sum += weights[c] * real(group.attention[c]);
  }
  for (double& weight : weights) weight *= real(group.sequences) / sum;
  return weights;
}

double in_flight(const Sketch& sketch, const SketchGroup& group) {
  return real(sketch.window > 0 ? std::min<i64>(sketch.window, group.microbatches) : group.microbatches);
}

class PartMaker {
 public:
  PartMaker(const Rates& rates, const Sketch& sketch, const SketchGroup& group)
      : rates_(rates), sketch_(sketch), group_(group), model_(rates.request().model) {
    element_ = bytes_of(rates.request().dtype);
    state_ = state_bytes_per_parameter(element_).total();
    options_ = {element_, sketch.recompute != Recompute::kOff, false, rates.request().seq_len};
    microbatch_ = real(group.sequences) / real(group.microbatches);
    copies_ =
        microbatch_ * real(rates.request().seq_len * model_.top_k) / std::max(1.0, real(model_.num_experts));
  }

  Part make(std::size_t cls, i64 count, double quota) const {
    Part part;
    part.cls = cls;
    part.count = real(count);
    part.attention = quota > 0;
    part.experts = quota <= 0 || group_.mixed;
    const double times = real(group_.microbatches);
    part.sequences = quota / times;
    part.most = std::ceil(quota / times - 1e-9);
    if (part.attention) add_attention(part);
    part.unit_s = times * rates_.experts(cls, copies_, 1, sketch_.recompute).sum();
    part.unit = real(rates_.counts().expert) * state_ +
                in_flight(sketch_, group_) * copies_ * expert_saved_bytes(model_, options_);
    // The op on the experts of one layer, which may be one more than the mean.
    const Bytes op = copies_ * working_set();
    part.unit += op / std::max(1.0, real(model_.num_moe_layers()));
    part.fixed += part.experts ? op : 0;
    return part;
  }

 private:
  void add_attention(Part& part) const {
    // A device with less than a sequence per microbatch has whole ones in some of them.
    const double in_one = std::max(1.0, part.sequences), share = part.sequences / in_one;
    const double times = real(group_.microbatches) * share;
    part.attention_s =
        sketch_.bias * times *
        (real(model_.num_layers) * rates_.attention(part.cls, in_one, sketch_.recompute).sum() +
         rates_.head(part.cls, in_one));
    const double tokens = part.most * real(rates_.request().seq_len);
    const i64 moe = first_moe();
    part.fixed = rates_.attention_parameters() * state_;
    part.fixed += in_flight(sketch_, group_) * tokens *
                  (real(model_.num_layers) * attention_saved_bytes(model_, moe, options_) +
                   row_bytes(model_, element_));
    const Bytes attention = attention_work_bytes(model_, moe, options_) +
                            (2 + 2 * real(model_.top_k)) * row_bytes(model_, element_);
    part.fixed += tokens * std::max(attention, head_work_bytes(model_, element_));
  }
  Bytes working_set() const {
    return expert_work_bytes(model_, element_) * 1.5 / sketch_.chunks + 3 * row_bytes(model_, element_);
  }
  i64 first_moe() const {
    i64 layer = 0;
    while (layer + 1 < model_.num_layers && !model_.is_moe(layer)) ++layer;
    return layer;
  }
  const Rates& rates_;
  const Sketch& sketch_;
  const SketchGroup& group_;
  const ModelConfig& model_;
  Bytes element_ = 2, state_ = 16;
  ActivationOptions options_;
  double microbatch_ = 0, copies_ = 0;
};

std::vector<Part> make_parts(const Rates& rates, const Sketch& sketch, const SketchGroup& group) {
  const PartMaker maker(rates, sketch, group);
  const std::vector<double> quota = quotas(rates, sketch, group);
  std::vector<Part> parts;
  for (std::size_t c = 0; c < rates.num_classes(); ++c) {
    if (group.attention[c] > 0) parts.push_back(maker.make(c, group.attention[c], quota[c]));
    const i64 rest = group.count[c] - group.attention[c];
    if (rest > 0) parts.push_back(maker.make(c, rest, 0));
  }
  return parts;
}

double capacity(const Rates& rates, const Part& part, double squeeze) {
  const Bytes left = (rates.usable_memory(part.cls) - part.fixed) * squeeze;
  return part.experts && left > 0 ? left / part.unit : 0;
}

constexpr int kPourSteps = 16;  ///< halvings of the finish that is looked for: to 2e-5 of its upper bound

/// Experts of all layers, as real numbers: every owner is filled to the same finish, or to its memory.
bool pour(const Rates& rates, std::vector<Part>& parts, double units) {
  std::vector<double> room;
  double total = 0, low = 0, high = 0;
  for (const Part& part : parts) {
    room.push_back(capacity(rates, part, 1));
    total += part.count * room.back();
    high = std::max(high, part.attention_s + units * part.unit_s);
  }
  if (total < units) return false;
  const auto filled = [&](Seconds finish) {
    double sum = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const double wanted = std::max(0.0, finish - parts[i].attention_s) / parts[i].unit_s;
      parts[i].owned = std::min(room[i], wanted);
      sum += parts[i].count * parts[i].owned;
    }
    return sum;
  };
  for (int step = 0; step < kPourSteps; ++step)
    (filled((low + high) / 2) < units ? low : high) = (low + high) / 2;
  filled(high);
  return true;
}

Shortage shortage_of(const Rates& rates, const std::vector<Part>& parts, double units) {
  double owners = 0;
  for (const Part& part : parts) owners += part.experts ? part.count : 0;
  Shortage worst;
  double excess = 0;
  for (const Part& part : parts) {
    const Bytes need = part.fixed + (part.experts ? units / owners * part.unit : 0);
    const double ratio = need / std::max(1.0, rates.usable_memory(part.cls));
    if (ratio > excess)
      worst = {part.cls, need, part.attention, part.most, part.experts ? units / owners : 0}, excess = ratio;
  }
  return worst;
}

}  // namespace

std::string to_string(const Rates& rates, const Shortage& shortage) {
  constexpr Bytes kGiB = 1024.0 * 1024 * 1024;
  const DeviceClass& cls = rates.classes()[shortage.cls];
  const DeviceType& type = rates.request().cluster.types[static_cast<std::size_t>(cls.type)];
  std::string cause;
  if (shortage.attention)
    cause += fmt::format(" at {:.0f} sequence{}", shortage.sequences, shortage.sequences > 1 ? "s" : "");
  if (shortage.experts > 0) {
    cause += fmt::format(" {} {:.0f} expert{}", shortage.attention ? "with" : "for",
                         std::ceil(shortage.experts), shortage.experts > 1 ? "s" : "");
  }
  return fmt::format("device {} ({} {:.0f} GiB) needs {:.1f} GiB{}", cls.devices.front(), type.name,
                     type.memory_gib, shortage.need / kGiB, cause);
}

std::vector<Part> weigh(const Rates& rates, const Sketch& sketch, const SketchGroup& group,
                        std::optional<Shortage>& shortage) {
  const ModelConfig& model = rates.request().model;
  std::vector<Part> parts = make_parts(rates, sketch, group);
  const double units = real(model.num_moe_layers() * model.num_experts);
  const bool too_full = std::any_of(parts.begin(), parts.end(), [&](const Part& part) {
    return part.fixed > rates.usable_memory(part.cls);
  });
  if (too_full || (units > 0 && !pour(rates, parts, units))) {
    shortage = shortage_of(rates, parts, units);
    return parts;
  }
  for (Part& part : parts) part.owned /= std::max(1.0, real(model.num_moe_layers()));
  return parts;
}

std::vector<i64> balance_units(i64 units, const std::vector<double>& load, const std::vector<double>& cost,
                               const std::vector<i64>& capacity) {
  std::vector<i64> given(load.size(), 0);
  using Entry = std::tuple<double, i64, std::size_t>;  // finish with one more, units so far, bin
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> next;
  for (std::size_t i = 0; i < load.size(); ++i) {
    if (capacity[i] > 0) next.emplace(load[i] + cost[i], 0, i);
  }
  for (; units > 0 && !next.empty(); --units) {
    const std::size_t i = std::get<2>(next.top());
    next.pop();
    if (++given[i] < capacity[i]) next.emplace(load[i] + real(given[i] + 1) * cost[i], given[i], i);
  }
  return given;
}

std::vector<std::vector<i64>> spread(const std::vector<i64>& rows, const std::vector<i64>& columns) {
  const double total = std::max(1.0, real(std::accumulate(rows.begin(), rows.end(), i64{0})));
  std::vector<std::vector<i64>> out;
  std::vector<i64> given(columns.size(), 0);
  i64 cumulative = 0;
  for (const i64 row : rows) {
    cumulative += row;
    std::vector<i64> parts(columns.size(), 0);
    std::vector<std::pair<double, std::size_t>> wanting;
    i64 left = row;
    for (std::size_t j = 0; j < columns.size(); ++j) {
      const double wanted = real(columns[j]) * real(cumulative) / total - real(given[j]);
      parts[j] = std::clamp<i64>(static_cast<i64>(std::floor(wanted + 1e-9)), 0,
                                 std::min(left, columns[j] - given[j]));
      left -= parts[j];
      wanting.emplace_back(real(parts[j]) - wanted, j);
    }
    std::stable_sort(wanting.begin(), wanting.end());
    for (std::size_t i = 0; left > 0; i = (i + 1) % wanting.size()) {
      const std::size_t j = wanting[i].second;
      if (given[j] + parts[j] < columns[j]) ++parts[j], --left;
    }
    for (std::size_t j = 0; j < columns.size(); ++j) given[j] += parts[j];
    out.push_back(std::move(parts));
  }
  return out;
}

namespace {

/// Finds how many experts a device of each part owns in one layer.
class LayerCounts {
 public:
  LayerCounts(i64 experts, const std::vector<i64>& sizes, const std::vector<double>& unit_s)
      : experts_(experts), sizes_(sizes), unit_s_(unit_s), counts_(sizes.size()) {}

  /// wanted: [parts] experts of the whole part. Empty when no whole numbers add up.
  std::vector<i64> nearest(const std::vector<double>& wanted) {
    wanted_ = &wanted;
    best_.clear();
    try_part(0, experts_, 0);
    return best_;
  }

 private:
  static constexpr i64 kReach = 1;  ///< beyond the two whole numbers next to the wanted one

  void try_part(std::size_t part, i64 left, double cost) {
    if (!best_.empty() && cost >= least_) return;
    const double exact = (*wanted_)[part] / real(sizes_[part]);
    if (part + 1 == sizes_.size()) {
      counts_[part] = left / sizes_[part];
      if (left % sizes_[part] != 0) return;
      cost += cost_of(part, exact);
      if (!best_.empty() && cost >= least_) return;
      best_ = counts_;
      least_ = cost;
      return;
    }
    const i64 floor = static_cast<i64>(std::floor(exact));
    for (i64 count = std::max<i64>(0, floor - kReach); count <= floor + 1 + kReach; ++count) {
      if (count * sizes_[part] > left) break;
      counts_[part] = count;
      try_part(part + 1, left - count * sizes_[part], cost + cost_of(part, exact));
    }
  }
  double cost_of(std::size_t part, double exact) const {
    const double off = unit_s_[part] * (real(counts_[part]) - exact);
    return real(sizes_[part]) * off * off;
  }

  i64 experts_;
  const std::vector<i64>& sizes_;
  const std::vector<double>& unit_s_;
  const std::vector<double>* wanted_ = nullptr;
  std::vector<i64> counts_, best_;
  double least_ = 0;
};

}  // namespace

std::vector<std::vector<i64>> equal_counts(i64 layers, i64 experts, const std::vector<i64>& sizes,
                                           const std::vector<i64>& totals,
                                           const std::vector<double>& unit_s) {
  LayerCounts counts(experts, sizes, unit_s);
  std::vector<std::vector<i64>> out;
  std::vector<i64> given(sizes.size(), 0);
  std::vector<double> wanted(sizes.size());
  for (i64 l = 0; l < layers; ++l) {
    for (std::size_t p = 0; p < sizes.size(); ++p)
      wanted[p] = real(totals[p]) * real(l + 1) / real(layers) - real(given[p]);
    out.push_back(counts.nearest(wanted));
    if (out.back().empty()) return {};
    for (std::size_t p = 0; p < sizes.size(); ++p) given[p] += out.back()[p] * sizes[p];
  }
  return out;
}

namespace {

/// Rounds one group.
class GroupMaker {
 public:
  GroupMaker(const Rates& rates, const Sketch& sketch, const SketchGroup& group, double squeeze)
      : rates_(rates), sketch_(sketch), shape_(group), squeeze_(squeeze), model_(rates.request().model) {}

  Group make() {
    list_devices();
    Group group;
    group.devices = devices_;
    std::sort(group.devices.begin(), group.devices.end());
    group.microbatches = proportional_split(
        shape_.sequences, std::vector<double>(static_cast<std::size_t>(shape_.microbatches), 1));
    const Shares shares = make_shares(group.microbatches);
    group.embed = group.head = shares;
    const std::vector<std::vector<i64>> counts = expert_counts();
    std::size_t moe = 0;
    for (i64 l = 0; l < model_.num_layers; ++l) {
      LayerPlacement layer{shares, {}};
      if (model_.is_moe(l)) layer.experts = owners(counts[moe++]);
      group.layers.push_back(std::move(layer));
    }
    return group;
  }

 private:
  void list_devices() {
    std::optional<Shortage> shortage;
    const std::vector<double> quota = quotas(rates_, sketch_, shape_);
    for (const Part& part : weigh(rates_, sketch_, shape_, shortage)) {
      for (const DeviceId device : devices_of(part)) {
        devices_.push_back(device);
        parts_.push_back(part);
        if (part.attention) {
          attention_.push_back(device);
          weights_.push_back(quota[part.cls]);
        }
      }
    }
  }

  /// In turn over their nodes: what not all of them do is then done on all nodes, by whose ports it goes.
  std::vector<DeviceId> devices_of(const Part& part) const {
    const std::vector<DeviceId>& all = rates_.classes()[part.cls].devices;
    const i64 begin = shape_.first[part.cls] + (part.attention ? 0 : shape_.attention[part.cls]);
    std::map<NodeId, i64> on_node;
    std::vector<std::pair<i64, DeviceId>> ranked;
    for (i64 i = begin; i < begin + static_cast<i64>(part.count); ++i) {
      const DeviceId device = all[static_cast<std::size_t>(i)];
      ranked.emplace_back(on_node[rates_.request().cluster.devices[static_cast<std::size_t>(device)].node]++,
                          device);
    }
    std::sort(ranked.begin(), ranked.end());
    std::vector<DeviceId> devices;
    for (const auto& [rank, device] : ranked) devices.push_back(device);
    return devices;
  }

  /// Sequences of each device over the step in whole numbers, then spread over the microbatches.
  Shares make_shares(const std::vector<i64>& microbatches) {
    const std::vector<i64> totals = proportional_split(shape_.sequences, weights_);
    Shares rows;
    for (const std::vector<i64>& parts : spread(microbatches, totals)) {
      ShareRow row;
      for (std::size_t i = 0; i < parts.size(); ++i) row.push_back({attention_[i], parts[i]});
      rows.push_back(std::move(row));
    }
    if (std::all_of(rows.begin(), rows.end(), [&](const ShareRow& row) { return row == rows[0]; }))
      rows.resize(1);
    std::size_t next = 0;
    for (Part& part : parts_) {
      if (!part.attention) continue;
      part.attention_s *= real(totals[next]) / std::max(1e-9, weights_[next]);
      ++next;
    }
    return rows;
  }

  std::vector<std::vector<i64>> expert_counts() const {
    std::vector<double> load, cost;
    std::vector<i64> room;
    for (const Part& part : parts_) {
      load.push_back(part.attention_s);
      cost.push_back(part.unit_s);
      room.push_back(static_cast<i64>(capacity(rates_, part, squeeze_)));
    }
    const i64 units = model_.num_moe_layers() * model_.num_experts;
    std::vector<i64> totals = balance_units(units, load, cost, room);
    // Without room for all, the plan is made all the same: the memory check names the device.
    i64 missing = units - std::accumulate(totals.begin(), totals.end(), i64{0});
    for (std::size_t i = 0; missing > 0; i = (i + 1) % totals.size()) {
      if (parts_[i].experts) ++totals[i], --missing;
    }
    if (sketch_.rounding == Rounding::kByPart) {
      std::vector<std::vector<i64>> counts = equal_within_parts(totals, load, cost, room);
      if (!counts.empty()) return counts;
    }
    return spread(std::vector<i64>(static_cast<std::size_t>(model_.num_moe_layers()), model_.num_experts),
                  totals);
  }

  /// [MoE layers][devices]; empty when no whole numbers add up, or they do not fit.
  std::vector<std::vector<i64>> equal_within_parts(const std::vector<i64>& totals,
                                                   const std::vector<double>& load,
                                                   const std::vector<double>& cost,
                                                   const std::vector<i64>& room) const {
    std::vector<i64> part_of(totals.size(), -1), sizes, part_totals, part_room;
    std::vector<double> part_cost;
    for (std::size_t i = 0; i < totals.size(); ++i) {
      if (room[i] == 0) continue;
      const bool same = i > 0 && part_of[i - 1] >= 0 && load[i] == load[i - 1] && cost[i] == cost[i - 1] &&
                        room[i] == room[i - 1];
      if (!same) {
        sizes.push_back(0), part_totals.push_back(0);
        part_cost.push_back(cost[i]), part_room.push_back(room[i]);
      }
      ++sizes.back();
      part_totals.back() += totals[i];
      part_of[i] = static_cast<i64>(sizes.size()) - 1;
    }
    if (sizes.empty() || sizes.size() > kMaxParts) return {};
    std::vector<std::vector<i64>> out;
    for (const std::vector<i64>& of_part :
         equal_counts(model_.num_moe_layers(), model_.num_experts, sizes, part_totals, part_cost)) {
      out.emplace_back();
      for (const i64 part : part_of)
        out.back().push_back(part < 0 ? 0 : of_part[static_cast<std::size_t>(part)]);
      for (std::size_t p = 0; p < sizes.size(); ++p) part_room[p] -= of_part[p];
    }
    const bool fits = std::all_of(part_room.begin(), part_room.end(), [](i64 left) { return left >= 0; });
    return fits ? out : std::vector<std::vector<i64>>{};
  }

  std::vector<std::vector<ExpertOwner>> owners(const std::vector<i64>& counts) const {
    std::vector<std::vector<ExpertOwner>> out;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      for (i64 e = 0; e < counts[i]; ++e) out.push_back({{devices_[i], 1}});
    }
    return out;
  }

  static constexpr std::size_t kMaxParts = 8;
  const Rates& rates_;
  const Sketch& sketch_;
  const SketchGroup& shape_;
  double squeeze_;
  const ModelConfig& model_;
  std::vector<DeviceId> devices_, attention_;
  std::vector<double> weights_;  // [attention_]
  std::vector<Part> parts_;      // [devices_]
};

}  // namespace

bool alike(const SketchGroup& a, const SketchGroup& b) {
  return a.count == b.count && a.attention == b.attention && a.by_speed == b.by_speed && a.mixed == b.mixed &&
         a.sequences == b.sequences && a.microbatches == b.microbatches;
}

namespace {

/// The group of `from` made for the devices of `to`, which is alike.
class Translation {
 public:
  Translation(const Rates& rates, const SketchGroup& from, const SketchGroup& to)
      : device_(rates.request().cluster.devices.size(), -1) {
    for (std::size_t c = 0; c < from.count.size(); ++c) {
      const std::vector<DeviceId>& all = rates.classes()[c].devices;
      for (i64 i = 0; i < from.count[c]; ++i) {
        device_[static_cast<std::size_t>(all[static_cast<std::size_t>(from.first[c] + i)])] =
            all[static_cast<std::size_t>(to.first[c] + i)];
      }
    }
  }

  Group of(const Group& group) const {
    Group out = group;
    for (DeviceId& device : out.devices) translate(device);
    std::sort(out.devices.begin(), out.devices.end());
    translate(out.embed);
    translate(out.head);
    for (LayerPlacement& layer : out.layers) {
      translate(layer.attention);
      for (std::vector<ExpertOwner>& owners : layer.experts) {
        for (ExpertOwner& owner : owners) translate(owner.device);
      }
    }
    return out;
  }

 private:
  void translate(DeviceId& device) const { device = device_[static_cast<std::size_t>(device)]; }
  void translate(Shares& shares) const {
    for (ShareRow& row : shares) {
      for (Share& share : row) translate(share.device);
    }
  }

  std::vector<DeviceId> device_;
};

}  // namespace

Plan realize(const Rates& rates, const Sketch& sketch, double squeeze) {
  Plan plan = blank_plan(rates.request(), sketch.recompute);
  plan.strategy = "planned";
  plan.window = sketch.window;
  plan.chunks = sketch.chunks;
  for (std::size_t g = 0; g < sketch.groups.size(); ++g) {
    const SketchGroup& group = sketch.groups[g];
    if (g > 0 && alike(group, sketch.groups[g - 1])) {
      plan.groups.push_back(Translation(rates, sketch.groups[g - 1], group).of(plan.groups[g - 1]));
    } else {
      plan.groups.push_back(GroupMaker(rates, sketch, group, squeeze).make());
    }
  }
  return plan;
}

}  // namespace hetermoe
