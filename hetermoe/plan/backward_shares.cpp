#include "hetermoe/plan/backward_shares.h"

#include <algorithm>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/recompute.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<ExpertsAt>::names() {
  static const std::vector<std::string> all = names_of_all<ExpertsAt>({"owners", "sources"});
  return all;
}

bool roams(const LayerPlacement& layer) {
  return !layer.attention_backward.empty() || layer.experts_at == ExpertsAt::kSources;
}

bool has_backward_shares(const Group& group) {
  return std::any_of(group.layers.begin(), group.layers.end(),
                     [](const LayerPlacement& layer) { return !layer.attention_backward.empty(); });
}

bool has_roaming_layers(const Plan& plan) {
  return std::any_of(plan.groups.begin(), plan.groups.end(), [](const Group& group) {
    return std::any_of(group.layers.begin(), group.layers.end(), roams);
  });
}

namespace {

class Checker {
 public:
  Checker(const Plan& plan, std::size_t group, std::size_t layer, bool is_moe)
      : group_(plan.groups[group]),
        layer_(group_.layers[layer]),
        where_(fmt::format("groups[{}].layers[{}]", group, layer)),
        hosts_(plan.hosts),
        recompute_(recompute_of(plan, static_cast<i32>(group), static_cast<i32>(layer))),
        is_moe_(is_moe) {}

  std::vector<std::string> run() {
    for (i32 m = 0; m < static_cast<i32>(group_.microbatches.size()) && faults_.empty(); ++m) {
      const ShareRow &forward = share_row(layer_.attention, m),
                     &backward = share_row(backward_shares(layer_), m);
      if (forward != backward) check_rows(forward, backward, m);
      if (forward != backward && layer_.saved == Residence::kHost) check_hosts(forward, backward, m);
      if (is_moe_ && layer_.experts_at == ExpertsAt::kSources) {
        check_at_sources(forward, m);
        check_at_sources(backward, m);
      }
    }
    return faults_;
  }

 private:
  template <class... Args>
  void fault(const char* field, fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(
        fmt::format("[{}.{}] {}", where_, field, fmt::format(format, std::forward<Args>(args)...)));
  }

  /// Then a buffer of a device belongs to one of both, and what travels is whole shares.
  void check_rows(const ShareRow& forward, const ShareRow& backward, i32 m) {
    const bool same_parts = std::equal(
        forward.begin(), forward.end(), backward.begin(), backward.end(),
        [](const Share& a, const Share& b) { return a.sequences == b.sequences && a.team == b.team; });
    if (!same_parts) {
      fault("attention_backward",
            "microbatch {} is divided otherwise than in forward, expected the same "
            "numbers of sequences on other devices",
            m);
    }
    for (const Share& share : backward) {
      if (std::none_of(forward.begin(), forward.end(),
                       [&](const Share& f) { return f.device == share.device; }))
        continue;
      fault("attention_backward",
            "device {} has another share of microbatch {} in forward, expected the same "
            "share or none",
            share.device, m);
    }
    const bool recomputes = recompute_ == Recompute::kResend || (recompute_ == Recompute::kLocal && !is_moe_);
    if (!recomputes) {
      fault("recompute",
            "got {}, but backward is on other devices than forward, which have to make all anew: "
            "expected resend",
            name_of(recompute_));
    }
  }

  /// What one stores the other fetches.
  void check_hosts(const ShareRow& forward, const ShareRow& backward, i32 m) {
    for (std::size_t i = 0; i < std::min(forward.size(), backward.size()); ++i) {
      const DeviceId from = forward[i].device, to = backward[i].device;
      if (idx(std::max(from, to)) >= hosts_.size() || hosts_[idx(from)] == hosts_[idx(to)]) continue;
      fault("saved",
            "got host, but devices {} and {}, which compute microbatch {} forward and backward, have "
            "different hosts: expected device",
            from, to, m);
      return;
    }
  }

  void check_at_sources(const ShareRow& row, i32 m) {
    if (row.size() != 1) {
      fault("experts_at", "got sources, but microbatch {} is shared by {} devices, expected one", m,
            row.size());
      return;
    }
    for (std::size_t e = 0; e < layer_.experts.size(); ++e) {
      const ExpertOwners& owners = layer_.experts[e];
      if (std::any_of(owners.begin(), owners.end(),
                      [&](const ExpertOwner& owner) { return owner.device == row[0].device; }))
        continue;
      fault("experts_at", "got sources, but device {}, which computes microbatch {}, does not own expert {}",
            row[0].device, m, e);
      return;
    }
  }

  const Group& group_;
  const LayerPlacement& layer_;
  std::string where_;
  const std::vector<NodeId>& hosts_;
  Recompute recompute_;
  bool is_moe_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> backward_faults(const Plan& plan, std::size_t group, std::size_t layer,
                                         bool is_moe) {
  return Checker(plan, group, layer, is_moe).run();
}

}  // namespace hetermoe
