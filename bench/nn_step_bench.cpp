// One training step of a small Mixtral (config S) on one CPU device: time by op kind, and the whole step as a
// share of the fp32 matrix product's speed measured in the same run. Usage: nn_step_bench [threads = 2]
// [steps = 12]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "hetermoe/nn/attention_part.h"
#include "hetermoe/nn/cpu_memory.h"
#include "hetermoe/nn/embed_head.h"
#include "hetermoe/nn/experts.h"
#include "hetermoe/nn/optimizer.h"
#include "hetermoe/nn/router.h"
#include "hetermoe/nn/rows.h"

namespace hetermoe {
namespace {

constexpr i64 kSequences = 8, kSeqLen = 256, kTokens = kSequences * kSeqLen;

ModelConfig config_s() {
  ModelConfig m;
  m.name = "S";
  m.model_type = "mixtral";
  m.vocab = 256, m.hidden = 256, m.num_layers = 4;
  m.num_heads = 8, m.num_kv_heads = 8, m.head_dim = 32;
  m.num_experts = 8, m.top_k = 2, m.expert_hidden = 896;
  m.dense_layer.assign(4, false);
  m.aux_loss_coef = 0.01;
  return m;
}

/// Matrix products of one step, forward and twice backward; causal attention counts its lower half.
double step_flops(const ModelConfig& m) {
  const double tokens = kTokens, hidden = static_cast<double>(m.hidden),
               layers = static_cast<double>(m.num_layers);
  const double heads = static_cast<double>(m.num_heads * m.head_dim);
  const double projections = 4 * heads * hidden,
               scores = heads * kSeqLen;  // two products over half of seq_len each
  const double experts = static_cast<double>(m.top_k * m.expert_hidden) * 3 * hidden;
  const double router = hidden * static_cast<double>(m.num_experts),
               head = hidden * static_cast<double>(m.vocab);
  return 3 * 2 * tokens * (layers * (projections + scores + experts + router) + head);
}

/// With one thread its CPU time, which other processes hardly disturb; else wall time.
double now() {
  if (at::get_num_threads() == 1) {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds by op kind.
class Split {
 public:
  template <class F>
  void time(const std::string& kind, F f) {
    const double start = now();
    f();
    seconds_[kind] += now() - start;
  }
  const std::map<std::string, double>& seconds() const { return seconds_; }

 private:
  std::map<std::string, double> seconds_;
};

struct Layer {
  StateGroup attention;
  ExpertSlab slab;
  // Between forward and backward:
  at::Tensor y, rows, weights;
  AttentionOutput out;
  SendIndex send;
  CopyGroups groups;
  ExpertsSaved saved;
};

class Trainer {
 public:
  Trainer()
      : model_(config_s()),
        embed_(make_embed_state(model_, at::kFloat)),
        head_(make_head_state(model_, at::kFloat)) {
    std::vector<ExpertId> all(static_cast<std::size_t>(model_.num_experts));
    for (std::size_t e = 0; e < all.size(); ++e) all[e] = static_cast<ExpertId>(e);
    for (i64 l = 0; l < model_.num_layers; ++l) {
      Layer& layer = layers_.emplace_back();
      layer.attention = make_attention_state(model_, l, at::kFloat);
      layer.slab = make_expert_slab(model_, l, all, at::kFloat);
      init_parameters(layer.attention.views(), 1);
      init_parameters(layer.slab.views(model_), 1);
    }
    init_parameters(embed_.views(), 1);
    init_parameters(head_.views(), 1);
    owners_.assign(all.size(), {{0, 1.0}});
    for (const Layer& layer : layers_) {
      append(layer.attention.values, layer.attention.grads);
      append({layer.slab.gate_up, layer.slab.down}, {layer.slab.gate_up_grad, layer.slab.down_grad});
    }
    append(embed_.values, embed_.grads);
    append(head_.values, head_.grads);
    adamw_ = make_adamw_state(values_);
    tokens_ = at::arange(kTokens, at::kLong).mul(7919).remainder(model_.vocab);
    targets_ = tokens_.roll(-1);
  }

  double step(Split& split) {
    split.time("zero", [&] {
      for (at::Tensor& grad : grads_) grad.zero_();
    });
    at::Tensor y;
    split.time("embed", [&] { y = embed_forward(embed_, tokens_); });
    for (std::size_t l = 0; l < layers_.size(); ++l) y = forward(l, y, split);
    HeadResult head;
    split.time("head", [&] { head = head_forward_backward(model_, head_, y, targets_, kTokens); });
    at::Tensor balance, dy = head.dy_TD;
    split.time("balance", [&] {
      at::Tensor counts = at::zeros({1, model_.num_experts}, at::kLong);
      for (const Layer& layer : layers_) counts += layer.out.counts_BE.sum(0, true);
      balance = balance_gradient(model_, counts, kTokens, at::kFloat);
    });
    for (std::size_t l = layers_.size(); l-- > 0;) dy = backward(l, dy, balance, split);
    split.time("embed", [&] { embed_backward(embed_, tokens_, dy); });
    split.time("norm", [&] { factor_ = clip_factor(squared_norm(grads_).item<double>(), 1.0); });
    split.time("update", [&] { adamw_update(values_, grads_, adamw_, {}, 1e-4, factor_); });
    return head.loss.item<double>();
  }

  const ModelConfig& model() const { return model_; }

 private:
  void append(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& grads) {
    values_.insert(values_.end(), values.begin(), values.end());
    grads_.insert(grads_.end(), grads.begin(), grads.end());
  }

  at::Tensor forward(std::size_t l, const at::Tensor& y_in, Split& split) {
    Layer& layer = layers_[l];
    layer.y = y_in;
    split.time("attention.F", [&] {
      layer.out =
          attention_forward(model_, static_cast<i64>(l), layer.attention, y_in, kSeqLen, KeepGraph::kYes);
    });
    split.time("dispatch.F", [&] {
      layer.send = split_by_owner(layer.out.topk_TK, owners_, 1, RowDedup::kOn)[0];
      layer.rows = gather_rows(layer.out.x_TD, layer.send.token_R);
      layer.groups = group_copies({{layer.send.num_rows(), layer.send.row_C, layer.send.expert_C}},
                                  layer.slab.slot_of, layer.slab.num_slots());
      layer.weights =
          to_grouped(layer.groups, layer.out.weights_TK.reshape({-1}).index_select(0, layer.send.flat_C));
    });
    at::Tensor out, y;
    split.time("experts.F", [&] {
      out = experts_forward(layer.slab, layer.rows, layer.groups, layer.weights, &layer.saved);
    });
    split.time("combine.F", [&] {
      y = layer.out.u_TD.clone();
      add_rows_(y, layer.send.token_R, out);
    });
    return y;
  }

  at::Tensor backward(std::size_t l, const at::Tensor& dy, const at::Tensor& balance, Split& split) {
    Layer& layer = layers_[l];
    at::Tensor dout;
    split.time("combine.B", [&] { dout = gather_rows(dy, layer.send.token_R); });
    ExpertsGradient experts;
    split.time("experts.B", [&] {
      experts = experts_backward(layer.slab, layer.rows, layer.groups, layer.weights, &layer.saved, dout);
      layer.saved = {};
    });
    AttentionBackwardInput input{layer.y,
                                 dy,
                                 layer.out.topk_TK,
                                 at::zeros_like(dy),
                                 at::zeros_like(layer.out.weights_TK),
                                 balance,
                                 std::move(layer.out.graph)};
    split.time("dispatch.B", [&] {
      add_rows_(input.dx_TD, layer.send.token_R, experts.drows_RD);
      place_flat_(input.dweights_TK, layer.send.flat_C, to_arrival(layer.groups, experts.dweights_C));
    });
    AttentionGradient grad;
    split.time("attention.B", [&] {
      grad = attention_backward(model_, static_cast<i64>(l), layer.attention, input, kSeqLen);
    });
    return grad.dy_TD;
  }

  ModelConfig model_;
  StateGroup embed_, head_;
  std::vector<Layer> layers_;
  OwnerTable owners_;
  std::vector<at::Tensor> values_, grads_;
  AdamwState adamw_;
  at::Tensor tokens_, targets_;
  double factor_ = 1;
};

/// FLOP/s of the best of a few fp32 products of size 2048.
double sgemm_speed() {
  constexpr i64 kSize = 2048;
  static const at::Tensor a = at::rand({kSize, kSize}), b = at::rand({kSize, kSize});
  static at::Tensor out = at::empty({kSize, kSize});
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double start = now();
    at::mm_out(out, a, b);
    best = std::min(best, now() - start);
  }
  return 2.0 * kSize * kSize * kSize / best;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run(int steps) {
  Trainer trainer;
  std::vector<double> speeds, times;
  std::map<std::string, std::vector<double>> by_kind;
  double loss = 0;
  for (int i = 0; i < steps; ++i) {
    speeds.push_back(sgemm_speed());
    Split split;
    const double start = now();
    loss = trainer.step(split);
    times.push_back(now() - start);
    for (const auto& [kind, seconds] : split.seconds()) by_kind[kind].push_back(seconds);
  }
  const double flops = step_flops(trainer.model()), peak = *std::max_element(speeds.begin(), speeds.end());
  const double best = *std::min_element(times.begin(), times.end());
  fmt::print("config S, fp32, {} threads, {} steps, last loss {:.4f}\n", at::get_num_threads(), steps, loss);
  fmt::print("sgemm 2048      {:8.1f} GFLOP/s best, {:.1f} median\n", peak / 1e9, median(speeds) / 1e9);
  fmt::print("step            {:8.1f} ms best, {:.1f} ms median, {:.1f} GFLOP\n", best * 1e3,
             median(times) * 1e3, flops / 1e9);
  fmt::print("share of sgemm  {:8.3f} best of best, {:.3f} median of median\n", flops / best / peak,
             flops / median(times) / median(speeds));
  for (const auto& [kind, seconds] : by_kind) {
    fmt::print("  {:<13} {:8.1f} ms best, {:8.1f} median\n", kind,
               *std::min_element(seconds.begin(), seconds.end()) * 1e3, median(seconds) * 1e3);
  }
}

}  // namespace
}  // namespace hetermoe

int main(int argc, char** argv) {
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 2);
  hetermoe::keep_freed_memory();
  hetermoe::run(argc > 2 ? std::atoi(argv[2]) : 12);
}
