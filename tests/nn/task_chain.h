#pragma once
#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "hetermoe/nn/attention_part.h"
#include "hetermoe/nn/embed_head.h"
#include "hetermoe/nn/experts.h"
#include "hetermoe/nn/reference.h"
#include "hetermoe/nn/router.h"
#include "hetermoe/nn/routing.h"
#include "hetermoe/nn/rows.h"

// A whole training step by the tasks of nn/, in one thread: attention sources with shares of the sequences,
// expert destinations with shares of the experts.
namespace hetermoe::testing {

enum class Mutation { kNone, kDropWeightGradient, kSwapGateUp };

struct ChainOptions {
  std::vector<i64> source_sequences;  ///< sequences of each source; empty = one source
  i64 num_destinations = 1;           ///< experts e, e + n, e + 2n, ... per destination
  std::vector<std::vector<ExpertId>>
      expert_lists;  ///< instead: experts of each destination (an expert may repeat)
  RowDedup dedup = RowDedup::kOn;
  KeepGraph keep = KeepGraph::kNo;  ///< also: experts keep their state
  i64 aux_group = 0;
  i64 head_chunk = 5;
  Mutation mutation = Mutation::kNone;
};

struct Parameters {
  StateGroup embed, head;  ///< head unused with tied embeddings
  std::vector<StateGroup> attention;
  std::vector<std::vector<ExpertSlab>> slabs;  ///< [layer][destination]
};

std::vector<std::vector<ExpertId>> expert_lists(const ModelConfig& model, const ChainOptions& options);
Parameters make_parameters(const ModelConfig& model, const ChainOptions& options, at::ScalarType dtype);
std::vector<NamedView> all_views(const ModelConfig& model, const Parameters& parameters);
/// Seeded values with a wide spread (attention, routers and experts all matter), norms near 1, biases not
/// zero.
void fill_lively(const std::vector<NamedView>& views);

struct ChainResult {
  double loss = 0, aux_loss = 0;
  TensorsByName grads;  ///< gradients of replicas added
};
ChainResult run_chain(const ModelConfig& model, Parameters& parameters, const at::Tensor& tokens_BS,
                      const at::Tensor& targets_BS, const ChainOptions& options);

}  // namespace hetermoe::testing
