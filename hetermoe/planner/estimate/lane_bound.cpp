#include "hetermoe/planner/estimate/lane_bound.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/backward_shares.h"

namespace hetermoe {
namespace {

class DeviceLoads {
 public:
  DeviceLoads(const Rates& rates, const Plan& plan)
      : rates_(rates),
        plan_(plan),
        load_(rates.request().cluster.devices.size(), 0),
        class_of_(load_.size(), 0) {
    for (std::size_t c = 0; c < rates.num_classes(); ++c) {
      for (const DeviceId device : rates.classes()[c].devices) class_of_[idx(device)] = c;
    }
  }

  Seconds largest() {
    for (const Group& group : plan_.groups) add_group(group);
    return *std::max_element(load_.begin(), load_.end());
  }

 private:
  void add_group(const Group& group) {
    for (const LayerPlacement& layer : group.layers) {
      add_shares(group, layer.attention, [&](std::size_t cls, i64 sequences) {
        return rates_.attention(cls, real(sequences), recompute_of(layer)).forward;
      });
      add_shares(group, backward_shares(layer), [&](std::size_t cls, i64 sequences) {
        return rates_.attention(cls, real(sequences), recompute_of(layer)).backward;
      });
    }
    add_shares(group, group.head,
               [&](std::size_t cls, i64 sequences) { return rates_.head(cls, real(sequences)); });
    add_experts(group);
  }

  Recompute recompute_of(const LayerPlacement& layer) const {
    return layer.recompute.value_or(plan_.recompute);
  }

  template <class SecondsOf>
  void add_shares(const Group& group, const Shares& shares, SecondsOf seconds) {
    const double times = shares.size() == 1 ? real(group.microbatches.size()) : 1;
    for (const ShareRow& row : shares) {
      for (const Share& share : row) {
        const std::size_t d = idx(share.device);
        if (share.sequences > 0) load_[d] += times * seconds(class_of_[d], share.sequences);
      }
    }
  }

  void add_experts(const Group& group) {
    const ModelConfig& model = rates_.request().model;
    const double times = real(group.microbatches.size());
    const double tokens = real(total_tokens(group, plan_)) / times;
    const double copies = tokens * real(model.top_k) / real(model.num_experts);
    std::map<std::tuple<std::size_t, double, i64, Recompute>, Seconds> known;
    std::vector<Owned> owned(load_.size());
    for (const LayerPlacement& layer : group.layers) {
      std::fill(owned.begin(), owned.end(), Owned{});
      for (const auto& owners : layer.experts) {
        for (const ExpertOwner& owner : owners) owned[idx(owner.device)].add(owner.share);
      }
      for (const DeviceId device : group.devices) {
        const Owned& of_device = owned[idx(device)];
        if (of_device.experts == 0) continue;
        const std::size_t cls = class_of_[idx(device)];
        const auto [entry, fresh] =
            known.try_emplace({cls, of_device.share, of_device.experts, recompute_of(layer)});
        if (fresh) {
          entry->second =
              rates_.experts(cls, copies * of_device.share, real(of_device.experts), recompute_of(layer))
                  .sum();
        }
        load_[idx(device)] += times * entry->second;
      }
    }
  }

  /// What a device computes of one layer.
  struct Owned {
    double share = 0;  ///< of all experts together; 1 = all rows of one
    i64 experts = 0;

    void add(double of_expert) {
      share += of_expert;
      experts += of_expert > 0 ? 1 : 0;
    }
  };

  const Rates& rates_;
  const Plan& plan_;
  std::vector<Seconds> load_;          // [device]
  std::vector<std::size_t> class_of_;  // [device]
};

}  // namespace

Seconds lane_bound(const Rates& rates, const Plan& plan) { return DeviceLoads(rates, plan).largest(); }

}  // namespace hetermoe
