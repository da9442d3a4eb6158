#pragma once
#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hetermoe/base/types.h"
#include "hetermoe/model/expert_products.h"
#include "hetermoe/model/model_config.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/nn/adapters.h"
#include "hetermoe/nn/swiglu.h"

// Where the model's tensors live. The replicated state of embedding, head and each layer's attention part is
// a StateGroup; the routed experts of one layer on one device are an ExpertSlab. Both show their storage
// under the Hugging Face names, so that initialisation, checkpoints and comparisons never depend on how
// tensors are fused here.
namespace hetermoe {

/// One logical tensor under its Hugging Face name; `value` and `grad` are views of a storage.
struct NamedView {
  std::string name;
  at::Tensor value;
  at::Tensor grad;      ///< undefined for a buffer, and when frozen
  bool buffer = false;  ///< no parameter (e_score_correction_bias)
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// The storages that a state group may hold. Letters: H hidden, D heads' total width, S width of the MLP.
enum class Weight {
  kEmbedding,         ///< [V, H]
  kFinalNorm,         ///< [H]
  kLmHead,            ///< [V, H]; absent with tied embeddings: the head then uses kEmbedding
  kInputNorm,         ///< [H]
  kPostNorm,          ///< [H]
  kQkv,               ///< [(heads + 2 kv_heads) * head_dim, H]: q rows, then k, then v
  kQkvBias,           ///< [(heads + 2 kv_heads) * head_dim], of the rows of kQkv
  kQNorm,             ///< [head_dim] or [heads * head_dim]
  kKNorm,             ///< [head_dim] or [kv_heads * head_dim]
  kQ,                 ///< MLA without q_lora: [heads * (nope + rope), H]
  kQA,                ///< MLA: [q_lora, H]
  kQANorm,            ///< MLA: [q_lora]
  kQB,                ///< MLA: [heads * (nope + rope), q_lora]
  kKvA,               ///< MLA: [kv_lora + rope, H]
  kKvANorm,           ///< MLA: [kv_lora]
  kKvB,               ///< MLA: [heads * (nope + v), kv_lora]
  kO,                 ///< [H, heads * head_dim or heads * v]
  kOBias,             ///< [H]
  kSinks,             ///< [heads]
  kRouter,            ///< [E, H]
  kRouterLinearBias,  ///< [E]
  kMlpGateUp,         ///< shared experts or dense MLP: [2S, H], gate rows first
  kMlpDown,           ///< [H, S]
  kSharedGate,        ///< [1, H]
  kRouterBias,        ///< buffer [E] or [1, E], never below fp32
};

/// dtype and place of storages.
struct StorageOptions {
  StorageOptions(const at::TensorOptions& of_values) : values(of_values) {}
  StorageOptions(at::ScalarType dtype) : values(at::TensorOptions().dtype(dtype)) {}
  at::TensorOptions values;
  std::optional<at::ScalarType> grad = {};  ///< dtype of gradients, none = that of the values
  bool trainable = true;                    ///< false: there are no gradients
  OptimizerWidths optimizer = {};
  ExpertProducts expert_products = ExpertProducts::kAuto;
  /// Where something is trainable, it is its adapters, and not the matrices. Null = there are none.
  std::shared_ptr<const Lora> lora = nullptr;
  at::TensorOptions grads() const { return grad ? values.dtype(*grad) : values; }
};

/// Storages of one group of replicated state. values[i] and grads[i] have equal shapes and stay allocated for
/// life; a backward task adds into grads, zero_grads() starts a step.
struct StateGroup {
  /// A logical tensor: rows [begin, begin + rows) of a storage.
  struct Part {
    std::string name;
    i64 begin = 0, rows = 0;
  };

  std::vector<Weight> weights;            ///< which storage values[i] is
  std::vector<at::Tensor> values, grads;  ///< parameters; no grads when frozen
  std::vector<std::vector<Part>> parts;   ///< the logical tensors of values[i]
  at::Tensor buffer;                      ///< kRouterBias if the router has one, else undefined
  std::string buffer_name;
  std::vector<Adapter> adapters;  ///< trained in place of the values, which then have no grads

