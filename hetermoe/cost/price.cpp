#include "hetermoe/cost/price.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <numeric>
#include <span>
#include <unordered_map>

#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// Ops with equal keys cost the same. Layers and microbatches that are alike have the number of the first.
using CostKey = std::array<u64, 4>;
struct CostKeyHash {
  std::size_t operator()(const CostKey& key) const {
    u64 hash = 0;
    for (const u64 part : key) hash = ((hash ^ part) * 0x9e3779b97f4a7c15ULL) ^ (hash >> 32);
    return idx(hash ^ (hash >> 32));
  }
};
/// Two numbers as one.
u64 both(i32 first, i32 second) {
  return static_cast<u64>(static_cast<std::uint32_t>(first)) << 32 | static_cast<std::uint32_t>(second);
}

/// Seconds as far as rounding leaves them alone, about 1e-12 of them.
u64 rounded(Seconds seconds) { return (std::bit_cast<u64>(seconds) + 0x800) >> 12; }

/// A transfer, and all those that a fold takes for the same.
struct Transfers {
  Seconds latency = 0;
  std::vector<TransferCost> costs;  ///< the listed one first
};

/// Which ports are loaded alike by all transfers, so that one of them is enough.
class PortClasses {
 public:
  /// transfers: in the order of their numbers.
  PortClasses(const std::vector<Transfers>& transfers, i32 num_ports)
      : begin_(idx(num_ports) + 1, 0), class_of_(idx(num_ports)), loads_(transfers.size()) {
    collect_uses(transfers);
    std::map<std::vector<u64>, i32> known;
    for (std::size_t port = 0; port < end_.size(); ++port) {
      const std::span<Use> uses(uses_.data() + begin_[port], uses_.data() + end_[port]);
      if (uses.empty()) continue;
      const auto [entry, fresh] = known.try_emplace(signature(uses), num_classes_);
      class_of_[port] = entry->second;
      if (!fresh) continue;
      for (const Use& use : uses)
        loads_[idx(use.transfer)].push_back({num_classes_, use.seconds, use.copies});
      ++num_classes_;
    }
  }

  i32 num_classes() const { return num_classes_; }
  /// Of the listed transfer, with the copies that share each port with it.
  const std::vector<PortLoad>& loads_of(std::size_t transfer) const { return loads_[transfer]; }

  /// All transfers that go for one have the same latency and load the same classes of ports in the same way.
  bool agree(const Transfers& transfers) const {
    const u64 first = hash_of_loads(transfers.costs.front());
    return std::all_of(transfers.costs.begin() + 1, transfers.costs.end(), [&](const TransferCost& cost) {
      return cost.latency == transfers.latency && hash_of_loads(cost) == first;
    });
  }

 private:
  struct Use {
    i32 transfer;
    Seconds seconds;
    i32 copies;
  };

  void collect_uses(const std::vector<Transfers>& transfers) {
    const auto for_loads = [&](auto f) {
      for (std::size_t t = 0; t < transfers.size(); ++t) {
        for (const TransferCost& cost : transfers[t].costs) {
          for (const PortLoad& load : cost.loads) f(idx(load.port), static_cast<i32>(t), load.seconds);
        }
      }
    };
    for_loads([&](std::size_t port, i32, Seconds) { ++begin_[port + 1]; });
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    uses_.resize(begin_.back());
    end_.assign(begin_.begin(), begin_.end() - 1);
    for_loads([&](std::size_t port, i32 transfer, Seconds seconds) { add_use(port, transfer, seconds); });
  }

  void add_use(std::size_t port, i32 transfer, Seconds seconds) {
    for (std::size_t u = end_[port]; u > begin_[port] && uses_[u - 1].transfer == transfer; --u) {
      if (rounded(uses_[u - 1].seconds) != rounded(seconds)) continue;
      ++uses_[u - 1].copies;
      return;
    }
    uses_[end_[port]++] = {transfer, seconds, 1};
  }

