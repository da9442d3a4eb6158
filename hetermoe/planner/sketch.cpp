#include "hetermoe/planner/sketch.h"

#include <algorithm>
#include <cmath>
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
    const double largest = copies_ * real(model_.num_experts);
    part.fixed +=
        part.experts && part.count > 0 ? largest / real(std::max<i64>(1, num_owners())) * working_set() : 0;
    part.unit_s = times * rates_.experts(cls, copies_, 1, sketch_.recompute).sum();
    part.unit = real(rates_.counts().expert) * state_ +
                in_flight(sketch_, group_) * copies_ * expert_saved_bytes(model_, options_);
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
  i64 num_owners() const {
    i64 owners = 0;
    for (std::size_t c = 0; c < group_.count.size(); ++c) {
      owners += group_.mixed ? group_.count[c] : group_.count[c] - group_.attention[c];
    }
    return owners;
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
  for (int step = 0; step < 40; ++step) (filled((low + high) / 2) < units ? low : high) = (low + high) / 2;
  filled(high);
  return true;
}

std::string lack_of_memory(const Rates& rates, const std::vector<Part>& parts, double units) {
  constexpr Bytes kGiB = 1024.0 * 1024 * 1024;
  double owners = 0;
  for (const Part& part : parts) owners += part.experts ? part.count : 0;
  const Part* worst = nullptr;
  double excess = 0;
  for (const Part& part : parts) {
    const Bytes need = part.fixed + (part.experts ? units / owners * part.unit : 0);
    const double ratio = need / std::max(1.0, rates.usable_memory(part.cls));
    if (ratio > excess) worst = &part, excess = ratio;
  }
  const DeviceClass& cls = rates.classes()[worst->cls];
  const DeviceType& type = rates.request().cluster.types[static_cast<std::size_t>(cls.type)];
  const Bytes need = worst->fixed + (worst->experts ? units / owners * worst->unit : 0);
  const std::string cause =
      worst->attention ? fmt::format(" at {:.0f} sequence{}", worst->most, worst->most > 1 ? "s" : "")
                       : fmt::format(" for {:.0f} experts", units / owners);
  return fmt::format("device {} ({} {:.0f} GiB) needs {:.1f} GiB{}", cls.devices.front(), type.name,
                     type.memory_gib, need / kGiB, cause);
}

}  // namespace

std::vector<Part> weigh(const Rates& rates, const Sketch& sketch, const SketchGroup& group,
                        std::string& infeasible) {
  const ModelConfig& model = rates.request().model;
  std::vector<Part> parts = make_parts(rates, sketch, group);
  const double units = real(model.num_moe_layers() * model.num_experts);
  const bool too_full = std::any_of(parts.begin(), parts.end(), [&](const Part& part) {
    return part.fixed > rates.usable_memory(part.cls);
  });
  if (too_full || (units > 0 && !pour(rates, parts, units))) {
    infeasible = lack_of_memory(rates, parts, units);
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
    std::string infeasible;
    const std::vector<double> quota = quotas(rates_, sketch_, shape_);
    for (const Part& part : weigh(rates_, sketch_, shape_, infeasible)) {
      const std::vector<DeviceId>& all = rates_.classes()[part.cls].devices;
      const i64 begin = shape_.first[part.cls] + (part.attention ? 0 : shape_.attention[part.cls]);
      for (i64 i = begin; i < begin + static_cast<i64>(part.count); ++i) {
        devices_.push_back(all[static_cast<std::size_t>(i)]);
        parts_.push_back(part);
        if (part.attention) {
          attention_.push_back(devices_.back());
          weights_.push_back(quota[part.cls]);
        }
      }
    }
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
    return spread(std::vector<i64>(static_cast<std::size_t>(model_.num_moe_layers()), model_.num_experts),
                  totals);
  }

  std::vector<std::vector<ExpertOwner>> owners(const std::vector<i64>& counts) const {
    std::vector<std::vector<ExpertOwner>> out;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      for (i64 e = 0; e < counts[i]; ++e) out.push_back({{devices_[i], 1}});
    }
    return out;
  }

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

Plan realize(const Rates& rates, const Sketch& sketch, double squeeze) {
  Plan plan = blank_plan(rates.request(), sketch.recompute);
  plan.strategy = "planned";
  plan.window = sketch.window;
  plan.chunks = sketch.chunks;
  for (const SketchGroup& group : sketch.groups) {
    plan.groups.push_back(GroupMaker(rates, sketch, group, squeeze).make());
  }
  return plan;
}

}  // namespace hetermoe
