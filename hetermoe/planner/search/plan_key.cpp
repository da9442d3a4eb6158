#include "hetermoe/planner/search/plan_key.h"

#include <bit>

#include "hetermoe/base/hash.h"

namespace hetermoe {
namespace {

/// Adds every field of a struct: numbers, bools, enums, optional ones and lists of these, and structs of
/// them.
struct FieldHash {
  Fnv& hash;

  template <class T>
  void operator()(const char*, T& value, const char*, const Range& = {}) {
    add(value);
  }
  template <class T>
  void add(T& value) {
    if constexpr (std::integral<T> || std::is_enum_v<T>) {
      hash.add(value);
    } else if constexpr (std::floating_point<T>) {
      hash.add(std::bit_cast<u64>(value));
    } else if constexpr (requires { value.has_value(); }) {
      hash.add(value.has_value());
      if (value) add(*value);
    } else if constexpr (requires { value.size(); }) {
      hash.add(value.size());
      for (auto& item : value) add(item);
    } else {
      value.fields(*this);
    }
  }
};

void add_choices(Fnv& hash, PlanChoices choices) {
  FieldHash fields{hash};
  choices.step_fields(fields);
  choices.state_fields(fields);
  choices.slot_fields(fields);
  choices.network_fields(fields);
}

/// Before what most plans have not, so that no two plans add the same.
constexpr u64 kBackwardMark = 0xb4c4;

void add_shares(Fnv& hash, const Shares& shares) {
  hash.add(shares.size());
  for (const ShareRow& row : shares) {
    hash.add(row.size());
    for (const Share& share : row)
      hash.add(share.device).add(share.sequences).add(share.tokens).add(share.heads);
  }
}

/// Neighbours with the same owners are one run: plans are large, and most experts come in runs.
void add_owners(Fnv& hash, const LayerOwners& experts) {
  hash.add(experts.size());
  for (std::size_t begin = 0, end; begin < experts.size(); begin = end) {
    end = begin + 1;
    while (end < experts.size() && experts[end] == experts[begin]) ++end;
    hash.add(end - begin).add(experts[begin].size());
    for (const ExpertOwner& owner : experts[begin])
      hash.add(owner.device).add(std::bit_cast<u64>(owner.share));
  }
}

void add_group(Fnv& hash, const Group& group) {
  hash.add(group.devices.size());
  for (const DeviceId device : group.devices) hash.add(device);
  hash.add(group.microbatches.size());
  for (const i64 size : group.microbatches) hash.add(size);
  add_shares(hash, group.embed);
  const Shares* before = &group.embed;
  const auto add_if_new = [&](const Shares& shares) {
    const bool is_new = shares != *before;
    hash.add(is_new);
    if (is_new) add_shares(hash, shares);
    before = &shares;
  };
  hash.add(group.layers.size());
  for (const LayerPlacement& layer : group.layers) {
    add_if_new(layer.attention);
    add_owners(hash, layer.experts);
    hash.add(layer.saved);
    if (layer.recompute) hash.add(*layer.recompute);
    if (!layer.attention_backward.empty()) add_shares(hash.add(kBackwardMark), layer.attention_backward);
    if (layer.experts_at != ExpertsAt::kOwners) hash.add(layer.experts_at);
  }
  add_if_new(group.head);
}

}  // namespace

u64 key_of(const Plan& plan) {
  Fnv hash;
  hash.add(plan.order).add(plan.window);
  add_choices(hash, plan);
  for (const double length : plan.turn_lengths) hash.add(std::bit_cast<u64>(length));
  if (std::optional<ExpectedTimes> expected = plan.expected) FieldHash{hash}.add(*expected);
  if (!plan.row_nodes.empty()) hash.add(true);
  if (plan.foreseen) hash.add(plan.foreseen);
  if (plan.guest_slots > 0) hash.add(plan.guest_slots).add(plan.guest_depth);
  for (const Group& group : plan.groups) add_group(hash, group);
  return hash.value();
}

}  // namespace hetermoe