  bool trainable() const { return !grads.empty(); }
  /// Gradient of values[position], or of A and B of each adapter after these.
  at::Tensor grad_at(std::size_t position) const;
  bool has(Weight weight) const { return find(weight) >= 0; }
  const at::Tensor& value(Weight weight) const;
  at::Tensor& grad(Weight weight);
  std::vector<NamedView> views() const;  ///< logical tensors in checkpoint order, the buffer last
  /// The logical tensors of a list with the shapes of `values` (gradients, moments): views, in checkpoint
  /// order.
  std::vector<NamedTensor> named(const std::vector<at::Tensor>& storages) const;
  void zero_grads();
  i64 find(Weight weight) const;  ///< index in values, -1 = absent
};

/// With tied embeddings the embedding's group also holds the final norm and serves as the head's group.
StateGroup make_embed_state(const ModelConfig& model, const StorageOptions& options);
/// Final norm and lm_head. Only without tied embeddings.
StateGroup make_head_state(const ModelConfig& model, const StorageOptions& options);
/// Everything of layer `layer` but its routed experts.
StateGroup make_attention_state(const ModelConfig& model, i64 layer, const StorageOptions& options);

/// The routed experts of one layer on one device, in one storage per tensor.
struct ExpertSlab {
  i64 layer = 0;
  std::vector<ExpertId> experts;  ///< [slots] expert of each slot
  std::vector<i64> slot_of;       ///< [E] slot of each expert, -1 = not here
  /// [slots, 2F, H] (gate rows first) and [slots, H, F]. Biases lie in further rows, see matrices_of().
  at::Tensor gate_up, down;
  at::Tensor gate_up_grad, down_grad;  ///< same shapes, of the trainable slots alone, which come first
  ExpertProducts products = ExpertProducts::kAuto;
  GatedActivation activation = {};
  std::vector<Adapter> adapters;  ///< of all slots; the storages then have no gradients
  i64 num_slots() const { return static_cast<i64>(experts.size()); }
  i64 num_trainable() const { return down_grad.size(0); }
  i64 hidden() const { return gate_up.size(2); }
  i64 width() const { return down.size(2); }
  bool has_biases() const { return gate_up.size(1) > 2 * width(); }
  std::vector<NamedView> views(
      const ModelConfig& model) const;  ///< gate, up, down of every expert in slot order
  void zero_grads();
};
/// Views of a slab's storage [slots, rows and more, X]: the matrices [slots, rows, X], and the biases [slots,
/// rows] that lie in the rows behind them.
at::Tensor matrices_of(const at::Tensor& storage, i64 rows);
at::Tensor biases_of(const at::Tensor& storage, i64 rows);

/// The logical tensors of experts whose storages (or gradients, moments) are shaped as those of a slab:
/// views, gate, up and down of every expert, then their biases.
std::vector<NamedTensor> named_experts(const ModelConfig& model, i64 layer, std::span<const ExpertId> experts,
                                       const at::Tensor& gate_up, const at::Tensor& down);
/// The first num_trainable experts get gradients; -1 = all.
ExpertSlab make_expert_slab(const ModelConfig& model, i64 layer, std::vector<ExpertId> experts,
                            const StorageOptions& options, i64 num_trainable = -1);

/// The adapters of a group in a list with the shapes of values_of(adapters).
std::vector<NamedTensor> named_adapters(const StateGroup& group, const std::vector<at::Tensor>& storages);
/// Those of one expert in a list with the shapes of values_of(slab.adapters), whose slot it has.
std::vector<NamedTensor> named_adapters(const ModelConfig& model, const ExpertSlab& slab, ExpertId expert,
                                        const std::vector<at::Tensor>& storages, i64 slot);

/// Fills each tensor from a generator seeded by (seed, its name): matrices normal(0, 0.02), norms 1, biases,
/// attention sinks and buffers 0; of adapters A normal(0, 1 / sqrt(in)) and B 0. So any distribution over
/// devices, any fusing and any dtype starts from the same values (drawn in fp32, then cast).
void init_parameters(const std::vector<NamedView>& views, u64 seed);

/// fp64 stays fp64, everything else is fp32: the precision of routers, norms' statistics and losses.
at::ScalarType accumulate_type(at::ScalarType dtype);

}  // namespace hetermoe
