#include "hetermoe/planner/estimate/short_model.h"

#include <algorithm>

namespace hetermoe {
namespace {

constexpr i64 kShorter = 2, kLonger = 4;  ///< layers behind the leading dense ones
constexpr i64 kWorthwhile = 12;           ///< shallower models are simulated whole

}  // namespace

ShortModel::ShortModel(const ModelConfig& model, const Cluster& cluster, const SoftwareConstants& software,
                       const Trained& trained, const AssumedRouting& routing)
    : full_(model, cluster, software, step_options(trained, model, model), routing) {
  if (routing.load != nullptr && !routing.load->is_uniform()) return;  // layers differ
  const auto first_moe = std::find(model.dense_layer.begin(), model.dense_layer.end(), false);
  const bool dense_first = std::find(first_moe, model.dense_layer.end(), true) == model.dense_layer.end();
  // Where no layer has experts, all are alike, and none leads.
  const i64 dense = model.num_moe_layers() == 0 ? 0 : first_moe - model.dense_layer.begin();
  if (!dense_first || model.num_layers - dense < kWorthwhile) return;
  shorter_model_ = first_layers(model, dense + kShorter);
  longer_model_ = first_layers(model, dense + kLonger);
  extra_ = static_cast<double>(model.num_layers - longer_model_.num_layers) /
           static_cast<double>(kLonger - kShorter);
  shorter_.emplace(shorter_model_, cluster, software, step_options(trained, model, shorter_model_), routing);
  longer_.emplace(longer_model_, cluster, software, step_options(trained, model, longer_model_), routing);
}

i64 ShortModel::layers_simulated() const {
  return shortens() ? shorter_model_.num_layers + longer_model_.num_layers : full_.model().num_layers;
}

i64 ShortModel::work() const { return full_.work() + (shortens() ? shorter_->work() + longer_->work() : 0); }

Plan ShortModel::cut(Plan& plan, i64 layers) {
  // Deep plans are large: what is not needed is not copied.
  std::vector<Group> groups = std::move(plan.groups);
  plan.groups.clear();
  Plan out = plan;
  for (Group& group : groups) {
    std::vector<LayerPlacement> all = std::move(group.layers);
    group.layers.clear();
    out.groups.push_back(group);
    out.groups.back().layers.assign(all.begin(), all.begin() + layers);
    group.layers = std::move(all);
  }
  plan.groups = std::move(groups);
  return out;
}

/// Groups are extrapolated one by one: the one that ends last in a few layers need not do so in all of them.
Prediction ShortModel::extrapolate(Prediction longer, const Prediction& shorter) const {
  const auto extend = [&](double of_longer, double of_shorter) {
    return of_longer + extra_ * (of_longer - of_shorter);
  };
  const auto last_end = [](const Prediction& of) {
    return *std::max_element(of.group_end.begin(), of.group_end.end());
  };
  const Seconds after_groups = extend(longer.step - last_end(longer), shorter.step - last_end(shorter));
  for (std::size_t g = 0; g < longer.group_end.size(); ++g)
    longer.group_end[g] = extend(longer.group_end[g], shorter.group_end[g]);
  const Seconds step = last_end(longer) + after_groups;
  for (std::size_t d = 0; d < longer.busy.size(); ++d)
    longer.busy[d] = extend(longer.busy[d] * longer.step, shorter.busy[d] * shorter.step) / step;
  longer.tokens_per_s *= longer.step / step;
  longer.step = step;
  return longer;
}

std::optional<Prediction> ShortModel::predict_within(i64 max_visits, Plan& plan) {
  if (!shortens()) return full_.predict_within(max_visits, plan);
  return predict_within(max_visits, [&](i64 layers) { return cut(plan, layers); });
}

std::optional<Prediction> ShortModel::predict_within(i64 max_visits, const std::function<Plan(i64)>& make) {
  if (!shortens()) return full_.predict_within(max_visits, make(full_.model().num_layers));
  std::optional<Prediction> longer = longer_->predict_within(max_visits, make(longer_model_.num_layers));
  if (!longer) return {};
  return extrapolate(std::move(*longer), shorter_->predict(make(shorter_model_.num_layers)));
}

}  // namespace hetermoe
