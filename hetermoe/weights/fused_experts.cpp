#include "hetermoe/weights/fused_experts.h"

#include <memory>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/model/family.h"

namespace hetermoe {
namespace {

/// The tensors of a layer's experts: gate, up and down of expert 0, their biases, those of expert 1, ...
class LayerExperts {
 public:
  LayerExperts(const ModelConfig& model, ExpertLayout layout, std::vector<OutTensor> tensors)
      : model_(model),
        interleaved_(layout == ExpertLayout::kInterleaved),
        of_expert_(model.expert_bias ? 6 : 3),
        tensors_(std::make_shared<std::vector<OutTensor>>(std::move(tensors))) {
    HM_CHECK(std::ssize(*tensors_) == of_expert_ * model.num_experts, "{} tensors of {} experts",
             tensors_->size(), model.num_experts);
  }

  void add_to(std::vector<OutTensor>& out, const FusedNames& names) const {
    const i64 width = model_.expert_hidden, hidden = model_.hidden;
    if (interleaved_) {
      add(out, names.gate_up, {hidden, 2 * width}, {0, 1});
      add(out, bias_of_fused(names.gate_up), {2 * width}, {3, 4});
      add(out, names.down, {width, hidden}, {2});
      add(out, bias_of_fused(names.down), {hidden}, {5});
    } else {
      add(out, names.gate_up, {2 * width, hidden}, {0, 1});
      add(out, names.down, {hidden, width}, {2});
    }
  }

 private:
  /// parts: of an expert's tensors.
  void add(std::vector<OutTensor>& out, const std::string& name, std::vector<i64> shape,
           std::vector<i64> parts) const {
    shape.insert(shape.begin(), model_.num_experts);
    const at::ScalarType dtype = (*tensors_)[idx(parts[0])].head.dtype;
    const auto make = [tensors = tensors_, shape, parts, dtype, step = of_expert_,
                       interleaved = interleaved_] {
      const at::Tensor all = at::empty(shape, dtype);
      for (i64 e = 0; e < shape[0]; ++e) {
        for (std::size_t i = 0; i < parts.size(); ++i) {
          const at::Tensor part = (*tensors)[idx(e * step + parts[i])].make();
          place_of(all[e], static_cast<i64>(i), std::ssize(parts), interleaved).copy_(part);
        }
      }
      return all;
    };
    out.push_back({{name, dtype, shape}, make});
  }

  /// As [out, in], or [out].
  static at::Tensor place_of(const at::Tensor& whole, i64 part, i64 parts, bool interleaved) {
    const at::Tensor rows = interleaved && whole.dim() == 2 ? whole.t() : whole;
    if (interleaved) return rows.slice(0, part, std::nullopt, parts);
    return rows.narrow(0, part * (rows.size(0) / parts), rows.size(0) / parts);
  }

  const ModelConfig& model_;
  const bool interleaved_;
  const i64 of_expert_;
  std::shared_ptr<std::vector<OutTensor>> tensors_;
};

}  // namespace

ExpertLayout file_layout(const ModelConfig& model) {
  return family_of(model).interleaved_experts ? ExpertLayout::kInterleaved : ExpertLayout::kPerExpert;
}

std::vector<OutTensor> in_layout(const ModelConfig& model, ExpertLayout layout,
                                 std::vector<OutTensor> tensors) {
  if (layout == ExpertLayout::kPerExpert) return tensors;
  const std::vector<ParamInfo> all = parameters(model);
  HM_CHECK(tensors.size() == all.size(), "{} tensors of {} parameters", tensors.size(), all.size());
  std::vector<OutTensor> out, experts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].expert >= 0) {
      experts.push_back(std::move(tensors[i]));
      const bool last = i + 1 == all.size() || all[i + 1].expert < 0 || all[i + 1].layer != all[i].layer;
      if (last)
        LayerExperts(model, layout, std::exchange(experts, {})).add_to(out, fused_names(all[i].layer));
      continue;
    }
    tensors[i].head.name = name_beside_fused(model, all[i].name);
    out.push_back(std::move(tensors[i]));
  }
  return out;
}

}  // namespace hetermoe
