#include "hetermoe/cost/fold.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <tuple>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/backward_shares.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

/// Where a state stands among those of one of its devices.
std::size_t place_of(const Placement& placement, i32 state, DeviceId device) {
  const std::span<const i32> held = placement.states().on(device);
  return idx(std::lower_bound(held.begin(), held.end(), state) - held.begin());
}

/// What begins a run of traits.
enum Trait : i64 { kShareTrait, kTeamTrait, kOwnerTrait, kExpertTrait, kStateTrait };

/// Compares groups by the positions of devices in them.
class GroupShapes {
 public:
  GroupShapes(const Plan& plan, const Cluster& cluster) : plan_(plan), cluster_(cluster) {
    position_.assign(cluster.devices.size(), -1);
    for (const Group& group : plan.groups) {
      for (std::size_t i = 0; i < group.devices.size(); ++i)
        position_[idx(group.devices[i])] = static_cast<i32>(i);
    }
  }

  bool same(const Group& a, const Group& b) const {
    return a.microbatches == b.microbatches &&
           equal(a.devices, b.devices, [&](DeviceId x, DeviceId y) { return same_device(x, y); }) &&
           same_shares(a.embed, b.embed) && same_shares(a.head, b.head) &&
           equal(a.layers, b.layers, [&](const LayerPlacement& x, const LayerPlacement& y) {
             return x.recompute == y.recompute && same_shares(x.attention, y.attention) &&
                    x.experts_at == y.experts_at && same_shares(x.attention_backward, y.attention_backward) &&
                    same_owners(x.experts, y.experts);
           });
  }

 private:
  template <class List, class Same>
  static bool equal(const List& a, const List& b, Same same) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
  }
  bool same_device(DeviceId a, DeviceId b) const {
    const Device &x = cluster_.devices[idx(a)], &y = cluster_.devices[idx(b)];
    return x.type == y.type && x.speed == y.speed && plan_.dtype[idx(a)] == plan_.dtype[idx(b)] &&
           nics_of(plan_, a) == nics_of(plan_, b);
  }
  bool same_place(DeviceId a, DeviceId b) const { return position_[idx(a)] == position_[idx(b)]; }
  bool same_shares(const Shares& a, const Shares& b) const {
    return equal(a, b, [&](const ShareRow& x, const ShareRow& y) {
      return equal(x, y, [&](const Share& s, const Share& t) {
        return s.sequences == t.sequences && s.team == t.team && s.tokens == t.tokens && s.heads == t.heads &&
               same_place(s.device, t.device);
      });
    });
  }
  bool same_owners(const LayerOwners& a, const LayerOwners& b) const {
    return equal(a, b, [&](const ExpertOwners& x, const ExpertOwners& y) {
      return equal(x, y, [&](const ExpertOwner& s, const ExpertOwner& t) {
        return s.share == t.share && same_place(s.device, t.device);
      });
    });
  }

  const Plan& plan_;
  const Cluster& cluster_;
  std::vector<i32> position_;  // [device] in its group
};

class Finder {
 public:
  Finder(const Placement& placement, const ModelConfig& model, const Cluster& cluster, LoadTable& loads)
      : p_(placement), plan_(placement.plan()), model_(model), cluster_(cluster), loads_(loads) {
    fold_.device.resize(idx(p_.num_devices()));
    std::iota(fold_.device.begin(), fold_.device.end(), 0);
    fold_.group.resize(plan_.groups.size());
    std::iota(fold_.group.begin(), fold_.group.end(), 0);
  }

  std::optional<Fold> run(FoldScope scope) {
    const bool foldable = !uses_hosts(plan_) && loads_.is_uniform() &&
                          traits_of(plan_.order).treats_equals_alike && !has_roaming_layers(plan_);
    const bool whole = scope == FoldScope::kDevices;  // every transfer stays one
    if (!foldable) return whole ? std::optional(fold_) : std::nullopt;
    if (scope == FoldScope::kTeams && !has_teams(plan_)) return {};
    if (scope == FoldScope::kGroups && (p_.balance_on() || gathers_across() || !fold_groups())) return {};
    make_classes(whole);
    if (whole) {
      split_by_states();
    } else {
      split_by_company();
      if (!counterparts_agree() || !states_agree() || !teams_agree()) return {};
    }
    choose_representatives();
    return fold_;
  }

 private:
  /// Groups that gather weights together wait for each other, one after another.
  bool gathers_across() const {
    return p_.num_groups() > 1 && std::any_of(p_.states().begin(), p_.states().end(),
                                              [](const State& state) { return state.gathered(); });
  }

