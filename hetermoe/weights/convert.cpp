#include "hetermoe/weights/convert.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "hetermoe/weights/hf_export.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// On the CPU, in its place in memory. Throws IoError when a number is too large for the dtype.
at::Tensor cast(const at::Tensor& tensor, at::ScalarType dtype, const HfWeights& weights,
                const std::string& name) {
  const at::Tensor out = tensor.to(dtype).contiguous();
  if (dtype == at::kHalf && tensor.scalar_type() != at::kHalf)
    check_finite_values(out, weights.folder().path().string(), name + " in fp16");
  return out;
}

/// The experts of a layer as one tensor each for gate and up, and for down.
void add_fused(std::vector<OutTensor>& out, const HfWeights& weights, const ModelConfig& model,
               const std::vector<ParamInfo>& experts, std::optional<at::ScalarType> dtype) {
  // gate, up and down of expert 0, of expert 1, ...
  const i64 count = model.num_experts, width = model.expert_hidden;
  HM_CHECK(static_cast<i64>(experts.size()) == 3 * count, "{} tensors of {} experts", experts.size(), count);
  const FusedNames names = fused_names(experts[0].layer);
  const at::ScalarType type = converted_dtype(weights, experts[0], dtype);
  const auto make = [&weights, experts, type](std::vector<i64> shape, std::vector<i64> parts) {
    return [&weights, experts, type, shape = std::move(shape), parts = std::move(parts)] {
      const at::Tensor all = at::empty(shape, type);
      for (i64 e = 0; e < shape[0]; ++e) {
        std::vector<at::Tensor> rows;
        for (const i64 part : parts) {
          const std::string& name = experts[static_cast<std::size_t>(3 * e + part)].name;
          rows.push_back(cast(weights.read(name), type, weights, name));
        }
        all[e].copy_(at::cat(rows));
      }
      return all;
    };
  };
  const std::vector<i64> up_shape = {count, 2 * width, model.hidden},
                         down_shape = {count, model.hidden, width};
  out.push_back({{names.gate_up, type, up_shape}, make(up_shape, {0, 1})});
  out.push_back({{names.down, type, down_shape}, make(down_shape, {2})});
}

std::vector<OutTensor> out_tensors(const HfWeights& weights, const ModelConfig& model,
                                   const ConvertOptions& options) {
  const bool fused = options.layout == ExpertLayout::kFused;
  std::vector<OutTensor> out;
  std::vector<ParamInfo> experts;  // of one layer
  const auto end_layer = [&] {
    if (!experts.empty()) add_fused(out, weights, model, experts, options.dtype);
    experts.clear();
  };
  for (const ParamInfo& parameter : parameters(model)) {
    if (fused && parameter.expert >= 0) {
      experts.push_back(parameter);
      continue;
    }
    end_layer();
    const at::ScalarType type = converted_dtype(weights, parameter, options.dtype);
    const std::string name = parameter.name;
    out.push_back({{fused ? name_beside_fused(model, name) : name, type, parameter.shape},
                   [&weights, name, type] { return cast(weights.read(name), type, weights, name); }});
  }
  end_layer();
  return out;
}

}  // namespace

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

at::ScalarType converted_dtype(const HfWeights& weights, const ParamInfo& parameter,
                               std::optional<at::ScalarType> dtype) {
  const at::ScalarType own = weights.dtype(parameter.name);
  if (!parameter.buffer) return dtype.value_or(own);
  return own == at::kDouble ? at::kDouble : at::kFloat;
}

Converted convert_folder(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  check_hf_target(to, from);
  const ModelConfig model = model_of(HfFolder(from));
  const HfWeights weights(from, model);
  const std::vector<OutTensor> tensors = out_tensors(weights, model, options);
  const FolderContents contents{.config = with_dtype(weights.folder().config(), main_dtype(tensors)),
                                .source = from,
                                .origin = {{"converted_from", fs::absolute(from).string()}}};
  Converted done{.model = model,
                 .num_tensors = static_cast<i64>(tensors.size()),
                 .from = weights.map().layout,
                 .ignored = weights.map().ignored};
  for (const ShardFile& shard : write_hf_folder(to, tensors, contents, options.most_bytes)) {
    done.bytes += shard.bytes;
    ++done.num_files;
  }
  return done;
}

void verify_converted(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  const ModelConfig model = model_of(HfFolder(from));
  const HfWeights source(from, model), target(to, model);
  std::vector<std::string> different;
  for (const ParamInfo& parameter : parameters(model)) {
    const at::ScalarType type = converted_dtype(source, parameter, options.dtype);
    if (!equal_bits(source.read(parameter.name).to(type), target.read(parameter.name)))
      different.push_back(parameter.name);
  }
  if (different.empty()) return;
  const std::size_t count = different.size();
  different.resize(std::min<std::size_t>(count, 10));
  fail<InputError>(to.string(), "{} of {} tensors are not those of {}: {}", count, parameters(model).size(),
                   from.string(), fmt::join(different, ", "));
}

}  // namespace hetermoe
