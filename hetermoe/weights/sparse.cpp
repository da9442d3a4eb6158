#include "hetermoe/weights/sparse.h"

#include "hetermoe/base/index.h"
#include "hetermoe/model/tensor_names.h"
#include "hetermoe/weights/convert.h"
#include "hetermoe/weights/hf_export.h"
#include "hetermoe/weights/merge.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// The tensor of the dense MLP that a tensor of an expert, shared or not, is a part of.
std::string dense_name(const ModelConfig& model, const ParamInfo& parameter) {
  const std::string prefix = fmt::format("model.layers.{}.mlp.", parameter.layer);
  if (parameter.expert >= 0) {
    const auto [gate, up, down] = expert_matrices(model, parameter.layer, parameter.expert);
    return prefix +
           (parameter.name == gate ? "gate_proj"
            : parameter.name == up ? "up_proj"
                                   : "down_proj") +
           ".weight";
  }
  const std::size_t module = parameter.name.rfind('.', parameter.name.rfind('.') - 1);
  return prefix + parameter.name.substr(module + 1);
}

/// Shards of one copy have the same row, so that they are chosen together.
at::Tensor router_rows(const Sparse& sparse, const ParamInfo& parameter, u64 seed) {
  std::vector<i64> copies;
  for (i64 e = 0; e < sparse.after.num_experts; ++e)
    copies.push_back(sparse.copy_of(static_cast<ExpertId>(e)));
  return drawn_parameter(parameter, seed).index_select(0, at::tensor(copies, at::kLong));
}

/// Some neurons of the MLP. Where it has no more of them, new ones, whose output counts nothing yet.
at::Tensor part_of_mlp(const Sparse& sparse, const ParamInfo& parameter, const at::Tensor& whole, u64 seed) {
  const bool down = dense_name(sparse.after, parameter).ends_with("down_proj.weight");
  const i64 neurons = down ? 1 : 0, width = parameter.shape[idx(neurons)];
  const bool routed = parameter.expert >= 0;
  const i64 shared = sparse.after.shared_hidden();
  const i64 first = routed ? shared + sparse.shard_of(parameter.expert) * sparse.after.expert_hidden : 0;
  const i64 there = std::clamp<i64>(whole.size(neurons) - first, 0, width);
  at::Tensor out = whole.narrow(neurons, there > 0 ? first : 0, there);
  if (there < width) {
    at::Tensor rest =
        drawn_parameter(parameter, seed).to(whole.scalar_type()).narrow(neurons, there, width - there);
    out = at::cat({out, down ? at::zeros_like(rest) : rest}, neurons);
  }
  const double scale = down && routed ? sparse.scale() : 1;
  return scale == 1 ? out : (out.to(at::kDouble) * scale).to(whole.scalar_type());
}

/// What a tensor of the model with experts is made of.
enum class Origin { kItself, kMlp, kDraw };
Origin origin_of(const Sparse& sparse, const ParamInfo& parameter) {
  if (parameter.layer < 0 || !sparse.is_made(parameter.layer)) return Origin::kItself;
  if (parameter.buffer || is_router(sparse.after, parameter)) return Origin::kDraw;
  const bool shared = parameter.name.starts_with(shared_prefix(sparse.after, parameter.layer));
  return parameter.expert >= 0 || shared ? Origin::kMlp : Origin::kItself;
}

at::Tensor sparse_tensor(const HfWeights& from, const Sparse& sparse, const ParamInfo& parameter, u64 seed) {
  switch (origin_of(sparse, parameter)) {
    case Origin::kItself:
      return from.read(parameter.name);
    case Origin::kMlp:
      return part_of_mlp(sparse, parameter, from.read(dense_name(sparse.after, parameter)), seed);
    case Origin::kDraw:
      return parameter.buffer ? drawn_parameter(parameter, seed) : router_rows(sparse, parameter, seed);
  }
  HM_CHECK(false, "{} comes from nowhere", parameter.name);
}

at::ScalarType sparse_dtype(const HfWeights& from, const Sparse& sparse, const ParamInfo& parameter) {
  ParamInfo source = parameter;
  const Origin origin = origin_of(sparse, parameter);
  if (origin == Origin::kMlp) source.name = dense_name(sparse.after, parameter);
  if (origin == Origin::kDraw) source.name = "model.norm.weight";
  return converted_dtype(from, source, {});
}

/// Of a dense family's config what the other family's also has and does not say itself; of one with experts
/// all of it.
Json sparse_config(const Sparse& sparse, const HfFolder& folder) {
  Json config = to_hf(sparse.after);
  if (sparse.before.num_experts > 0) {
    Json own = folder.config();
    for (const char* name : {"first_k_dense_replace", "decoder_sparse_step", "mlp_only_layers",
                             "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"}) {
      if (config.contains(name)) own[name] = config[name];
    }
    return own;
  }
  for (const char* name :
       {"bos_token_id", "eos_token_id", "pad_token_id", "torch_dtype", "dtype", "use_cache"}) {
    if (folder.config().contains(name)) config[name] = folder.config().at(name);
  }
  return config;
}

}  // namespace

Upcycled sparsify_folder(const HfWeights& from, const fs::path& to, const Sparse& sparse, u64 seed,
                         i64 most_bytes) {
  check_hf_target(to, from.folder().path());
  std::vector<OutTensor> tensors;
  for (const ParamInfo& parameter : parameters(sparse.after)) {
    const at::ScalarType type = sparse_dtype(from, sparse, parameter);
    tensors.push_back({{parameter.name, type, parameter.shape}, [&from, &sparse, parameter, seed, type] {
                         return sparse_tensor(from, sparse, parameter, seed).to(type).contiguous();
                       }});
  }
  return write_upcycled(
      to, tensors,
      {.config = with_dtype(sparse_config(sparse, from.folder()), main_dtype(tensors)),
       .source = from.folder().path(),
       .origin = {{"made_sparse_from", fs::absolute(from.folder().path()).string()}, {"seed", seed}}},
      most_bytes);
}

void verify_sparse(const HfWeights& from, const fs::path& to, const Sparse& sparse, u64 seed) {
  verify_tensors(from, to, sparse.after, "made sparse", [&](const ParamInfo& parameter, at::ScalarType type) {
    return sparse_tensor(from, sparse, parameter, seed).to(type);
  });
}

}  // namespace hetermoe
