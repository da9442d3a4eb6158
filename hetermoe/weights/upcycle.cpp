#include "hetermoe/weights/upcycle.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"
#include "hetermoe/model/family.h"
#include "hetermoe/weights/convert.h"
#include "hetermoe/weights/hf_export.h"
#include "hetermoe/weights/merge.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

constexpr double kBelowAll = 2;  ///< a score is at most 1: no bias that is lower by 2 is ever chosen

at::Tensor sources(const Growth& growth, i64 layer) {
  const std::vector<ExpertId>& order = growth.source_of[idx(layer)];
  return at::tensor(std::vector<i64>(order.begin(), order.end()), at::kLong);
}

/// Number i of an expert's noise, in [-1, 1). From a counter, so that no order of work shows.
double draw(const Growth& growth, i64 layer, i64 expert, i64 i) {
  const u64 key = Fnv().add(growth.seed).add(layer).add(expert).add(i).value();
  return real(static_cast<i64>(splitmix64(key) >> 11)) * 0x1.0p-52 - 1;
}

/// To the rows (or numbers) of copies.
void add_noise(const Growth& growth, i64 layer, at::Tensor& gathered) {
  if (growth.noise == 0) return;
  const double width = noise_width(growth);
  const i64 count = gathered.numel() / gathered.size(0);
  for (i64 e = 0; e < gathered.size(0); ++e) {
    if (!growth.is_copy[idx(layer)][idx(e)]) continue;
    std::vector<double> noise;
    for (i64 i = 0; i < count; ++i) noise.push_back(width * draw(growth, layer, e, i));
    const at::Tensor row = gathered[e];
    const at::Tensor sum = row.to(at::kDouble) + at::tensor(noise, at::kDouble).view(row.sizes());
    gathered[e].copy_(sum);
  }
}

/// In the place of copies.
at::Tensor with_drawn_rows(const Growth& growth, const ParamInfo& parameter, at::Tensor gathered) {
  const at::Tensor drawn = drawn_parameter(parameter, growth.seed);
  for (i64 e = 0; e < gathered.size(0); ++e) {
    if (growth.is_copy[idx(parameter.layer)][idx(e)]) gathered[e].copy_(drawn[e]);
  }
  return gathered;
}

/// Sleeping copies are below every original, whatever its score.
void put_to_sleep(const Growth& growth, i64 layer, const at::Tensor& source, at::Tensor& bias) {
  const double lowest = source.min().item<double>();
  for (i64 e = 0; e < bias.size(0); ++e) {
    if (growth.is_copy[idx(layer)][idx(e)]) bias[e].fill_(lowest - kBelowAll);
  }
}

/// config.json of the source but for what is changed; other programs' names of a setting are changed as well.
Json changed_config(const ModelConfig& from, const ModelConfig& to, const HfFolder& folder) {
  Json config = folder.config();
  const Json before = to_hf(from), after = to_hf(to);
  for (const auto& [key, value] : after.items()) {
    if (before.value(key, Json()) != value) config[key] = value;
  }
  for (const char* name : family_of(from).experts_keys) {
    if (config.contains(name)) config[name] = to.num_experts;
  }
  return config;
}

std::string text_of(const std::vector<std::string>& names) {
  const auto shown = std::min<std::ptrdiff_t>(std::ssize(names), 10);
  return fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
}

}  // namespace

Upcycled write_upcycled(const fs::path& to, const std::vector<OutTensor>& tensors,
                        const FolderContents& contents, i64 most_bytes) {
  Upcycled done{.num_tensors = std::ssize(tensors)};
  for (const ShardFile& shard : write_hf_folder(to, tensors, contents, most_bytes)) {
    done.bytes += shard.bytes;
    ++done.num_files;
  }
  return done;
}

at::Tensor drawn_parameter(const ParamInfo& parameter, u64 seed) {
  at::Tensor out = at::empty(parameter.shape, at::kFloat);
  init_parameters({{parameter.name, out, {}, parameter.buffer}}, seed);
  return out;
}

at::Tensor grown_tensor(const Growth& growth, const ParamInfo& parameter, const at::Tensor& source) {
  const bool bias = parameter.buffer, random = growth.mode == GrowthMode::kRandom;
  if (!bias && !is_router(growth.before, parameter)) {
    const bool drawn =
        random && parameter.expert >= 0 && growth.is_copy[idx(parameter.layer)][idx(parameter.expert)];
    return drawn ? drawn_parameter(parameter, growth.seed).to(source.scalar_type()) : source;
  }
  at::Tensor out = source.index_select(0, sources(growth, parameter.layer));
  if (bias && growth.mode == GrowthMode::kDormant) put_to_sleep(growth, parameter.layer, source, out);
  if (random) return with_drawn_rows(growth, parameter, std::move(out));
  if (bias == growth.before.router_bias) add_noise(growth, parameter.layer, out);
  return out;
}

at::Tensor grown_moment(const Growth& growth, const ParamInfo& parameter, const at::Tensor& source,
                        i64 power) {
  if (growth.moments == GrownMoments::kReset) return at::zeros(parameter.shape, source.options());
  const bool router = is_router(growth.before, parameter);
  if (parameter.expert < 0 && !router) return source;
  // An expert is a row of its layer's experts as it is a row of the router.
  const i64 first = router ? 0 : parameter.expert, count = router ? growth.after.num_experts : 1;
  std::vector<at::Tensor> rows;
  for (i64 e = first; e < first + count; ++e) {
    const ExpertId from = growth.source_of[idx(parameter.layer)][idx(e)];
    const at::Tensor row = router ? source[from] : source;
    const bool zero = growth.moments == GrownMoments::kZero && growth.is_copy[idx(parameter.layer)][idx(e)];
    const double parts =
        growth.moments == GrownMoments::kSplit ? real(growth.instances(parameter.layer, from)) : 1;
    rows.push_back(zero ? at::zeros_like(row) : parts == 1 ? row : row / std::pow(parts, power));
  }
  return router ? at::stack(rows) : rows[0];
}