  /// False when no two groups are alike.
  bool fold_groups() {
    const std::vector<i32> before = fold_.group;
    fold_.group = alike_groups(plan_, cluster_);
    return fold_.group != before;
  }

  // --- classes by what a device is and does ---

  /// apart: devices of different teams are of different classes.
  void make_classes(bool apart) {
    traits_.assign(fold_.device.size(), {});
    for (i32 g = 0; g < p_.num_groups(); ++g) add_group(g, apart);
    for (const State& state : p_.states()) {
      for (const DeviceId device : state.devices) {
        add(device, kStateTrait, static_cast<i64>(state.part), state.layer,
            static_cast<i64>(state.experts.size()), static_cast<i64>(state.devices.size()),
            static_cast<i64>(state.trainable));
      }
    }
    number_classes(traits_);
  }

  /// Devices with equal traits form a class.
  void number_classes(const std::vector<std::vector<i64>>& traits) {
    class_of_.assign(traits.size(), -1);
    size_.clear();
    std::map<std::vector<i64>, i32> known;
    for (const Group& group : plan_.groups) {
      for (const DeviceId device : group.devices) {
        const auto [entry, fresh] = known.try_emplace(traits[idx(device)], static_cast<i32>(size_.size()));
        if (fresh) size_.push_back(0);
        class_of_[idx(device)] = entry->second;
        ++size_[idx(entry->second)];
      }
    }
  }

  /// Devices of a class stand on nodes with equal numbers of devices of each class, because transfers that
  /// run at the same time meet on the ports of nodes; and in teams with equal numbers of each.
  void split_by_company() {
    for (std::size_t before = 0; before != size_.size();) {
      before = size_.size();
      std::vector<std::vector<i64>> traits(class_of_.size());
      for (std::size_t d = 0; d < class_of_.size(); ++d) traits[d] = {class_of_[d]};
      std::vector<std::vector<DeviceId>> on_node(cluster_.nodes.size());
      for (std::size_t d = 0; d < class_of_.size(); ++d)
        on_node[idx(cluster_.devices[d].node)].push_back(static_cast<DeviceId>(d));
      std::map<std::vector<i32>, i64> known;
      for (const std::vector<DeviceId>& node : on_node) add_company(node, known, traits);
      for_teams([&](const std::vector<DeviceId>& team) { add_company(team, known, traits); });
      number_classes(traits);
    }
  }

  /// Tells every member which classes all of them are of.
  void add_company(const std::vector<DeviceId>& members, std::map<std::vector<i32>, i64>& known,
                   std::vector<std::vector<i64>>& traits) const {
    std::vector<i32> classes;
    for (const DeviceId d : members) classes.push_back(class_of_[idx(d)]);
    std::sort(classes.begin(), classes.end());
    const i64 number = known.try_emplace(std::move(classes), static_cast<i64>(known.size())).first->second;
    for (const DeviceId d : members) traits[idx(d)].push_back(number);
  }

  /// f(group, layer, microbatch) of attention parts that are not alike.
  template <class F>
  void for_parts(i32 g, const F& f) const {
    for (i32 m = 0; m < p_.num_microbatches(g); ++m) {
      if (loads_.microbatch_class(g, m) != m) continue;
      for (i32 l = 0; l < p_.num_layers(); ++l) {
        if (loads_.layer_class(g, l) == l) f(l, m);
      }
    }
  }
  const ShareRow& attention_row(i32 g, i32 l, i32 m) const {
    return share_row(plan_.groups[idx(g)].layers[idx(l)].attention, m);
  }

  /// f(devices) of every team, attention parts that are alike once.
  template <class F>
  void for_teams(const F& f) const {
    std::vector<DeviceId> team;
    for (i32 g = 0; g < p_.num_groups(); ++g) {
      for_parts(g, [&](i32 l, i32 m) {
        const ShareRow& row = attention_row(g, l, m);
        for (std::size_t i = 0; has_teams(row) && i < row.size(); ++i) {
          team.push_back(row[i].device);
          if (i + 1 < row.size() && row[i + 1].team == row[i].team) continue;
          f(team);
          team.clear();
        }
      });
    }
  }

  void add_group(i32 g, bool apart) {
    for (const DeviceId device : plan_.groups[idx(g)].devices) {
      const Device& d = cluster_.devices[idx(device)];
      add(device, fold_.group[idx(g)], d.type, std::bit_cast<i64>(d.speed),
          static_cast<i64>(plan_.dtype[idx(device)]), nics_of(plan_, device));
    }
    // Layers and microbatches that are alike tell the same.
    for (i32 m = 0; m < p_.num_microbatches(g); ++m) {
      if (loads_.microbatch_class(g, m) != m) continue;
      for (const i32 l : {-1, p_.num_layers()}) add_shares(g, l, m);
    }
    for_parts(g, [&](i32 l, i32 m) {
      add_shares(g, l, m);
      add_heads(g, l, m, apart);
    });
    for (i32 l = 0; l < p_.num_layers(); ++l) {
      if (p_.is_moe(l) && loads_.layer_class(g, l) == l) add_experts(g, l);
    }
  }

