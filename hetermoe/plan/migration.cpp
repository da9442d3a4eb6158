#include "hetermoe/plan/migration.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/backward_shares.h"

namespace hetermoe {
namespace {

std::vector<DeviceId> holders_of(const Unit& unit, const Plan& plan, const ModelConfig& model) {
  std::set<DeviceId> devices;
  for (const Group& group : plan.groups) {
    switch (unit.part) {
      case UnitPart::kEmbed:
        add_devices(group.embed, devices);
        add_devices(backward_embed_shares(group), devices);
        if (model.tie_embeddings) add_devices(group.head, devices);
        break;
      case UnitPart::kAttention:
        add_devices(group.layers[idx(unit.layer)].attention, devices);
        add_devices(group.layers[idx(unit.layer)].attention_backward, devices);
        break;
      case UnitPart::kExperts:
        for (const ExpertOwner& owner : group.layers[idx(unit.layer)].experts[idx(unit.expert)])
          devices.insert(owner.device);
        break;
      case UnitPart::kHead:
        add_devices(group.head, devices);
        break;
    }
  }
  return {devices.begin(), devices.end()};
}

/// Chooses who gives, and remembers how much each has given.
class Givers {
 public:
  explicit Givers(const Cluster& cluster) : cluster_(cluster), sent_(cluster.devices.size(), 0) {}

  DeviceId choose(const std::vector<DeviceId>& candidates, DeviceId receiver) const {
    const auto rank = [&](DeviceId device) {
      return std::tuple(node_of(device) != node_of(receiver), sent_[idx(device)], device);
    };
    return *std::min_element(candidates.begin(), candidates.end(),
                             [&](DeviceId a, DeviceId b) { return rank(a) < rank(b); });
  }
  void add(const UnitMove& move) { sent_[idx(move.from)] += move.bytes; }

 private:
  NodeId node_of(DeviceId device) const { return cluster_.devices[idx(device)].node; }

  const Cluster& cluster_;
  std::vector<Bytes> sent_;  // [device]
};

Dtype master_dtype(Dtype dtype) { return dtype == Dtype::kFp64 ? Dtype::kFp64 : Dtype::kFp32; }

bool holds(const std::vector<DeviceId>& ascending, DeviceId device) {
  return std::binary_search(ascending.begin(), ascending.end(), device);
}

}  // namespace

Holders holders(const Plan& plan, const ModelConfig& model) {
  Holders all;
  for (const Unit& unit : units(model)) all.push_back(holders_of(unit, plan, model));
  return all;
}

Bytes UnitMoves::bytes() const {
  return std::accumulate(moves.begin(), moves.end(), Bytes{0},
                         [](Bytes sum, const UnitMove& move) { return sum + move.bytes; });
}

UnitMoves moves_between(const Plan& before, const Plan& after, const ModelConfig& model,
                        const Cluster& cluster, const MoveOptions& options) {
  const std::vector<Unit> all = units(model);
  const Holders old_holders = holders(before, model), new_holders = holders(after, model);
  const auto is_alive = [&](DeviceId device) { return options.alive.empty() || options.alive[idx(device)]; };
  Givers givers(cluster);
  UnitMoves out;
  for (std::size_t u = 0; u < all.size(); ++u) {
    std::vector<DeviceId> left = old_holders[u];
    std::erase_if(left, [&](DeviceId device) { return !is_alive(device); });
    for (const DeviceId receiver : new_holders[u]) {
      if (holds(left, receiver)) continue;
      if (left.empty()) {
        out.lost.push_back(all[u]);
        break;
      }
      const DeviceId giver = givers.choose(left, receiver);
      const Lora* lora = options.lora.get();
      const bool frozen =
          lora != nullptr || std::binary_search(options.frozen.begin(), options.frozen.end(), all[u]);
      out.moves.push_back(
          {.unit = all[u],
           .from = giver,
           .to = receiver,
           .bytes = bytes_to_move(model, all[u], before.dtype[idx(giver)], frozen, lora),
           .dtype = frozen ? before.dtype[idx(giver)] : master_dtype(before.dtype[idx(giver)])});
      givers.add(out.moves.back());
    }
  }
  return out;
}

Bytes bytes_to_move(const ModelConfig& model, const Unit& unit, Dtype giver, bool frozen, const Lora* lora) {
  const double wide = bytes_of(master_dtype(giver));  // of masters, moments and buffers
  const double each = frozen ? bytes_of(giver) : 3 * wide;
  const bool has_bias = unit.part == UnitPart::kAttention && model.is_moe(unit.layer) && model.router_bias;
  const double adapters = lora == nullptr ? 0 : real(lora->numbers_of(unit));
  return real(num_parameters(model, unit)) * each + adapters * 3 * wide +
         (has_bias ? real(model.num_experts) * wide : 0);
}

}  // namespace hetermoe
