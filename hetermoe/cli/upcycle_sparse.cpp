#include "hetermoe/cli/upcycle_sparse.h"

#include <iostream>

#include "hetermoe/base/numbers.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/report/table.h"
#include "hetermoe/weights/sparse.h"

namespace hetermoe {
namespace {

constexpr i64 kMostLayers = 1 << 16;  // of a range, so that a slip of the pen makes no list of billions

std::vector<i64> layers_of(const std::string& text) {
  std::vector<i64> out;
  for (const std::string& part : cut_at_commas(text)) {
    const std::size_t dash = part.find('-');
    const std::optional<i64> first = whole_number(std::string_view(part).substr(0, dash));
    const std::optional<i64> last =
        dash == std::string::npos ? first : whole_number(std::string_view(part).substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= *first + kMostLayers)
      fail<ConfigError>("--layers", "got \"{}\", expected numbers and ranges of layers such as 0-2,5", text);
    for (i64 layer = *first; layer <= *last; ++layer) out.push_back(layer);
  }
  return out;
}

/// What the experts are, as a part of a sentence.
std::string experts_text(const Sparse& sparse) {
  const ModelConfig& model = sparse.after;
  if (sparse.shards == 1)
    return fmt::format("{} equal experts, a token sees {}", model.num_experts, model.top_k);
  return fmt::format("{} experts, {} copies of the MLP in {} shards, a token sees {}", model.num_experts,
                     model.num_experts / sparse.shards, sparse.shards,
                     counted(model.top_k / sparse.shards, "copy"));
}

}  // namespace

Json sizes_json(const ModelConfig& model) {
  const ParamCounts counts = count_parameters(model);
  return {{"experts", model.num_experts},       {"top_k", model.top_k},
          {"parameters", counts.total},         {"active", counts.active},
          {"routed_scale", model.routed_scale}, {"aux_loss_coef", model.aux_loss_coef}};
}

std::string sizes_text(const ModelConfig& before, const ModelConfig& after) {
  const ParamCounts old = count_parameters(before), now = count_parameters(after);
  return fmt::format("parameters {:.5g} M to {:.5g} M, active {:.5g} M to {:.5g} M\n", real(old.total) * 1e-6,
                     real(now.total) * 1e-6, real(old.active) * 1e-6, real(now.active) * 1e-6);
}

int make_sparse(const SparseCommand& command, const GrowthSource& source) {
  const ModelConfig& model = source.model;
  if (model.num_experts == 0 && command.experts == 0) {
    fail<ConfigError>("--experts", "is missing: {} ({}) has no experts to copy, so say how many to make",
                      model.name, model.model_type);
  }
  const Sparse sparse = plan_sparse(
      model, {.experts = command.experts, .top_k = command.top_k, .layers = layers_of(command.layers)});
  const HfWeights weights(source.weights, model);
  const std::filesystem::path to = folder_path(command.to);
  const Upcycled done = sparsify_folder(weights, to, sparse, command.seed, command.most_bytes);
  if (command.verify) verify_sparse(weights, to, sparse, command.seed);
  std::vector<i64> made;
  for (i64 l = 0; l < model.num_layers; ++l) {
    if (sparse.is_made(l)) made.push_back(l);
  }
  if (command.json) {
    print_json({{"from", command.from},
                {"to", command.to},
                {"model_type", sparse.after.model_type},
                {"layers", made},
                {"shards", sparse.shards},
                {"before", sizes_json(model)},
                {"after", sizes_json(sparse.after)},
                {"bytes", done.bytes},
                {"files", done.num_files},
                {"verified", command.verify}});
    return 0;
  }
  std::cout << fmt::format("{} ({}): in {} of {} the MLP becomes {}; now {}\n", model.name, model.model_type,
                           made.size(), counted(model.num_layers, "layer"), experts_text(sparse),
                           sparse.after.model_type)
            << sizes_text(model, sparse.after)
            << "right after growth: the same function, whatever the routers say\n";
  if (command.verify) std::cout << "verified: every parameter is what the MLPs make it, to the bit\n";
  std::cout << fmt::format("written: {} ({} in {})\n", command.to, format_bytes(real(done.bytes)),
                           counted(done.num_files, "file"));
  return 0;
}

}  // namespace hetermoe
