#include "hetermoe/cost/trained.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

std::size_t number(UnitPart part) { return static_cast<std::size_t>(part); }

StateBytes scaled(const StateBytes& each, const TrainedShare& share) {
  return {each.weights * share.held, each.gradients * share.trained, each.master * share.trained,
          each.moments * share.trained};
}

TrainedShare share_of(const Trained& trained, const ModelConfig& model, const Unit& unit) {
  const bool frozen = std::binary_search(trained.frozen.begin(), trained.frozen.end(), unit);
  if (frozen || trained.lora == nullptr) return {1, frozen ? 0.0 : 1.0, frozen ? 1.0 : 0.0};
  const double adapters =
      real(trained.lora->numbers_of(unit)) / real(std::max<i64>(1, num_parameters(model, unit)));
  // Gradients of experts are made whole, and those of adapters of them.
  return {1 + adapters, adapters, unit.part == UnitPart::kExperts ? 0.0 : 1.0};
}

/// Of a layer: memory as of an expert that is trained, if one is, work as of their mean.
TrainedShare share_of_experts(const Trained& trained, const ModelConfig& model, i32 layer) {
  TrainedShare out{1, 0, 0};
  for (ExpertId e = 0; e < model.num_experts; ++e) {
    const TrainedShare share = share_of(trained, model, {layer, UnitPart::kExperts, e});
    out.held = std::max(out.held, share.held), out.trained = std::max(out.trained, share.trained);
    out.frozen += share.frozen / real(model.num_experts);
  }
  return out;
}

bool alike(const TrainedShare& a, const TrainedShare& b) { return a.frozen == b.frozen; }

}  // namespace

StepOptions step_options(const Trained& trained, const ModelConfig& full, const ModelConfig& model) {
  StepOptions out;
  out.lora = trained.lora;
  for (Unit unit : trained.frozen) {
    if (unit.part == UnitPart::kHead) unit.layer = static_cast<i32>(model.num_layers);
    if (unit.part == UnitPart::kHead || unit.layer < std::min(model.num_layers, full.num_layers))
      out.frozen.push_back(unit);
  }
  return out;
}

TrainedShares::TrainedShares(const Trained& trained, const ModelConfig& model) {
  if (trained.all()) return;
  adapts_ = trained.lora != nullptr;
  const auto layers = static_cast<i32>(model.num_layers);
  mean_[number(UnitPart::kEmbed)] = share_of(trained, model, {-1, UnitPart::kEmbed, -1});
  mean_[number(UnitPart::kHead)] = share_of(trained, model, {layers, UnitPart::kHead, -1});
  TrainedShare attention{0, 0, 0}, experts{0, 0, 0};
  const auto add = [](TrainedShare& sum, const TrainedShare& share, double of) {
    sum.held += share.held / of, sum.trained += share.trained / of, sum.frozen += share.frozen / of;
  };
  const TrainedShare* last_experts = nullptr;
  for (i32 l = 0; l < layers; ++l) {
    layers_.emplace_back(share_of(trained, model, {l, UnitPart::kAttention, -1}), TrainedShare());
    even_ = even_ && alike(layers_.back().first, layers_.front().first);
    add(attention, layers_.back().first, real(layers));
  }
  for (i32 l = 0; l < layers; ++l) {
    if (!model.is_moe(l)) continue;
    layers_[idx(l)].second = share_of_experts(trained, model, l);
    even_ = even_ && (last_experts == nullptr || alike(*last_experts, layers_[idx(l)].second));
    last_experts = &layers_[idx(l)].second;
    add(experts, *last_experts, real(model.num_moe_layers()));
  }
  mean_[number(UnitPart::kAttention)] = attention;
  if (last_experts != nullptr) mean_[number(UnitPart::kExperts)] = experts;
}

const TrainedShare& TrainedShares::share(UnitPart part, i64 layer) const {
  if (all() || part == UnitPart::kEmbed || part == UnitPart::kHead) return mean(part);
  const auto& [attention, experts] = layers_[idx(layer)];
  return part == UnitPart::kAttention ? attention : experts;
}

StateBytes TrainedShares::of(const StateBytes& each, UnitPart part, i64 layer) const {
  return scaled(each, share(part, layer));
}

StateBytes TrainedShares::mean(const StateBytes& each, UnitPart part) const {
  return scaled(each, mean(part));
}

Housed TrainedShares::housed(const StateBytes& each, const TrainedShare& share) const {
  if (!adapts_) return {.visits = scaled(each, share), .stays = {}};
  return {.visits = {.weights = each.weights}, .stays = scaled(each, {share.held - 1, share.trained, 0})};
}

Housed TrainedShares::housed(const StateBytes& each, UnitPart part, i64 layer) const {
  return housed(each, share(part, layer));
}

Housed TrainedShares::mean_housed(const StateBytes& each, UnitPart part) const {
  return housed(each, mean(part));
}

}  // namespace hetermoe