  static std::vector<u64> signature(std::span<Use> uses) {
    std::stable_sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
      return a.transfer != b.transfer ? a.transfer < b.transfer : a.seconds < b.seconds;
    });
    std::vector<u64> out;
    out.reserve(3 * uses.size());
    for (const Use& use : uses) {
      out.insert(out.end(),
                 {static_cast<u64>(use.transfer), rounded(use.seconds), static_cast<u64>(use.copies)});
    }
    return out;
  }

  /// Whatever their order is.
  u64 hash_of_loads(const TransferCost& cost) const {
    u64 sum = 0;
    for (const PortLoad& load : cost.loads)
      sum += splitmix64(rounded(load.seconds) + splitmix64(static_cast<u64>(class_of_[idx(load.port)])));
    return sum;
  }

  std::vector<std::size_t> begin_, end_;      // [port] into uses_
  std::vector<Use> uses_;                     // port after port
  std::vector<i32> class_of_;                 // [port]
  std::vector<std::vector<PortLoad>> loads_;  // [transfer]
  i32 num_classes_ = 0;
};

class Pricer {
 public:
  /// fold: null = every device is listed.
  Pricer(const Schedule& schedule, const Placement& placement, const ModelConfig& model,
         const Cluster& cluster, const CostModel& cost, LoadTable& loads, const Fold* fold)
      : schedule_(schedule),
        placement_(placement),
        cluster_(cluster),
        cost_(cost),
        loads_(loads),
        fold_(fold),
        work_(placement, model, cluster) {}

  std::optional<OpCosts> run() {
    price_ops();
    const PortClasses ports(transfers_, Network(cluster_).num_ports());
    for (const Transfers& transfers : transfers_) {
      if (transfers.costs.size() > 1 && !ports.agree(transfers)) return {};
    }
    OpCosts out;
    out.num_ports = ports.num_classes();
    out.load_begin = {0};
    out.seconds = std::move(compute_seconds_);
    out.latency.assign(out.seconds.size(), 0);
    for (PlaceId place = 0; place < schedule_.num_places(); ++place)
      out.interference.push_back(cost_.interference(place));
    for (std::size_t op = 0; op < out.seconds.size(); ++op) {
      if (transfer_of_[op] >= 0) {
        const Transfers& transfers = transfers_[idx(transfer_of_[op])];
        out.seconds[op] = transfers.costs.front().seconds();
        out.latency[op] = transfers.latency;
        const std::vector<PortLoad>& loads = ports.loads_of(idx(transfer_of_[op]));
        out.loads.insert(out.loads.end(), loads.begin(), loads.end());
      }
      out.load_begin.push_back(static_cast<i64>(out.loads.size()));
    }
    return out;
  }

 private:
  void price_ops() {
    for (OpId op = 0; op < schedule_.num_ops(); ++op) {
      const bool compute = is_compute(schedule_.ops[idx(op)].kind);
      compute_seconds_.push_back(compute ? compute_seconds(op) : 0);
      transfer_of_.push_back(compute ? -1 : transfer_number(schedule_.ops[idx(op)]));
    }
  }

  CostKey key_of(const Op& op, DeviceId device) const {
    const bool in_layer = op.layer >= 0 && op.layer < placement_.num_layers();
    // What a move carries, and what an attention part merges first, depends on the layer before.
    const i32 layer = in_layer ? loads_.layer_class(op.group, op.layer) : op.layer;
    const i32 before = !looks_back(op) ? 0 : op.layer == 0 ? -1 : loads_.layer_class(op.group, op.layer - 1);
    const bool alone = op.microbatch < 0 || row_of(op.kind).occurs == Occurs::kPerBalanceSet;
    const i32 microbatch = alone ? op.microbatch : loads_.microbatch_class(op.group, op.microbatch);
    const i32 kind = static_cast<i32>(op.kind) * 4 + static_cast<i32>(op.phase);
    return {both(kind, op.chunk), both(op.group, op.team), both(layer, before),
            both(op.state >= 0 ? op.state : microbatch, device)};
  }

  Seconds compute_seconds(OpId id) {
    const Op& op = schedule_.ops[idx(id)];
    const DeviceId device = device_of(schedule_.lanes_of(id)[0]);
    const auto [entry, fresh] = compute_.try_emplace(key_of(op, device), 0);
    if (fresh) entry->second = cost_.compute(work_.compute_work(op, device, loads_.of(op)));
    return entry->second;
  }

  i32 transfer_number(const Op& op) {
    const auto [entry, fresh] =
        numbers_.try_emplace(key_of(op, op.device), static_cast<i32>(transfers_.size()));
    if (!fresh) return entry->second;
    const std::vector<Op> members = folded_into(op);
    if (row_of(op.kind).participants == Participants::kStateDevices) {
      const auto [alike, first] = of_states_.try_emplace(traits_of_states(members), entry->second);
      if (!first) return entry->second = alike->second;
    }
    Transfers transfers;
    for (const Op& member : members) transfers.costs.push_back(transfer_cost(member));
    transfers.latency = transfers.costs.front().latency;
    transfers_.push_back(std::move(transfers));
    return entry->second;
  }

