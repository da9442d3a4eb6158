#include "tests/nn/task_chain.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/nn/compare.h"
#include "tests/nn/newer_models.h"
#include "tests/support/one_thread.h"

namespace hetermoe::testing {
namespace {

/// What one layer keeps between forward and backward.
struct LayerState {
  std::vector<at::Tensor> y;                  ///< [sources]
  std::vector<AttentionOutput> attention;     ///< [sources]
  std::vector<std::vector<SendIndex>> sends;  ///< [sources][destinations]
  std::vector<CopyGroups> groups;             ///< [destinations]
  std::vector<at::Tensor> rows, weights;      ///< [destinations]
  std::vector<ExpertsSaved> saved;            ///< [destinations]
};

class Chain {
 public:
  Chain(const ModelConfig& model, Parameters& parameters, const ChainOptions& options)
      : model_(model), p_(parameters), options_(options), lists_(expert_lists(model, options)) {
    owners_.resize(static_cast<std::size_t>(model.num_experts));
    for (std::size_t d = 0; d < lists_.size(); ++d) {
      for (const ExpertId e : lists_[d])
        owners_[static_cast<std::size_t>(e)].push_back({static_cast<i32>(d), 1});
    }
    for (auto& shares : owners_) {
      for (ExpertShare& share : shares) share.share = 1.0 / static_cast<double>(shares.size());
    }
  }

  ChainResult run(const at::Tensor& tokens, const at::Tensor& targets) {
    const i64 seq_len = tokens.size(1);
    seq_len_ = seq_len;
    sequences_ =
        options_.source_sequences.empty() ? std::vector<i64>{tokens.size(0)} : options_.source_sequences;
    const auto token_parts = tokens.split_with_sizes(sequences_),
               target_parts = targets.split_with_sizes(sequences_);
    std::vector<at::Tensor> y;
    for (const at::Tensor& part : token_parts) y.push_back(embed_forward(p_.embed, part.reshape({-1})));
    for (i64 layer = 0; layer < model_.num_layers; ++layer) forward(layer, y);
    StateGroup& head = model_.tie_embeddings ? p_.embed : p_.head;
    ChainResult out;
    const i64 count = targets.ne(kIgnoreTarget).sum().item<i64>();
    for (std::size_t s = 0; s < y.size(); ++s) {
      const HeadResult result = head_forward_backward(model_, head, y[s], target_parts[s].reshape({-1}),
                                                      count, {options_.head_chunk});
      out.loss += result.loss.item<double>();
      y[s] = result.dy_TD;
    }
    make_balance(tokens.size(0));
    for (i64 layer = model_.num_layers - 1; layer >= 0; --layer) backward(layer, y);
    for (std::size_t s = 0; s < y.size(); ++s) embed_backward(p_.embed, token_parts[s].reshape({-1}), y[s]);
    out.aux_loss = aux_loss_;
    out.loss += aux_loss_;
    for (const NamedView& view : all_views(model_, p_)) {
      if (!view.grad.defined()) continue;
      at::Tensor& sum = out.grads[view.name];
      sum = sum.defined() ? sum + view.grad : view.grad.clone();
    }
    return out;
  }

 private:
  void forward(i64 layer, std::vector<at::Tensor>& y) {
    LayerState& state = layers_.emplace_back();
    state.y = y;
    for (std::size_t s = 0; s < y.size(); ++s) {
      state.attention.push_back(attention_forward(
          model_, layer, p_.attention[static_cast<std::size_t>(layer)], y[s], seq_len_, options_.keep));
      y[s] = state.attention[s].u_TD.clone();
    }
    if (!model_.is_moe(layer)) return;
    for (const AttentionOutput& a : state.attention) {
      state.sends.push_back(
          split_by_owner(a.topk_TK, owners_, static_cast<i64>(lists_.size()), options_.dedup));
    }
    for (std::size_t d = 0; d < lists_.size(); ++d) forward_experts(layer, d, state, y);
  }

