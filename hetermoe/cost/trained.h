#pragma once
#include <array>
#include <memory>
#include <vector>

#include "hetermoe/model/lora.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/schedule/schedule.h"

namespace hetermoe {

/// The parts of a model that a run trains: all but these units, or adapters alone.
struct Trained {
  std::vector<Unit> frozen = {};               ///< ascending; with adapters the units without
  std::shared_ptr<const Lora> lora = nullptr;  ///< null = the units themselves are trained

  bool all() const { return frozen.empty() && lora == nullptr; }
};

/// Options of a step that trains `trained`, for the model or for its first layers. full: the model of the
/// units' names.
StepOptions step_options(const Trained& trained, const ModelConfig& full, const ModelConfig& model);

/// Numbers that a parameter of a part takes, on average over the part.
struct TrainedShare {
  double held = 1;     ///< numbers that have a value: with adapters more than one
  double trained = 1;  ///< numbers that have a gradient and moments
  double frozen = 0;   ///< whose products with gradients are not computed, see ComputeWork::frozen
};

/// Bytes of a part whose weights live on hosts: those that lie there and visit devices, and those that stay
/// on devices.
struct Housed {
  StateBytes visits, stays;
};

/// The same by parts of the model.
class TrainedShares {
 public:
  TrainedShares() = default;  ///< the whole model is trained
  TrainedShares(const Trained& trained, const ModelConfig& model);

  bool all() const { return layers_.empty(); }
  /// Layers do not differ.
  bool even() const { return even_; }
  bool adapts() const { return adapts_; }
  /// Bytes of a parameter of the part. If some experts of a layer are frozen: of one that is not.
  StateBytes of(const StateBytes& each, UnitPart part, i64 layer) const;
  /// Mean over layers.
  StateBytes mean(const StateBytes& each, UnitPart part) const;
  /// Likewise where the weights live on hosts: with adapters these stay on the devices.
  Housed housed(const StateBytes& each, UnitPart part, i64 layer) const;
  Housed mean_housed(const StateBytes& each, UnitPart part) const;
  const TrainedShare& mean(UnitPart part) const { return mean_[static_cast<std::size_t>(part)]; }

 private:
  const TrainedShare& share(UnitPart part, i64 layer) const;
  Housed housed(const StateBytes& each, const TrainedShare& share) const;

  std::array<TrainedShare, 4> mean_ = {};                      // [part]
  std::vector<std::pair<TrainedShare, TrainedShare>> layers_;  // [layer] attention, experts
  bool even_ = true, adapts_ = false;
};

}  // namespace hetermoe
