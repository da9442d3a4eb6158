#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/cost/curve.h"
#include "hetermoe/cost/profile_file.h"
#include "hetermoe/cost/roofline.h"

namespace hetermoe {

/// A profile of a device type and the name under which errors speak of it (its file).
struct NamedProfile {
  ProfileFile profile;
  std::string where;
};
/// By index of Cluster::types.
using ProfileSet = std::map<i32, NamedProfile>;

/// Profiles of the types that name one: a file, or a name of configs/profiles. Throws ConfigError or IoError.
ProfileSet load_profiles(const Cluster& cluster);

/// Seconds from profiles where they have an answer, from the roofline where not, op kind by op kind and phase
/// by phase. A device's speed factor divides measured seconds too.
/// * Compute ops: interpolated between measured sizes, see Curve and Surface.
/// * Transfers: those inside a node whose participants' types all have measured transfers; whatever uses the
///   network follows the roofline. The work of a device for a transfer with itself alone is added where the
///   profile has it: gathering rows in the order of experts, or the sum of squared gradients of `norm`.
/// * The time between two ops in which a device does nothing is added to each of its ops, where the profile
/// has it.
class MeasuredCost : public CostModel {
 public:
  enum class Source { kRoofline, kMeasured, kExtrapolated };

  /// Keeps references to model and cluster as RooflineCost does. Every profile must be of this model's shape
  /// and of the plan's dtype on the devices of its type: else ConfigError.
  MeasuredCost(const ModelConfig& model, const Cluster& cluster, const Plan& plan, ProfileSet profiles,
               SoftwareConstants constants = {});

  Seconds compute(const ComputeWork& work) const override;
  TransferCost transfer(const TransferWork& work) const override;
  double interference(DeviceId device) const override { return roofline_.interference(device); }

  /// Where compute() takes its answer from; work without tokens or rows takes no time and counts as measured.
  Source source(const ComputeWork& work) const;

 private:
  /// Measured times of one profile, [op][phase].
  using Tables = std::array<std::array<Surface, kNumProfiledPhases>, kNumProfiledOps>;
  struct Answer {
    Seconds seconds = 0;
    bool extrapolated = false;
  };
  std::optional<Answer> measured(const ComputeWork& work) const;
  std::optional<Answer> main_part(const Tables& tables, const ComputeWork& work) const;
  std::optional<Answer> phased(const Tables& tables, ProfiledOp op, const ComputeWork& work,
                               ProfilePoint at) const;
  double weights_share(const ComputeWork& work) const;
  static std::optional<Answer> look_up(const Tables& tables, ProfiledOp op, ProfiledPhase phase,
                                       ProfilePoint at);
  const Tables* tables_of(DeviceId device) const;
  std::optional<Answer> own_part(const Tables& tables, const TransferWork& work, DeviceId device) const;
  Seconds own_work(const TransferWork& work) const;
  TransferCost between_devices(const TransferWork& work) const;
  double tokens_of(const Op& op) const;
  double speed(DeviceId device) const { return cluster_.devices[static_cast<std::size_t>(device)].speed; }

  RooflineCost roofline_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  RecomputeTable recompute_;
  WeightGradients weight_gradients_;
  std::vector<std::vector<double>> tokens_;  // [group][microbatch] of a chunk
  std::vector<double> params_;               // [device] of the states that it tells the norm of
  std::map<i32, Tables> tables_;             // by type
  std::map<i32, Seconds> gaps_;              // by type, per op
};

/// The cost model of a plan: measured if there are profiles, else the roofline. Keeps references to model and
/// cluster.
std::unique_ptr<CostModel> make_cost(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                                     const ProfileSet& profiles, SoftwareConstants constants = {});

}  // namespace hetermoe