  void forward_experts(i64 layer, std::size_t d, LayerState& state, std::vector<at::Tensor>& y) {
    const ExpertSlab& slab = p_.slabs[static_cast<std::size_t>(layer)][d];
    std::vector<ReceivedIndex> received;
    std::vector<at::Tensor> rows, weights;
    std::vector<i64> num_rows;
    for (std::size_t s = 0; s < y.size(); ++s) {
      const SendIndex& send = state.sends[s][d];
      received.push_back({send.num_rows(), send.row_C, send.expert_C});
      rows.push_back(gather_rows(state.attention[s].x_TD, send.token_R));
      weights.push_back(state.attention[s].weights_TK.reshape({-1}).index_select(0, send.flat_C));
      num_rows.push_back(send.num_rows());
    }
    state.groups.push_back(group_copies(received, slab.slot_of, slab.num_slots()));
    state.rows.push_back(at::cat(rows));
    state.weights.push_back(to_grouped(state.groups[d], at::cat(weights)));
    state.saved.emplace_back();
    const at::Tensor out = experts_forward(slab, state.rows[d], state.groups[d], state.weights[d],
                                           options_.keep == KeepGraph::kYes ? &state.saved[d] : nullptr);
    const auto parts = out.split_with_sizes(num_rows);
    for (std::size_t s = 0; s < y.size(); ++s) add_rows_(y[s], state.sends[s][d].token_R, parts[s]);
  }

  /// Gradient of the balancing loss for every sequence of the step.
  void make_balance(i64 num_sequences) {
    if (model_.aux_loss_coef == 0) return;
    at::Tensor counts = at::zeros({num_sequences, model_.num_experts}, at::kLong);
    for (const LayerState& state : layers_) {
      std::vector<at::Tensor> parts;
      for (const AttentionOutput& a : state.attention) {
        if (a.counts_BE.defined()) parts.push_back(a.counts_BE);
      }
      if (!parts.empty()) counts += at::cat(parts);
    }
    const i64 group = options_.aux_group == 0 ? num_sequences : options_.aux_group;
    std::vector<at::Tensor> group_counts;
    at::Tensor group_of = at::arange(num_sequences, at::kLong).floor_divide(group);
    for (i64 first = 0; first < num_sequences; first += group) {
      group_counts.push_back(counts.slice(0, first, first + group).sum(0));
    }
    const at::Tensor by_group =
        balance_gradient(model_, at::stack(group_counts), num_sequences * seq_len_, at::kDouble);
    balance_ = by_group.index_select(0, group_of);
  }

  void backward(i64 layer, std::vector<at::Tensor>& dy) {
    LayerState& state = layers_[static_cast<std::size_t>(layer)];
    std::vector<AttentionBackwardInput> inputs(dy.size());
    for (std::size_t s = 0; s < dy.size(); ++s) {
      inputs[s].y_TD = state.y[s];
      inputs[s].du_TD = dy[s];
      inputs[s].graph = state.attention[s].graph;
      if (!model_.is_moe(layer)) continue;
      inputs[s].topk_TK = state.attention[s].topk_TK;
      inputs[s].dx_TD = at::zeros_like(dy[s]);
      inputs[s].dweights_TK = at::zeros_like(state.attention[s].weights_TK);
    }
    if (model_.is_moe(layer)) {
      for (std::size_t d = 0; d < lists_.size(); ++d) backward_experts(layer, d, state, dy, inputs);
    }
    i64 first = 0;
    for (std::size_t s = 0; s < dy.size(); ++s) {
      if (balance_.defined() && sequences_[s] > 0 && model_.is_moe(layer)) {
        // One group may also be given as one row.
        inputs[s].balance_AE = options_.aux_group == 0 ? balance_.slice(0, 0, 1)
                                                       : balance_.slice(0, first, first + sequences_[s]);
      }
      first += sequences_[s];
      if (options_.mutation == Mutation::kDropWeightGradient) inputs[s].dweights_TK = at::Tensor();
      const AttentionGradient grad = attention_backward(
          model_, layer, p_.attention[static_cast<std::size_t>(layer)], inputs[s], seq_len_);
      dy[s] = grad.dy_TD;
      aux_loss_ += grad.aux_loss.item<double>();
    }
  }

