#pragma once
#include <vector>

#include "hetermoe/cluster/network.h"
#include "hetermoe/cost/cost_model.h"
#include "hetermoe/model/model_config.h"
#include "hetermoe/plan/recompute.h"

namespace hetermoe {

/// Efficiencies and overheads of the training software: one set for every device, model, cluster and
/// strategy. Device types carry their own efficiencies (configs/devices). docs/cost-model.md says which of
/// them were calibrated on what.
struct SoftwareConstants {
  double gemm_efficiency = 0.8;    ///< of the peak, device types without a figure of their own
  double flash_efficiency = 0.55;  ///< likewise for attention kernels, causal half of the scores counted
  double mem_efficient_efficiency = 0.25;
  double gemm_rows_half = 12;      ///< rows per matrix at which a GEMM reaches half its rate
  double memory_efficiency = 0.8;  ///< of the memory bandwidth, streaming kernels
  double attention_passes = 1.75;  ///< memory traffic of the attention part over its minimum (unfused passes)
  double expert_passes = 1.5;      ///< likewise of the experts, sorting included
  double score_backward = 0.775;   ///< rate of a fused attention kernel's backward over its forward
  Seconds kernel_launch = 1e-6;    ///< per kernel: the device's gap between two, the host running ahead
  double network_efficiency = 0.73;  ///< of a node's port, all-to-all
  double local_efficiency = 0.7;     ///< of a link between devices of a node
  double link_efficiency = 0.8;      ///< of a link between a device and its host, and of the host's memory
  double interference = 0.1;         ///< share of compute speed lost while a transfer is active
  template <class V>
  void fields(V& v) {
    v("gemm_efficiency", gemm_efficiency, "GEMM rate over peak where the device type has none",
      between(0, 1));
    v("flash_efficiency", flash_efficiency, "flash attention rate over peak, likewise", between(0, 1));
    v("mem_efficient_efficiency", mem_efficient_efficiency, "memory-efficient attention rate over peak",
      between(0, 1));
    v("gemm_rows_half", gemm_rows_half, "rows per matrix at which a GEMM reaches half its rate", at_least(0));
    v("memory_efficiency", memory_efficiency, "streaming rate over memory bandwidth", between(0, 1));
    v("attention_passes", attention_passes, "memory traffic of the attention part over its minimum",
      at_least(0));
    v("expert_passes", expert_passes, "memory traffic of the experts over its minimum", at_least(0));
    v("score_backward", score_backward, "rate of attention backward over forward", above(0));
    v("kernel_launch", kernel_launch, "seconds per kernel", at_least(0));
    v("network_efficiency", network_efficiency, "all-to-all rate over port bandwidth", between(0, 1));
    v("local_efficiency", local_efficiency, "transfer rate inside a node over link bandwidth", between(0, 1));
    v("link_efficiency", link_efficiency, "rate of copies between device and host over link bandwidth",
      between(0, 1));
    v("interference", interference, "share of compute speed lost during a transfer", between(0, 1));
  }
};

/// Seconds from hardware data: GEMMs at a share of the peak, everything else at a share of the memory
/// bandwidth, attention by the kernel that the device type runs, transfers by bytes through ports.
class RooflineCost : public CostModel {
 public:
  /// Keeps references to model and cluster; of the plan it copies what it needs (dtypes, recomputation).
  RooflineCost(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
               SoftwareConstants constants = {});

  Seconds compute(const ComputeWork& work) const override;
  /// The part of it that recompute: select adds to an attention part's backward, where norms and the product
  /// of an MLP are made again; 0 of other ops.
  Seconds made_again(const ComputeWork& work) const;
  TransferCost transfer(const TransferWork& work) const override;
  /// Encoding and decoding of rows with scales, of the participant that takes longest; 0 of other transfers.
  Seconds coding(const TransferWork& work) const;
  double interference(PlaceId place) const override {
    return place < cluster_.num_devices() ? software_.interference : 0;
  }

 private:
  /// Rates of one device in its dtype.
  struct Rates {
    FlopsPerSecond gemm = 0;    ///< large GEMMs
    FlopsPerSecond scores = 0;  ///< fused attention kernel forward; GEMMs for the plain one
    BytesPerSecond memory = 0;
    Bytes element = 0;
    Bytes update = 0;  ///< read and written per parameter in an update
    bool plain_scores = false;
  };
  /// One direction of an op: products, attention kernel, passes through memory, kernels.
  struct Parts {
    Seconds gemm = 0, scores = 0, memory = 0, launches = 0;
  };
  Rates rates_of(DeviceId device, const Plan& plan) const;
  Seconds gemm_seconds(const Rates& rates, Flops flops, double rows) const;
  Parts attention_parts(const ComputeWork& work) const;
  Parts projection_parts(const ComputeWork& work) const;
  Parts score_parts(const ComputeWork& work) const;
  Parts latent_product_parts(const ComputeWork& work) const;
  /// Adds the attention kernel for the device's share of the heads.
  void add_scores(Parts& parts, const ComputeWork& work) const;
  Parts expert_parts(const ComputeWork& work) const;
  Seconds forward(const Parts& parts) const;
  Seconds input_gradients(const Parts& parts, const Rates& rates) const;
  Seconds weight_gradients(const Parts& parts, double frozen) const;
  Seconds backward(const Parts& parts, const ComputeWork& work) const;
  Seconds with_phase(const Parts& parts, const ComputeWork& work) const;
  Seconds normed_again(const ComputeWork& work) const;
  bool selects(const Op& op) const;
  Seconds head(const ComputeWork& work) const;
  Seconds merge_bytes(const ComputeWork& work) const;
  Seconds host_compute(const ComputeWork& work) const;
  /// The part of a port's bandwidth that transfers reach.
  BytesPerSecond port_rate(i32 number) const;
  Seconds latency(const TransferWork& work, std::size_t exchange) const;
  Seconds peers(const TransferWork& work, std::size_t exchange) const;
  /// Ascending ports, each with all that the bytes put on it: those of one exchange, or of several.
  std::vector<PortLoad> loads(const TransferWork& work, std::span<const PortBytes> bytes) const;
  const Rates& rates(DeviceId device) const { return rates_[static_cast<std::size_t>(device)]; }

  const ModelConfig& model_;
  const Cluster& cluster_;
  Network network_;
  SoftwareConstants software_;
  RecomputeTable recompute_;
  WeightGradients weight_gradients_;
  bool scales_forward_, scales_backward_;  // rows of experts travel with them
  std::vector<Rates> rates_;               // [device]
};

}  // namespace hetermoe