  void add_shares(i32 g, i32 stage, i32 m) {
    for (const TokenRange range : p_.ranges(g, stage, m))
      add(range.device, kShareTrait, stage, m, range.tokens());
  }

  /// What a member of a team sends and computes follows from the tokens and heads of all of them.
  void add_heads(i32 g, i32 l, i32 m, bool apart) {
    i64 number = 0;
    for (const Team& team : p_.teams_of(g, l, m)) {
      for (const TeamMember& member : team.members) {
        const i64 shared = key_values(model_, team, member.heads).heads.count;
        add(member.device, kTeamTrait, l, m, team.tokens, member.heads.count, shared, team.latents ? 1 : 0,
            apart ? number : 0);
      }
      ++number;
    }
  }

  void add_experts(i32 g, i32 l) {
    const std::vector<DeviceId>& owners = p_.owners(g, l);
    const ExchangeLoad& load = loads_.of(g, l, 0, 0);
    for (std::size_t o = 0; o < owners.size(); ++o) {
      add(owners[o], kOwnerTrait, l, std::bit_cast<i64>(load.rows_per_token[o]),
          std::bit_cast<i64>(load.copies_per_token[o]));
    }
    for (const ExpertOwners& of_expert : plan_.groups[idx(g)].layers[idx(l)].experts) {
      for (const ExpertOwner& owner : of_expert)
        add(owner.device, kExpertTrait, std::bit_cast<i64>(owner.share));
    }
  }

  template <class... Values>
  void add(DeviceId device, Values... values) {
    traits_[idx(device)].insert(traits_[idx(device)].end(), {static_cast<i64>(values)...});
  }

  // --- states that several devices hold ---

  bool counterparts_agree() const {
    for (std::size_t g = 0; g < plan_.groups.size(); ++g) {
      const std::vector<DeviceId>&mine = plan_.groups[g].devices,
            &theirs = plan_.groups[idx(fold_.group[g])].devices;
      for (std::size_t i = 0; i < mine.size(); ++i) {
        if (class_of_[idx(mine[i])] != class_of_[idx(theirs[i])]) return false;
      }
    }
    return true;
  }

  /// [class] devices of the state.
  std::map<i32, i32> held_by(const State& state) const {
    std::map<i32, i32> held;
    for (const DeviceId device : state.devices) ++held[class_of_[idx(device)]];
    return held;
  }

  /// Every reduce joins whole classes, or the same numbers of devices of some classes as each other one in
  /// which devices of these take part at the same points of their orders. The first devices of the classes
  /// are in one of them together.
  bool states_agree() const {
    const std::vector<DeviceId> first = first_of_classes();
    std::map<std::pair<i32, std::size_t>, Parts> known;  // by class and place
    for (std::size_t s = 0; s < p_.states().size(); ++s) {
      const State& state = p_.states()[s];
      if (!state.reduced()) continue;
      const std::map<i32, i32> held = held_by(state);
      const bool whole = std::all_of(held.begin(), held.end(), [&](const auto& entry) {
        return entry.second == size_[idx(entry.first)];
      });
      if (whole) continue;
      const std::optional<Parts> parts = parts_of(static_cast<i32>(s), held);
      if (!parts) return false;
      for (const auto& [cls, count, place] : *parts) {
        if (known.try_emplace({cls, place}, *parts).first->second != *parts) return false;
      }
      if (held.size() > 1 && !has_all_or_none(state, held, first)) return false;
    }
    return true;
  }

  /// Of a state in each class: the class, devices of it, where the state stands on all of them.
  using Parts = std::vector<std::tuple<i32, i32, std::size_t>>;

  /// Nothing where it stands at several places of a class.
  std::optional<Parts> parts_of(i32 state, const std::map<i32, i32>& held) const {
    std::map<i32, std::size_t> places;
    for (const DeviceId d : p_.states()[idx(state)].devices) {
      const std::size_t place = place_of(p_, state, d);
      if (places.try_emplace(class_of_[idx(d)], place).first->second != place) return {};
    }
    Parts parts;
    for (const auto& [cls, count] : held) parts.emplace_back(cls, count, places.at(cls));
    return parts;
  }

