#include "hetermoe/weights/merge.h"

#include <cmath>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// A sleeping copy is below all originals by more than any score can lift it.
constexpr double kMostScore = 1;

/// Of an expert, those instances that become one: numbers of the grown model, the original first.
std::vector<ExpertId> merged_instances(const Growth& growth, i64 layer, ExpertId expert) {
  std::vector<ExpertId> out;
  const std::vector<ExpertId>& order = growth.source_of[idx(layer)];
  for (std::size_t e = 0; e < order.size(); ++e) {
    const bool sleeps = growth.mode == GrowthMode::kDormant && growth.is_copy[idx(layer)][e];
    if (order[e] == expert && !sleeps) out.push_back(static_cast<ExpertId>(e));
  }
  return out;
}

/// The first and the mean of what the others differ from it, so that equal tensors give their bits, zeros of
/// either sign included.
at::Tensor mean_of(const std::vector<at::Tensor>& tensors) {
  const at::Tensor first = tensors[0].to(at::kDouble);
  at::Tensor sum = at::zeros_like(first);
  for (std::size_t i = 1; i < tensors.size(); ++i) sum.add_(tensors[i].to(at::kDouble) - first);
  return at::where(sum == 0, first, first + sum / real(std::ssize(tensors))).to(tensors[0].scalar_type());
}

at::Tensor read_of(const ParamInfo& like, const std::string& name, const ReadTensor& read) {
  ParamInfo of_instance = like;
  of_instance.name = name;
  return read(of_instance);
}

/// The parameter of the grown model whose rows (or numbers) are those of all instances.
ParamInfo of_all(const Growth& growth, const ParamInfo& parameter) {
  ParamInfo out = parameter;
  out.shape[0] = growth.after.num_experts;
  return out;
}

/// Sums over the tensors of an instance and of its original.
struct Angle {
  double dot = 0, square = 0, original = 0;
  bool equal = true;
  void add(const at::Tensor& instance, const at::Tensor& first) {
    const at::Tensor a = instance.to(at::kDouble), b = first.to(at::kDouble);
    dot += (a * b).sum().item<double>();
    square += a.square().sum().item<double>();
    original += b.square().sum().item<double>();
    equal = equal && at::equal(a, b);
  }
  double cosine() const { return equal ? 1 : dot / std::sqrt(square * original); }
};

void check_cosine(const Angle& angle, double least, const std::string& what, i64 layer, ExpertId expert) {
  const double cosine = angle.cosine();
  if (cosine >= least) return;
  fail<ConfigError>("--cosine",
                    "layer {}, expert {}: {} has cosine {:.6f} with that of its original, expected {} or "
                    "more: these twins have parted too far to be one expert",
                    layer, expert, what, cosine, least);
}

void check_rows(const Growth& growth, i64 layer, const at::Tensor& rows, double least) {
  for (ExpertId e = 0; e < growth.before.num_experts; ++e) {
    const std::vector<ExpertId> instances = merged_instances(growth, layer, e);
    for (std::size_t i = 1; i < instances.size(); ++i) {
      Angle angle;
      angle.add(rows[instances[i]], rows[instances[0]]);
      check_cosine(angle, least, fmt::format("the router row of instance {}", i + 1), layer, e);
    }
  }
}

/// tensors: of one expert.
void check_expert(const Growth& growth, const std::vector<ParamInfo>& tensors, const ReadTensor& read,
                  double least) {
  std::vector<Angle> angles(idx(growth.factor - 1));  // of the instances but the original
  for (const ParamInfo& tensor : tensors) {
    const std::vector<std::string> names = instance_names(growth, tensor);
    const at::Tensor first = read_of(tensor, names[0], read);
    for (std::size_t i = 0; i < angles.size(); ++i) angles[i].add(read_of(tensor, names[i + 1], read), first);
  }
  for (std::size_t i = 0; i < angles.size(); ++i)
    check_cosine(angles[i], least, fmt::format("instance {}", i + 2), tensors[0].layer, tensors[0].expert);
}

void check_asleep(const Growth& growth, i64 layer, const at::Tensor& bias) {
  const at::Tensor values = bias.to(at::kDouble);
  double lowest = INFINITY;
  for (i64 e = 0; e < values.size(0); ++e) {
    if (!growth.is_copy[idx(layer)][idx(e)]) lowest = std::min(lowest, values[e].item<double>());
  }
  for (i64 e = 0; e < values.size(0); ++e) {
    const double value = values[e].item<double>();
    if (!growth.is_copy[idx(layer)][idx(e)] || value < lowest - kMostScore) continue;
    fail<ConfigError>("--mode",
                      "layer {}, expert {}: this copy may be chosen, its bias {:.4g} is not {} below the "
                      "lowest of the originals, {:.4g}; expected dormant copies that still sleep",
                      layer, e, value, kMostScore, lowest);
  }
}

}  // namespace

bool is_router(const ModelConfig& model, const ParamInfo& parameter) {
  return parameter.layer >= 0 && model.is_moe(parameter.layer) &&
         parameter.name == router_name(model, parameter.layer);
}

void check_alike(const Growth& growth, const ReadTensor& read, double least) {
  const bool dormant = growth.mode == GrowthMode::kDormant;
  std::map<std::pair<i64, ExpertId>, std::vector<ParamInfo>> experts;
  for (const ParamInfo& parameter : parameters(growth.before)) {
    if (dormant && parameter.buffer)
      check_asleep(growth, parameter.layer, read(of_all(growth, parameter)));
    else if (!dormant && is_router(growth.before, parameter))
      check_rows(growth, parameter.layer, read(of_all(growth, parameter)), least);
    else if (!dormant && parameter.expert >= 0)
      experts[{parameter.layer, parameter.expert}].push_back(parameter);
  }
  for (const auto& [expert, tensors] : experts) check_expert(growth, tensors, read, least);
}

at::Tensor merged_tensor(const Growth& growth, const ParamInfo& parameter, const ReadTensor& read) {
  if (parameter.expert >= 0) {
    const std::vector<std::string> names = instance_names(growth, parameter);
    if (growth.mode == GrowthMode::kDormant) return read_of(parameter, names.front(), read);
    std::vector<at::Tensor> instances;
    for (const std::string& name : names) instances.push_back(read_of(parameter, name, read));
    return mean_of(instances);
  }
  if (!parameter.buffer && !is_router(growth.before, parameter)) return read(parameter);
  const at::Tensor all = read(of_all(growth, parameter));
  std::vector<at::Tensor> rows;
  for (ExpertId e = 0; e < growth.before.num_experts; ++e) {
    std::vector<at::Tensor> instances;
    for (const ExpertId i : merged_instances(growth, parameter.layer, e)) instances.push_back(all[i]);
    rows.push_back(mean_of(instances));
  }
  return at::stack(rows);
}

at::Tensor merged_moment(const Growth& growth, const ParamInfo& parameter, const ReadTensor& read,
                         i64 power) {
  const at::Tensor mean = merged_tensor(growth, parameter, read);
  if (growth.moments == GrownMoments::kReset) return at::zeros_like(mean);
  const bool divided = parameter.expert >= 0 || is_router(growth.before, parameter);
  if (growth.moments != GrownMoments::kSplit || !divided || growth.mode == GrowthMode::kDormant) return mean;
  return mean * std::pow(real(growth.factor), power);
}

}  // namespace hetermoe
