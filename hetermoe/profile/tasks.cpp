#include "hetermoe/profile/tasks.h"

#include "hetermoe/nn/attention_part.h"
#include "hetermoe/nn/embed_head.h"
#include "hetermoe/nn/experts.h"
#include "hetermoe/nn/optimizer.h"
#include "hetermoe/nn/routing.h"
#include "hetermoe/nn/rows.h"

namespace hetermoe {
namespace {

constexpr u64 kSeed = 1;  // any: values do not matter as long as they stay finite

/// Normal values; drawn in fp32, which every device can.
at::Tensor random(at::IntArrayRef shape, const at::TensorOptions& options) {
  return at::randn(shape, options.dtype(at::kFloat)).to(options.dtype().toScalarType());
}
at::Tensor random_ids(i64 high, i64 count, const at::TensorOptions& options) {
  return at::randint(0, high, {count}, options.dtype(at::kLong));
}
at::TensorOptions accumulating(const at::TensorOptions& options) {
  return options.dtype(accumulate_type(options.dtype().toScalarType()));
}

/// Entries of one size in several phases.
class PhaseTasks {
 public:
  PhaseTasks(ProfiledOp op, ProfileEntry sizes) : sizes_(sizes) { sizes_.op = op; }
  void add(ProfiledPhase phase, Task task) {
    ProfileEntry entry = sizes_;
    entry.phase = phase;
    tasks_.push_back({entry, std::move(task)});
  }
  TaskGroup take() { return std::move(tasks_); }

 private:
  ProfileEntry sizes_;
  TaskGroup tasks_;
};

}  // namespace

TaskGroup embed_tasks(const ModelConfig& model, i64 tokens, const at::TensorOptions& options) {
  struct Data {
    StateGroup state;
    at::Tensor ids, out;
  };
  const auto data = std::make_shared<Data>();
  data->state = make_embed_state(model, options);
  init_parameters(data->state.views(), kSeed);
  data->ids = random_ids(model.vocab, tokens, options);
  ProfileEntry sizes;
  sizes.tokens = tokens;
  PhaseTasks group(ProfiledOp::kEmbed, sizes);
  group.add(
      ProfiledPhase::kForward,
      {[data] { data->out = embed_forward(data->state, data->ids); }, {}, [data] { data->out.reset(); }});
  const at::Tensor dy = random({tokens, model.hidden}, options);
  group.add(ProfiledPhase::kBackward, {[data, dy] { embed_backward(data->state, data->ids, dy); }, {}, {}});
  return group.take();
}

TaskGroup head_tasks(const ModelConfig& model, i64 tokens, const at::TensorOptions& options) {
  struct Data {
    StateGroup state;
    at::Tensor y, targets, out, gradient;
  };
  const auto data = std::make_shared<Data>();
  data->state = model.tie_embeddings ? make_embed_state(model, options) : make_head_state(model, options);
  init_parameters(data->state.views(), kSeed);
  data->y = random({tokens, model.hidden}, options);
  data->targets = random_ids(model.vocab, tokens, options);
  ProfileEntry sizes;
  sizes.tokens = tokens;
  PhaseTasks group(ProfiledOp::kHead, sizes);
  const auto clear = [data] {
    data->out.reset();
    data->gradient.reset();
  };
  group.add(
      ProfiledPhase::kForward,
      {[data, &model] { data->out = head_loss_sum(model, data->state, data->y, data->targets); }, {}, clear});
  group.add(ProfiledPhase::kForwardBackward, {[data, &model, tokens] {
                                                HeadResult result = head_forward_backward(
                                                    model, data->state, data->y, data->targets, tokens);
                                                data->out = result.loss;
                                                data->gradient = result.dy_TD;
                                              },
                                              {},
                                              clear});
  return group.take();
}

namespace {

/// One attention part with its inputs, and what an executor's op does around it.
struct AttentionData {
  const ModelConfig& model;
  i64 layer, seq_len;
  StateGroup state;
  at::Tensor y, topk;           // topk: a fixed choice for recompute and backward
  std::vector<SendIndex> send;  // of that choice
  std::vector<at::Tensor> d_rows, d_weights;
  at::Tensor du, balance;
  OwnerTable owners;
  // Results:
  AttentionOutput out;
  std::vector<SendIndex> routed;
  AttentionGradient gradient;

  bool moe() const { return model.is_moe(layer); }
  void forward(KeepGraph keep, const at::Tensor& choice) {
    out = attention_forward(model, layer, state, y, seq_len, keep, {choice});
  }
  void route() {
    if (moe()) routed = split_by_owner(out.topk_TK.to(at::kCPU), owners, kProfiledOwners, RowDedup::kOn);
  }
  void backward() {
    AttentionBackwardInput in;
    in.y_TD = y;
    in.du_TD = du;
    in.graph = std::move(out.graph);
    if (moe()) {
      in.topk_TK = topk;
      in.dx_TD = at::zeros_like(y);
      in.dweights_TK = at::zeros(topk.sizes(), accumulating(y.options()));
      for (std::size_t o = 0; o < send.size(); ++o) {
        add_rows_(in.dx_TD, send[o].token_R, d_rows[o]);
        place_flat_(in.dweights_TK, send[o].flat_C, d_weights[o]);
      }
      in.balance_AE = balance;
    }
    gradient = attention_backward(model, layer, state, in, seq_len);
  }
  void clear() {
    out = {};
    routed.clear();
    gradient = {};
  }
};

std::shared_ptr<AttentionData> attention_data(const ModelConfig& model, i64 layer, i64 seq_len, i64 sequences,
                                              const at::TensorOptions& options) {
  const i64 tokens = seq_len * sequences;
  auto data = std::make_shared<AttentionData>(
      AttentionData{model, layer, seq_len, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}});
  data->state = make_attention_state(model, layer, options);
  init_parameters(data->state.views(), kSeed);
  data->y = random({tokens, model.hidden}, options);
  data->du = random({tokens, model.hidden}, options);
  if (!data->moe()) return data;
  for (i64 e = 0; e < model.num_experts; ++e)
    data->owners.push_back({{static_cast<i32>(e * kProfiledOwners / model.num_experts), 1.0}});
  data->forward(KeepGraph::kNo, {});
  data->route();
  data->topk = data->out.topk_TK;
  data->send = std::move(data->routed);
  data->clear();
  for (const SendIndex& index : data->send) {
    data->d_rows.push_back(random({index.num_rows(), model.hidden}, options));
    data->d_weights.push_back(random({index.num_copies()}, accumulating(options)));
  }
  if (model.aux_loss_coef > 0) data->balance = random({sequences, model.num_experts}, accumulating(options));
  return data;
}

}  // namespace