  /// Of transfers of states, what their price follows from: as many numbers on the same devices, as those of
  /// most layers have.
  std::vector<i64> traits_of_states(const std::vector<Op>& members) {
    const Op& op = members.front();
    std::vector<i64> traits = {static_cast<i64>(op.kind), static_cast<i64>(op.phase),
                               std::bit_cast<i64>(work_.trained_params(op.state))};
    for (const Op& member : members) {
      const State& state = placement_.states()[idx(member.state)];
      for (const std::vector<PlaceId>* places : {&state.devices, &state.reducers()})
        traits.push_back(
            numbers_of_places_.try_emplace(*places, std::ssize(numbers_of_places_)).first->second);
    }
    return traits;
  }

  /// The listed transfer and those that it stands for.
  std::vector<Op> folded_into(const Op& op) const {
    std::vector<Op> all = {op};
    if (fold_ == nullptr) return all;
    switch (row_of(op.kind).participants) {
      case Participants::kStateDevices:
        for (const i32 state : folded_states(placement_, *fold_, op.state)) {
          if (state != op.state) all.push_back(op), all.back().state = state;
        }
        break;
      case Participants::kExchange:
      case Participants::kOwners:
      case Participants::kBothShares:
        for (std::size_t g = 0; g < fold_->group.size(); ++g) {
          if (fold_->group[g] != op.group || static_cast<i32>(g) == op.group) continue;
          all.push_back(op), all.back().group = static_cast<std::int16_t>(g);
        }
        break;
      case Participants::kTeam:
        add_teams(op, all);
        break;
      case Participants::kOneDevice:
      case Participants::kBalanceSet:
      case Participants::kStateHolders:
      case Participants::kWithHost:
      case Participants::kMovers:
        break;
    }
    return all;
  }

  /// Those of teams whose members stand for those of the op's team.
  void add_teams(const Op& op, std::vector<Op>& all) const {
    const std::vector<DeviceId> own = participants(op, placement_);
    for (std::size_t g = 0; g < fold_->group.size(); ++g) {
      if (fold_->group[g] != op.group) continue;
      Op other = op;
      other.group = static_cast<std::int16_t>(g);
      for (other.team = 0; other.team < placement_.num_teams(other.group, op.layer, op.microbatch);
           ++other.team) {
        const DeviceId first = fold_->device[idx(placement_.team_of(other).members.front().device)];
        const bool same = other.group == op.group && other.team == op.team;
        if (!same && std::binary_search(own.begin(), own.end(), first)) all.push_back(other);
      }
    }
  }

  TransferCost transfer_cost(const Op& op) {
    const std::vector<DeviceId> among = participants(op, placement_);
    const std::vector<PortBytes> bytes = work_.port_bytes(op, among, loads_.of(op));
    return cost_.transfer({op, among, bytes});
  }

  const Schedule& schedule_;
  const Placement& placement_;
  const Cluster& cluster_;
  const CostModel& cost_;
  LoadTable& loads_;
  const Fold* fold_;
  WorkModel work_;
  std::vector<Seconds> compute_seconds_;  // [op], 0 for transfers
  std::vector<i32> transfer_of_;          // [op] index into transfers_, -1 for compute ops
  std::unordered_map<CostKey, Seconds, CostKeyHash> compute_;
  std::unordered_map<CostKey, i32, CostKeyHash> numbers_;
  std::map<std::vector<i64>, i32> of_states_;  // by traits_of_states()
  std::map<std::vector<PlaceId>, i64> numbers_of_places_;
  std::vector<Transfers> transfers_;
};

}  // namespace

OpCosts price(const Schedule& schedule, const Placement& placement, const ModelConfig& model,
              const Cluster& cluster, const CostModel& cost, const RoutingLoad& routing) {
  LoadTable loads(placement, routing);
  return *Pricer(schedule, placement, model, cluster, cost, loads, nullptr).run();
}

std::optional<OpCosts> price_folded(const Schedule& schedule, const Placement& placement,
                                    const ModelConfig& model, const Cluster& cluster, const CostModel& cost,
                                    LoadTable& loads, const Fold& fold) {
  return Pricer(schedule, placement, model, cluster, cost, loads, &fold).run();
}

}  // namespace hetermoe
