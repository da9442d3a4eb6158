// One training step of a small Mixtral (bench/peers: config S or M) on one CPU device: time by op kind beside
// its roofline, and the whole step as a share of the fp32 matrix product's speed, all measured in the same
// run. Usage: nn_step_bench [threads = 2] [steps = 12] [s | m] [fp32 | bf16 | fp16]
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

#include "hetermoe/base/median.h"
#include "hetermoe/device/cpu_memory.h"
#include "hetermoe/model/model_config.h"
#include "hetermoe/nn/attention_part.h"
#include "hetermoe/nn/embed_head.h"
#include "hetermoe/nn/experts.h"
#include "hetermoe/nn/optimizer.h"
#include "hetermoe/nn/router.h"
#include "hetermoe/nn/rows.h"

namespace hetermoe {
namespace {

/// A model and its batch.
struct Config {
  ModelConfig model;
  i64 sequences, seq_len;
  at::ScalarType dtype;
  /// 16-bit values have gradients in fp32, as a run's have.
  StorageOptions storage() const {
    StorageOptions options(dtype);
    options.grad = at::kFloat;
    return options;
  }
  i64 tokens() const { return sequences * seq_len; }
};

at::ScalarType named_dtype(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  return name == "fp16" ? at::kHalf : at::kFloat;
}

/// "s" or "m", with the batches of bench/peers.
Config make_config(const std::string& name, at::ScalarType dtype) {
  return name == "m" ? Config{load_model("m"), 4, 512, dtype} : Config{load_model("s"), 8, 256, dtype};
}

/// What an op kind cannot avoid: products, and each of its operands, results and what is kept moved once.
struct Work {
  double flops = 0, bytes = 0;
};

/// By op kind, of a step. Causal attention counts its lower half, backward twice forward.
std::map<std::string, Work> step_work(const Config& config) {
  const ModelConfig& m = config.model;
  const double tokens = static_cast<double>(config.tokens()), hidden = static_cast<double>(m.hidden),
               layers = static_cast<double>(m.num_layers), experts = static_cast<double>(m.num_experts);
  const double copies = tokens * static_cast<double>(m.top_k);
  const double heads = static_cast<double>(m.num_heads * m.head_dim);
  const double scores =
      heads * static_cast<double>(config.seq_len);  // two products over half of seq_len each
  const double attention_weights = 4 * heads * hidden + hidden * experts;
  const double expert_width = 3 * hidden * static_cast<double>(m.expert_hidden);
  const double head_weights = hidden * static_cast<double>(m.vocab);
  const double rows = tokens * hidden, kept = copies * 2 * static_cast<double>(m.expert_hidden);
  const double parameters = layers * (attention_weights + experts * expert_width) + 2 * head_weights;
  const double attention_flops = layers * 2 * tokens * (attention_weights + scores);
  const double expert_flops = layers * 2 * copies * expert_width;
  constexpr double kBytes = 4;
  std::map<std::string, Work> out = {
      // y; u, x; qkv and the heads' outputs
      {"attention.F", {attention_flops, layers * (attention_weights + 7 * rows)}},
      // weights, gradients read and written; what forward kept; du, dx, dy
      {"attention.B", {2 * attention_flops, layers * (3 * attention_weights + 10 * rows)}},
      {"experts.F", {expert_flops, layers * (experts * expert_width + 2 * rows + kept)}},
      {"experts.B", {2 * expert_flops, layers * (3 * experts * expert_width + 3 * rows + kept)}},
      {"dispatch.F", {0, layers * 2 * rows}},
      {"dispatch.B", {0, layers * 2 * rows}},
      {"combine.F", {0, layers * 3 * rows}},
      {"combine.B", {0, layers * 2 * rows}},
      {"embed", {0, 4 * rows}},
      {"head", {3 * 2 * tokens * head_weights, 3 * head_weights + 2 * rows}},
      {"norm", {0, parameters}},
      {"update", {0, 7 * parameters}},  // weights and two moments read and written, gradients read
      {"zero", {0, parameters}},
  };
  for (auto& [kind, work] : out) work.bytes *= kBytes;
  return out;
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
  explicit Trainer(const Config& config)
      : config_(config),
        model_(config.model),
        embed_(make_embed_state(model_, config.storage())),
        head_(make_head_state(model_, config.storage())) {
    std::vector<ExpertId> all(static_cast<std::size_t>(model_.num_experts));
    for (std::size_t e = 0; e < all.size(); ++e) all[e] = static_cast<ExpertId>(e);
    for (i64 l = 0; l < model_.num_layers; ++l) {
      Layer& layer = layers_.emplace_back();
      layer.attention = make_attention_state(model_, l, config.storage());
      layer.slab = make_expert_slab(model_, l, all, config.storage());
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
    tokens_ = at::arange(config_.tokens(), at::kLong).mul(7919).remainder(model_.vocab);
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
    split.time("head", [&] { head = head_forward_backward(model_, head_, y, targets_, config_.tokens()); });
    at::Tensor balance, dy = head.dy_TD;
    split.time("balance", [&] {
      at::Tensor counts = at::zeros({1, model_.num_experts}, at::kLong);
      for (const Layer& layer : layers_) counts += layer.out.counts_BE.sum(0, true);
      balance = balance_gradient(model_, counts, config_.tokens(), at::kFloat);
    });
    for (std::size_t l = layers_.size(); l-- > 0;) dy = backward(l, dy, balance, split);
    split.time("embed", [&] { embed_backward(embed_, tokens_, dy); });
    split.time("norm", [&] { factor_ = clip_factor(squared_norm(grads_).item<double>(), 1.0); });
    split.time("update", [&] { adamw_update(values_, grads_, adamw_, {}, 1e-4, factor_); });
    return head.loss.item<double>();
  }

 private:
  void append(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& grads) {
    values_.insert(values_.end(), values.begin(), values.end());
    grads_.insert(grads_.end(), grads.begin(), grads.end());
  }

  at::Tensor forward(std::size_t l, const at::Tensor& y_in, Split& split) {
    Layer& layer = layers_[l];
    layer.y = y_in;
    split.time("attention.F", [&] {
      layer.out = attention_forward(model_, static_cast<i64>(l), layer.attention, y_in, config_.seq_len,
                                    KeepGraph::kYes);
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
      grad = attention_backward(model_, static_cast<i64>(l), layer.attention, input, config_.seq_len);
    });
    return grad.dy_TD;
  }

  const Config& config_;
  const ModelConfig& model_;
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

/// Bytes per second, read and written, of the best of a few copies that no cache holds.
double copy_speed() {
  constexpr i64 kCount = 32 << 20;
  static const at::Tensor from = at::ones({kCount});
  static at::Tensor to = at::empty({kCount});
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double start = now();
    to.copy_(from);
    best = std::min(best, now() - start);
  }
  return 2.0 * kCount * 4 / best;
}

/// `flops`, `bytes`: what the machine does in a second.
void print_profile(const std::map<std::string, std::vector<double>>& by_kind, const Config& config,
                   double flops, double bytes) {
  const std::map<std::string, Work> work = step_work(config);
  fmt::print(
      "op kind          ms median   of step    GFLOP     MB  bound by  roofline ms  share of roofline\n");
  double total = 0;
  for (const auto& [kind, seconds] : by_kind) total += median(seconds);
  for (const auto& [kind, seconds] : by_kind) {
    const double time = median(seconds);
    fmt::print("  {:<13} {:10.1f} {:8.1f} %", kind, time * 1e3, 100 * time / total);
    if (const auto it = work.find(kind); it != work.end()) {
      const double compute = it->second.flops / flops, memory = it->second.bytes / bytes;
      fmt::print(" {:8.2f} {:6.0f}  {:<8} {:12.2f} {:18.2f}", it->second.flops / 1e9, it->second.bytes / 1e6,
                 compute > memory ? "compute" : "memory", 1e3 * std::max(compute, memory),
                 std::max(compute, memory) / time);
    }
    fmt::print("\n");
  }
}

void run(const Config& config, int steps) {
  Trainer trainer(config);
  std::vector<double> flops_speeds, copy_speeds, times;
  std::map<std::string, std::vector<double>> by_kind;
  double loss = 0;
  for (int i = 0; i < steps; ++i) {
    flops_speeds.push_back(sgemm_speed());
    copy_speeds.push_back(copy_speed());
    Split split;
    const double start = now();
    loss = trainer.step(split);
    times.push_back(now() - start);
    for (const auto& [kind, seconds] : split.seconds()) by_kind[kind].push_back(seconds);
  }
  double flops = 0;
  for (const auto& [kind, work] : step_work(config)) flops += work.flops;
  const double peak = *std::max_element(flops_speeds.begin(), flops_speeds.end());
  const double best = *std::min_element(times.begin(), times.end());
  fmt::print("config {}, {}, {} threads, {} steps, last loss {:.4f}\n", config.model.name,
             c10::toString(config.dtype), at::get_num_threads(), steps, loss);
  fmt::print("sgemm 2048      {:8.1f} GFLOP/s best, {:.1f} median\n", peak / 1e9, median(flops_speeds) / 1e9);
  fmt::print("copy            {:8.1f} GB/s median\n", median(copy_speeds) / 1e9);
  fmt::print("step            {:8.1f} ms best, {:.1f} ms median, {:.1f} GFLOP\n", best * 1e3,
             median(times) * 1e3, flops / 1e9);
  fmt::print("share of sgemm  {:8.3f} best of best, {:.3f} median of median\n", flops / best / peak,
             flops / median(times) / median(flops_speeds));
  print_profile(by_kind, config, median(flops_speeds), median(copy_speeds));
}

}  // namespace
}  // namespace hetermoe

int main(int argc, char** argv) {
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 2);
  hetermoe::keep_freed_memory();
  hetermoe::run(
      hetermoe::make_config(argc > 3 ? argv[3] : "s", hetermoe::named_dtype(argc > 4 ? argv[4] : "fp32")),
      argc > 2 ? std::atoi(argv[2]) : 12);
}