TaskGroup attention_tasks(const ModelConfig& model, i64 layer, i64 seq_len, i64 sequences,
                          const at::TensorOptions& options) {
  const std::shared_ptr<AttentionData> data = attention_data(model, layer, seq_len, sequences, options);
  ProfileEntry sizes;
  sizes.seq_len = seq_len;
  sizes.sequences = sequences;
  sizes.tokens = seq_len * sequences;
  PhaseTasks group(data->moe() ? ProfiledOp::kAttention : ProfiledOp::kDenseAttention, sizes);
  const auto clear = [data] { data->clear(); };
  const auto recompute = [data] { data->forward(KeepGraph::kYes, data->topk); };
  const auto backward = [data] { data->backward(); };
  group.add(ProfiledPhase::kForward, {[data] {
                                        data->forward(KeepGraph::kNo, {});
                                        data->route();
                                      },
                                      {},
                                      clear});
  group.add(ProfiledPhase::kRecompute, {recompute, {}, clear});
  group.add(ProfiledPhase::kBackward, {backward, recompute, clear});
  group.add(ProfiledPhase::kForwardBackward, {backward, {}, clear});
  return group.take();
}

TaskGroup expert_tasks(const ModelConfig& model, i64 layer, i64 num_experts, i64 rows,
                       const at::TensorOptions& options, ExpertProducts products) {
  struct Data {
    ExpertSlab slab;
    CopyGroups groups;
    at::Tensor rows, weights, d_out, out;
    std::unique_ptr<ExpertsSaved> saved;
    ExpertsGradient gradient;
    void forward() { out = experts_forward(slab, rows, groups, weights, saved.get()); }
    void backward() {
      gradient = experts_backward(slab, rows, groups, weights, saved.get(), d_out);
      out = to_arrival(groups, gradient.dweights_C);
    }
  };
  const auto data = std::make_shared<Data>();
  std::vector<ExpertId> ids;
  for (i64 e = 0; e < num_experts; ++e) ids.push_back(static_cast<ExpertId>(e));
  StorageOptions storage = options;
  storage.expert_products = products;
  data->slab = make_expert_slab(model, layer, ids, storage);
  init_parameters(data->slab.views(model), kSeed);
  // Every row has one copy; the rows of an expert lie anywhere in the message.
  const i64 copies = num_experts * rows;
  const at::Tensor row_C = at::randperm(copies, at::kLong);
  const at::Tensor expert_C = at::arange(num_experts, at::kLong).repeat_interleave(rows);
  data->groups = group_copies({{copies, row_C, expert_C}}, data->slab.slot_of, num_experts);
  data->rows = random({copies, model.hidden}, options);
  data->d_out = random({copies, model.hidden}, options);
  data->weights = at::rand({copies}, accumulating(options));
  ProfileEntry sizes;
  sizes.rows = sizes.copies = copies;
  sizes.experts = num_experts;
  PhaseTasks group(ProfiledOp::kExperts, sizes);
  const auto clear = [data] {
    data->out.reset();
    data->saved.reset();
    data->gradient = {};
  };
  const auto forward = [data] { data->forward(); };
  const auto recompute = [data] {
    data->saved = std::make_unique<ExpertsSaved>();
    data->forward();
  };
  const auto backward = [data] { data->backward(); };
  group.add(ProfiledPhase::kForward, {forward, {}, clear});
  group.add(ProfiledPhase::kRecompute, {recompute, {}, clear});
  group.add(ProfiledPhase::kBackward, {backward, recompute, clear});
  group.add(ProfiledPhase::kForwardBackward, {backward, {}, clear});
  return group.take();
}

TaskGroup update_tasks(const std::vector<at::Tensor>& values) {
  struct Data {
    std::vector<at::Tensor> values, grads;
    AdamwState moments;
  };
  const auto data = std::make_shared<Data>();
  data->values = values;
  ProfileEntry sizes;
  for (const at::Tensor& value : values) {
    data->grads.push_back(at::full_like(value, 1e-3, accumulate_type(value.scalar_type())));
    sizes.params += value.numel();
  }
  data->moments = make_adamw_state(values);
  PhaseTasks group(ProfiledOp::kUpdate, sizes);
  // A clip factor of 1 would skip the scaling that most steps of a real run have.
  group.add(ProfiledPhase::kForward,
            {[data] { adamw_update(data->values, data->grads, data->moments, {}, 1e-6, 0.999); }, {}, {}});
  return group.take();
}

}  // namespace hetermoe
