#pragma once
#include <memory>

#include "hetermoe/planner/strategies/baselines.h"

// Tensor parallelism as others train by it: a baseline that is simulated alone. No plan of hetermoe computes
// so. Its schedule is that of SP-EP with a team of n equal devices in each data-parallel group. A device has
// a part of every matrix in place of all tokens of its part: the same work, but other bytes.
namespace hetermoe {

/// Prices steps of plans whose attention parts have a team of equal devices in each group or stage. In each
/// of the two parts of a layer, attention and MLP, rows of full width are gathered before and partial sums
/// are scattered after: 2 b s h (n - 1) / n elements a device (MegaScale-MoE, arXiv 2505.11432, section 3,
/// formulas 1 and 4). Gradients of matrices that are not experts' are summed over teams alone, and each
/// device updates its part.
class TensorParallelCost : public CostModel {
 public:
  /// share: of the bytes of these exchanges; 0 tells what they cost. Keeps references to all but `inner`.
  TensorParallelCost(std::unique_ptr<CostModel> inner, const ModelConfig& model, const Cluster& cluster,
                     const Plan& plan, double share = 1);

  Seconds compute(const ComputeWork& work) const override;
  double interference(DeviceId device) const override { return inner_->interference(device); }
  TransferCost transfer(const TransferWork& work) const override;

 private:
  bool is_sliced(const Op& op) const;
  std::vector<PortBytes> gathered(const TransferWork& work) const;

  std::unique_ptr<CostModel> inner_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  const Plan& plan_;
  double size_, share_;
  std::vector<double> summed_;  // [state] of the bytes of a sum over all its devices; 1 = it is not in parts
};

/// The schedule's plan: groups of `size` devices in the order of the cluster. Throws ConfigError where the
/// sequences are fewer than the groups.
Plan tensor_parallel_plan(const ModelConfig& model, const Cluster& cluster, const Setting& setting, i64 size,
                          i64 microbatches);

/// The sizes of groups, inside a node, and the numbers of microbatches searched; masters and moments divided
/// over groups where that is needed. tuned.prediction.memory: of each device.
Tuned tune_tensor_parallel(const ModelConfig& model, const Cluster& cluster, const Setting& setting,
                           const SoftwareConstants& software);

}  // namespace hetermoe