Upcycled upcycle_folder(const HfWeights& from, const fs::path& to, const Growth& growth, i64 most_bytes) {
  check_hf_target(to, from.folder().path());
  std::vector<OutTensor> tensors;
  std::map<std::string, ParamInfo> before;
  for (const ParamInfo& parameter : parameters(growth.before)) before[parameter.name] = parameter;
  for (const ParamInfo& parameter : parameters(growth.after)) {
    const std::string name = source_name(growth, parameter);
    const at::ScalarType type = converted_dtype(from, before.at(name), {});
    tensors.push_back({{parameter.name, type, parameter.shape}, [&from, &growth, parameter, name, type] {
                         return grown_tensor(growth, parameter, from.read(name).to(type)).contiguous();
                       }});
  }
  return write_upcycled(
      to, tensors,
      {.config = with_dtype(changed_config(growth.before, growth.after, from.folder()), main_dtype(tensors)),
       .source = from.folder().path(),
       .origin = {{"grown_from", fs::absolute(from.folder().path()).string()},
                  {"growth",
                   {{"factor", growth.factor},
                    {"mode", name_of(growth.mode)},
                    {"noise", growth.noise},
                    {"seed", growth.seed},
                    {"source_of", growth.source_of}}}}},
      most_bytes);
}

Upcycled merge_folder(const HfWeights& from, const fs::path& to, const Growth& growth, double least_cosine,
                      i64 most_bytes) {
  check_hf_target(to, from.folder().path());
  const ReadTensor read = [&from](const ParamInfo& parameter) { return from.read(parameter.name); };
  check_alike(growth, read, least_cosine);
  std::vector<OutTensor> tensors;
  for (const ParamInfo& parameter : parameters(growth.before)) {
    ParamInfo first = parameter;
    first.name = instance_names(growth, parameter).front();
    const at::ScalarType type = converted_dtype(from, first, {});
    tensors.push_back({{parameter.name, type, parameter.shape}, [&growth, read, parameter, type] {
                         return merged_tensor(growth, parameter, read).to(type).contiguous();
                       }});
  }
  return write_upcycled(
      to, tensors,
      {.config = with_dtype(changed_config(growth.after, growth.before, from.folder()), main_dtype(tensors)),
       .source = from.folder().path(),
       .origin = {{"merged_from", fs::absolute(from.folder().path()).string()},
                  {"factor", growth.factor},
                  {"mode", name_of(growth.mode)}}},
      most_bytes);
}

void verify_tensors(const HfWeights& from, const fs::path& to, const ModelConfig& model, const char* how,
                    const std::function<at::Tensor(const ParamInfo&, at::ScalarType)>& expected) {
  const HfWeights target(to, model);
  std::vector<std::string> different;
  for (const ParamInfo& parameter : parameters(model)) {
    const at::Tensor got = target.read(parameter.name);
    if (!equal_bits(expected(parameter, got.scalar_type()), got)) different.push_back(parameter.name);
  }
  if (different.empty()) return;
  fail<InputError>(to.string(), "{} tensors are not those of {}, {}: {}", different.size(),
                   from.folder().path().string(), how, text_of(different));
}

void verify_upcycled(const HfWeights& from, const fs::path& to, const Growth& growth) {
  verify_tensors(from, to, growth.after, "grown", [&](const ParamInfo& parameter, at::ScalarType type) {
    return grown_tensor(growth, parameter, from.read(source_name(growth, parameter)).to(type));
  });
}

void verify_merged(const HfWeights& from, const fs::path& to, const Growth& growth) {
  const ReadTensor read = [&from](const ParamInfo& parameter) { return from.read(parameter.name); };
  verify_tensors(from, to, growth.before, "merged", [&](const ParamInfo& parameter, at::ScalarType type) {
    return merged_tensor(growth, parameter, read).to(type);
  });
}

ExpertScores weight_scores(const HfWeights& weights, const ModelConfig& model) {
  ExpertScores out(idx(model.num_layers));
  for (i64 l = 0; l < model.num_layers; ++l) {
    if (model.is_moe(l)) out[idx(l)].assign(idx(model.num_experts), 0);
  }
  for (const ParamInfo& parameter : parameters(model)) {
    if (parameter.expert < 0) continue;
    out[idx(parameter.layer)][idx(parameter.expert)] +=
        weights.read(parameter.name).to(at::kDouble).square().sum().item<double>();
  }
  return out;
}

ExpertScores random_scores(const ModelConfig& model, u64 seed) {
  ExpertScores out(idx(model.num_layers));
  for (i64 l = 0; l < model.num_layers; ++l) {
    for (i64 e = 0; model.is_moe(l) && e < model.num_experts; ++e)
      out[idx(l)].push_back(real(static_cast<i64>(splitmix64(Fnv().add(seed).add(l).add(e).value()) >> 11)));
  }
  return out;
}

}  // namespace hetermoe