  bool has_all_or_none(const State& state, const std::map<i32, i32>& held,
                       const std::vector<DeviceId>& first) const {
    const auto has = std::count_if(held.begin(), held.end(), [&](const auto& entry) {
      return std::find(state.devices.begin(), state.devices.end(), first[idx(entry.first)]) !=
             state.devices.end();
    });
    return has == 0 || has == static_cast<std::ptrdiff_t>(held.size());
  }

  /// The first devices of the classes in a team are in one team together.
  bool teams_agree() const {
    const std::vector<DeviceId> first = first_of_classes();
    bool agree = true;
    for_teams([&](const std::vector<DeviceId>& team) {
      const auto is_there = [&](DeviceId d) {
        return std::find(team.begin(), team.end(), first[idx(class_of_[idx(d)])]) != team.end();
      };
      const auto has = std::count_if(team.begin(), team.end(), is_there);
      agree = agree && (has == 0 || has == std::ssize(team));
    });
    return agree;
  }

  /// [class] the first of its devices, group by group.
  std::vector<DeviceId> first_of_classes() const {
    std::vector<DeviceId> first(size_.size(), -1);
    for (const Group& group : plan_.groups) {  // of groups that are alike, the first one comes first
      for (const DeviceId device : group.devices) {
        DeviceId& of_class = first[idx(class_of_[idx(device)])];
        if (of_class < 0) of_class = device;
      }
    }
    return first;
  }

  /// Splits classes until every reduce joins whole ones. A class that is split once stays inside or outside
  /// of the states seen before, so one pass is enough.
  void split_by_states() {
    for (const State& state : p_.states()) {
      if (!state.reduced()) continue;
      std::map<i32, i32> split;  // class -> its part in the state
      for (const auto& [cls, count] : held_by(state)) {
        if (count == size_[idx(cls)]) continue;
        split[cls] = static_cast<i32>(size_.size());
        size_[idx(cls)] -= count;
        size_.push_back(count);
      }
      if (split.empty()) continue;
      for (const DeviceId device : state.devices) {
        const auto found = split.find(class_of_[idx(device)]);
        if (found != split.end()) class_of_[idx(device)] = found->second;
      }
    }
  }

  void choose_representatives() {
    const std::vector<DeviceId> first = first_of_classes();
    for (const Group& group : plan_.groups) {
      for (const DeviceId device : group.devices)
        fold_.device[idx(device)] = first[idx(class_of_[idx(device)])];
    }
  }

  const Placement& p_;
  const Plan& plan_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  LoadTable& loads_;
  Fold fold_;
  std::vector<std::vector<i64>> traits_;  // [device]
  std::vector<i32> class_of_, size_;      // [device], [class]
};

}  // namespace

std::vector<i32> alike_groups(const Plan& plan, const Cluster& cluster) {
  const GroupShapes shapes(plan, cluster);
  std::vector<i32> first_of;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    first_of.push_back(static_cast<i32>(g));
    for (std::size_t first = 0; first < g; ++first) {
      if (idx(first_of[first]) != first || !shapes.same(plan.groups[first], plan.groups[g])) continue;
      first_of[g] = static_cast<i32>(first);
      break;
    }
  }
  return first_of;
}

std::vector<bool> Fold::listed() const {
  std::vector<bool> out;
  for (std::size_t d = 0; d < device.size(); ++d) out.push_back(idx(device[d]) == d);
  return out;
}

i64 Fold::num_listed() const {
  const std::vector<bool> all = listed();
  return std::count(all.begin(), all.end(), true);
}

std::optional<Fold> find_fold(const Placement& placement, const ModelConfig& model, const Cluster& cluster,
                              LoadTable& loads, FoldScope scope) {
  return Finder(placement, model, cluster, loads).run(scope);
}

std::vector<i32> folded_states(const Placement& placement, const Fold& fold, i32 state) {
  const std::vector<DeviceId>& devices = placement.states()[idx(state)].devices;
  const DeviceId first = fold.device[idx(devices[0])];
  std::vector<i32> all = {state};
  const auto of_class = [&](DeviceId d) { return fold.device[idx(d)] == first; };
  const auto held = std::count_if(devices.begin(), devices.end(), of_class);
  const bool one_class = held == static_cast<std::ptrdiff_t>(devices.size());
  if (!one_class && held == std::count(fold.device.begin(), fold.device.end(), first)) return all;
  const std::size_t place = place_of(placement, state, devices[0]);
  for (DeviceId d = 0; d < placement.num_devices(); ++d) {
    if (fold.device[idx(d)] == first) all.push_back(placement.states().on(d)[place]);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace hetermoe