  void backward_experts(i64 layer, std::size_t d, LayerState& state, const std::vector<at::Tensor>& dy,
                        std::vector<AttentionBackwardInput>& inputs) {
    std::vector<at::Tensor> dout;
    std::vector<i64> num_rows;
    for (std::size_t s = 0; s < dy.size(); ++s) {
      dout.push_back(gather_rows(dy[s], state.sends[s][d].token_R));
      num_rows.push_back(state.sends[s][d].num_rows());
    }
    const ExpertsGradient grad = experts_backward(
        p_.slabs[static_cast<std::size_t>(layer)][d], state.rows[d], state.groups[d], state.weights[d],
        options_.keep == KeepGraph::kYes ? &state.saved[d] : nullptr, at::cat(dout));
    const auto drows = grad.drows_RD.split_with_sizes(num_rows);
    const auto dweights =
        to_arrival(state.groups[d], grad.dweights_C).split_with_sizes(state.groups[d].source_copies);
    for (std::size_t s = 0; s < dy.size(); ++s) {
      add_rows_(inputs[s].dx_TD, state.sends[s][d].token_R, drows[s]);
      place_flat_(inputs[s].dweights_TK, state.sends[s][d].flat_C, dweights[s]);
    }
  }

  const ModelConfig& model_;
  Parameters& p_;
  ChainOptions options_;
  std::vector<std::vector<ExpertId>> lists_;
  OwnerTable owners_;
  i64 seq_len_ = 0;
  std::vector<i64> sequences_;
  std::vector<LayerState> layers_;
  at::Tensor balance_;
  double aux_loss_ = 0;
};

}  // namespace

std::vector<std::vector<ExpertId>> expert_lists(const ModelConfig& model, const ChainOptions& options) {
  if (!options.expert_lists.empty()) return options.expert_lists;
  std::vector<std::vector<ExpertId>> out(static_cast<std::size_t>(options.num_destinations));
  for (i64 e = 0; e < model.num_experts; ++e) {
    out[static_cast<std::size_t>(e % options.num_destinations)].push_back(static_cast<ExpertId>(e));
  }
  return out;
}

Parameters make_parameters(const ModelConfig& model, const ChainOptions& options, at::ScalarType dtype) {
  Parameters out;
  const at::TensorOptions tensor = at::TensorOptions().dtype(dtype);
  out.embed = make_embed_state(model, tensor);
  if (!model.tie_embeddings) out.head = make_head_state(model, tensor);
  for (i64 layer = 0; layer < model.num_layers; ++layer) {
    out.attention.push_back(make_attention_state(model, layer, tensor));
    out.slabs.emplace_back();
    if (!model.is_moe(layer)) continue;
    for (const auto& list : expert_lists(model, options)) {
      out.slabs.back().push_back(make_expert_slab(model, layer, list, tensor));
    }
  }
  return out;
}

std::vector<NamedView> all_views(const ModelConfig& model, const Parameters& parameters) {
  std::vector<NamedView> out = parameters.embed.views();
  const auto append = [&out](const std::vector<NamedView>& more) {
    out.insert(out.end(), more.begin(), more.end());
  };
  for (std::size_t layer = 0; layer < parameters.attention.size(); ++layer) {
    append(parameters.attention[layer].views());
    for (const ExpertSlab& slab : parameters.slabs[layer]) append(slab.views(model));
  }
  append(parameters.head.views());
  return out;
}

void fill_lively(const std::vector<NamedView>& views) {
  init_parameters(views, 7);
  for (const NamedView& view : views) {
    if (view.value.dim() > 1) {
      view.value.mul_(15);
    } else {
      // The same for every fusing and distribution: depends on position only.
      const at::Tensor wave = at::arange(view.value.numel(), at::kDouble).mul(1.7).add(0.3).sin();
      view.value.add_(wave.mul(0.25).to(view.value.scalar_type()));
    }
  }
}

ChainResult run_chain(const ModelConfig& model, Parameters& parameters, const at::Tensor& tokens_BS,
                      const at::Tensor& targets_BS, const ChainOptions& options) {
  if (options.mutation == Mutation::kSwapGateUp) {
    for (auto& layer : parameters.slabs) {
      for (ExpertSlab& slab : layer) slab.gate_up = slab.gate_up.roll(slab.down.size(2), 1).contiguous();
    }
  }
  return Chain(model, parameters, options).run(tokens_BS, targets_BS);
}

namespace {

/// Tiny tensors: a second thread only waits.
struct Data {
  at::Tensor tokens, targets;
};

Data make_data(const ModelConfig& model, i64 num_sequences, i64 seq_len) {
  const at::Tensor ids = at::arange(num_sequences * (seq_len + 1), at::kLong);
  const at::Tensor stream =
      (ids * ids * 31 + ids * 17 + 5).remainder(model.vocab).view({num_sequences, seq_len + 1});
  Data data{stream.slice(1, 0, seq_len).contiguous(), stream.slice(1, 1).contiguous()};
  data.targets[0][2] = kIgnoreTarget;
  data.targets[num_sequences - 1][seq_len - 1] = kIgnoreTarget;
  return data;
}

constexpr i64 kSequences = 4, kSeqLen = 7;

struct Comparison {
  double loss = 0, aux = 0, grads = 0;
  std::string worst;
};

/// The tasks in `dtype` against the reference in fp64, from the same values.
Comparison compare(const ModelConfig& model, const ChainOptions& options, at::ScalarType dtype) {
  Parameters parameters = make_parameters(model, options, dtype);
  const std::vector<NamedView> views = all_views(model, parameters);
  fill_lively(views);
  TensorsByName values;
  for (const NamedView& view : views) values[view.name] = view.value.to(at::kDouble).clone();
  const Data data = make_data(model, kSequences, kSeqLen);
  const ReferenceResult expected =
      reference_step(model, values, data.tokens, data.targets, {options.aux_group});
  const ChainResult got = run_chain(model, parameters, data.tokens, data.targets, options);
  Comparison out;
  out.loss = std::abs(got.loss - expected.loss) / expected.loss;
  out.aux = std::abs(got.aux_loss - expected.aux_loss) / std::max(expected.aux_loss, 1e-12);
  out.grads = worst_deviation(got.grads, expected.grads, &out.worst);
  return out;
}

void expect_close(const Comparison& c, double tolerance) {
  EXPECT_LE(c.loss, tolerance);
  EXPECT_LE(c.aux, tolerance);
  EXPECT_LE(c.grads, tolerance) << c.worst;
}

class EveryFamily : public ::testing::TestWithParam<ModelConfig> {};

TEST_P(EveryFamily, LossAndGradientsEqualTheReference) {
  expect_close(compare(GetParam(), {}, at::kDouble), 1e-10);
}

TEST_P(EveryFamily, Fp32StaysNearTheFp64Reference) {
  expect_close(compare(GetParam(), {}, at::kFloat), 1e-4);
}

TEST_P(EveryFamily, KeptGraphGivesTheSame) {
  ChainOptions options;
  options.keep = KeepGraph::kYes;
  expect_close(compare(GetParam(), options, at::kDouble), 1e-10);
}

TEST_P(EveryFamily, ThreeDestinationsAndUnequalSourcesOneEmpty) {
  ChainOptions options;
  options.num_destinations = 3;
  options.source_sequences = {1, 0, 3};
  expect_close(compare(GetParam(), options, at::kDouble), 1e-10);
}

TEST_P(EveryFamily, WithoutRowDedup) {
  ChainOptions options;
  options.num_destinations = 3;
  options.dedup = RowDedup::kOff;
  expect_close(compare(GetParam(), options, at::kDouble), 1e-10);
}

TEST_P(EveryFamily, ReplicatedExpertsAndADestinationWithout) {
  ChainOptions options;
  std::vector<ExpertId> all, odd;
  for (ExpertId e = 0; e < GetParam().num_experts; ++e) {
    all.push_back(e);
    if (e % 2 == 1) odd.push_back(e);
  }
  options.expert_lists = {odd, {}, all};
  options.source_sequences = {3, 1};
  expect_close(compare(GetParam(), options, at::kDouble), 1e-10);
}

TEST_P(EveryFamily, BalancingLossOverGroupsOfSequences) {
  for (const i64 group : {1, 2, 3}) {
    ChainOptions options;
    options.aux_group = group;
    options.source_sequences = {1, 3};  // a source border inside a group
    expect_close(compare(GetParam(), options, at::kDouble), 1e-10);
  }
}

TEST_P(EveryFamily, DroppedRoutingWeightGradientIsSeen) {
  ChainOptions options;
  options.mutation = Mutation::kDropWeightGradient;
  EXPECT_GT(compare(GetParam(), options, at::kDouble).grads, 1e-3);
}

TEST_P(EveryFamily, SwappedGateAndUpIsSeen) {
  ChainOptions options;
  options.mutation = Mutation::kSwapGateUp;
  const Comparison c = compare(GetParam(), options, at::kDouble);
  EXPECT_GT(c.loss, 1e-6);
  EXPECT_GT(c.grads, 1e-3);
}

TEST_P(EveryFamily, BalancingGroupsChangeTheLoss) {
  Parameters parameters = make_parameters(GetParam(), {}, at::kDouble);
  fill_lively(all_views(GetParam(), parameters));
  const Data data = make_data(GetParam(), kSequences, kSeqLen);
  ChainOptions one, two;
  two.aux_group = 2;
  EXPECT_GT(std::abs(run_chain(GetParam(), parameters, data.tokens, data.targets, one).aux_loss -
                     run_chain(GetParam(), parameters, data.tokens, data.targets, two).aux_loss),
            1e-6);
}

/// Dense models, scaled rotary embeddings, windows: all sources, kept or not.
TEST(TaskChain, EveryKindOfAttentionEqualsTheReference) {
  std::vector<ModelConfig> models = tiny_dense_models();
  for (ModelConfig& model : tiny_scaled_models()) models.push_back(std::move(model));
  ChainOptions kept, shared;
  kept.keep = KeepGraph::kYes;
  shared.source_sequences = {1, 0, 3};
  for (const ModelConfig& model : models) {
    SCOPED_TRACE(model.name);
    for (const ChainOptions& options : {ChainOptions(), kept, shared})
      expect_close(compare(model, options, at::kDouble), 1e-10);
    expect_close(compare(model, {}, at::kFloat), 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Tasks, EveryFamily, ::testing::ValuesIn(models_of_all_families()),
                         [](const auto& info) { return info.param.name; });

TEST(TaskChain, RunsAreBitIdentical) {
  const ModelConfig model = tiny_deepseek_v3();
  ChainOptions options;
  options.num_destinations = 2;
  const Data data = make_data(model, kSequences, kSeqLen);
  std::vector<ChainResult> results;
  for (int run = 0; run < 2; ++run) {
    Parameters parameters = make_parameters(model, options, at::kFloat);
    fill_lively(all_views(model, parameters));
    results.push_back(run_chain(model, parameters, data.tokens, data.targets, options));
  }
  EXPECT_EQ(results[0].loss, results[1].loss);
  for (const auto& [name, grad] : results[0].grads)
    EXPECT_TRUE(at::equal(grad, results[1].grads.at(name))) << name;
}

TEST(TaskChain, Bf16RunsWithFp32Routers) {
  ModelConfig model = tiny_mixtral();
  const ChainOptions options;
  Parameters parameters = make_parameters(model, options, at::kBFloat16);
  fill_lively(all_views(model, parameters));
  const Data data = make_data(model, kSequences, kSeqLen);
  TensorsByName values;
  for (const NamedView& view : all_views(model, parameters)) values[view.name] = view.value.to(at::kDouble);
  const double expected = reference_step(model, values, data.tokens, data.targets).loss;
  EXPECT_NEAR(run_chain(model, parameters, data.tokens, data.targets, options).loss, expected,
              0.05 * expected);
}

}  // namespace
}  // namespace hetermoe::testing
