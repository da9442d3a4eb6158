#include "hetermoe/weights/convert.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "hetermoe/weights/fused_experts.h"
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

std::vector<OutTensor> out_tensors(const HfWeights& weights, const ModelConfig& model,
                                   const ConvertOptions& options) {
  std::vector<OutTensor> out;
  for (const ParamInfo& parameter : parameters(model)) {
    const at::ScalarType type = converted_dtype(weights, parameter, options.dtype);
    const std::string name = parameter.name;
    out.push_back({{name, type, parameter.shape},
                   [&weights, name, type] { return cast(weights.read(name), type, weights, name); }});
  }
  return in_layout(model, options.layout.value_or(file_layout(model)), std::move(out));
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
  if (model.expert_bias && options.layout == ExpertLayout::kFused)
    fail<ConfigError>("--layout",
                      "got fused, which has no place for biases of experts: expected per-expert, or no "
                      "--layout for the files that {} has",
                      model.model_type);
  check_no_adapters(from);
  const HfWeights weights(from, model);
  const std::vector<OutTensor> tensors = out_tensors(weights, model, options);
  const FolderContents contents{.config = with_dtype(weights.folder().config(), main_dtype(tensors)),
                                .source = from,
                                .origin = {{"converted_from", fs::absolute(from).string()}}};
  Converted done{.model = model,
                 .num_tensors = static_cast<i64>(tensors.size()),
                 .from = weights.map().layout,
                 .to = options.layout.value_or(file_layout(model)),
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
