#pragma once
#include <vector>

#include "hetermoe/model/model_config.h"

// Work and memory of the parts of a model: the only place with such formulas. Everything follows from the
// shapes; no device enters here. One multiply-add counts 2 FLOPs; norms, activations, rotary embedding,
// softmax and residual adds count none (they are below 1 % of the FLOPs and limited by memory: see the
// *_traffic functions).
//
// Letters: H hidden, V vocabulary, h query heads, kv key/value heads, d size of a query or key head, dv of a
// value head (GQA: dv = d), E routed experts, k experts per token, I expert width, S = shared experts, D
// dense width, s sequence length. `element` is the size of one number in bytes.
namespace hetermoe {

// --- weights, in elements ---

/// Weights of one layer by part. Parts that the layer does not have are 0.
struct LayerWeights {
  i64 projections = 0;  ///< GQA: H*(h*d + kv*d + kv*dv) + h*dv*H. MLA: see attention_projection_weights
  i64 biases = 0;       ///< of q, k and v: h*d + kv*d + kv*dv; of the output: H; attention sinks: h
  i64 norms = 0;        ///< two layer norms of H; q and k norms; MLA: the norms inside the low-rank pairs
  i64 router = 0;       ///< E*H, plus E with a bias, and E with a correction bias (a buffer)
  i64 shared = 0;   ///< 3*H*W with W the width of the shared expert, S*I unless it has its own; H of its gate
  i64 dense = 0;    ///< 3*H*D
  i64 experts = 0;  ///< all routed experts: E*3*H*I, plus E*(2*I + H) with biases
  /// Weights that every device with a share of the attention part holds: all but the routed experts.
  i64 attention_part() const { return projections + biases + norms + router + shared + dense; }
};
LayerWeights layer_weights(const ModelConfig& model, i64 layer);

/// Elements of the attention matrices. GQA: q, k, v, o. MLA: q_proj H*h*d, or q_a H*q_lora + q_b q_lora*h*d;
/// kv_a H*(kv_lora + rope), kv_b kv_lora*h*(nope + dv), o h*dv*H.
i64 attention_projection_weights(const ModelConfig& model);
i64 expert_weights(
    const ModelConfig& model);  ///< one routed expert: gate, up and down, 3*H*I, biases 2*I + H

/// Bytes that training keeps per parameter. 2-byte weights (mixed precision): weights 2 + gradients 4 + fp32
/// master 4 + two Adam moments 8 = 18. 4 bytes: 4 + 4 + 8 = 16, no master. 8 bytes: 8 + 8 + 16 = 32, no
/// master.
struct StateBytes {
  Bytes weights = 0, gradients = 0, master = 0, moments = 0;
  /// Replicas divide master and moments among them where the optimizer is sharded.
  Bytes total(double replicas = 1) const { return weights_and_gradients() + (master + moments) / replicas; }
  /// Bytes that forward and backward use.
  Bytes weights_and_gradients() const { return weights + gradients; }
};
/// Numbers that the optimizer keeps for parameters. A master is that of 16-bit values; without one the values
/// are rounded stochastically. Moments are never wider than 4 bytes but those of 8-byte values.
struct OptimizerWidths {
  bool master = true;
  Bytes moment = 4;  ///< each
  bool operator==(const OptimizerWidths&) const = default;
};
StateBytes state_bytes_per_parameter(Bytes element, const OptimizerWidths& kept = {});
/// The same with gradients of another size.
StateBytes state_bytes_per_parameter(Bytes element, Bytes gradient, const OptimizerWidths& kept = {});

/// The optimizer converts gradients in blocks of at most so many bytes.
inline constexpr i64 kUpdateBlockBytes = 64 << 20;
/// And 16-bit values and moments in blocks of so many elements.
inline constexpr i64 kNarrowBlock = kUpdateBlockBytes / 16;
/// Work memory of the gradient norm of one state with `params` elements: nothing in fp32, a block of them in
/// fp64 for 16-bit ones, their squares for fp64 ones.
Bytes norm_work_bytes(double params, Bytes gradient_element);
/// Work memory of AdamW for one state, a block at a time: fp32 copies of 16-bit gradients, scaled copies of
/// fp64 gradients, and copies of 16-bit moments and of 16-bit values without masters.
Bytes update_work_bytes(double params, Bytes gradient_element, const OptimizerWidths& kept = {});

// --- forward FLOPs ---

Flops projection_flops(const ModelConfig& model);  ///< per token and layer: 2 * attention_projection_weights
Flops input_projection_flops(const ModelConfig& model);  ///< of these all but the last, which is 2*h*dv*H
/// And those of the product that makes keys and values of all heads from latents (MLA), else 0.
Flops latent_product_flops(const ModelConfig& model);
/// Per sequence and layer, causal: scores and weighted sum are 2*s*s*h*d + 2*s*s*h*dv over the full square,
/// half of which lies under the diagonal: s*s*h*(d + dv). A kernel that does not skip the upper half does
/// twice this. In a layer with a window w < s a token sees w others at most: (2*s*w - w*w)*h*(d + dv).
Flops score_flops(const ModelConfig& model, i64 layer, i64 seq_len);
/// The layer has a window that is shorter than the sequence.
bool is_windowed(const ModelConfig& model, i64 layer, i64 seq_len);
/// Elements of the score matrix of one sequence and layer, h*s*s, of a kernel that writes it to memory.
double score_elements(const ModelConfig& model, i64 seq_len);
Flops router_flops(const ModelConfig& model, i64 layer);  ///< per token: 2*H*E, 0 in a dense layer
Flops shared_flops(const ModelConfig& model,
                   i64 layer);  ///< per token: 6*H*W, 2*H of a gate, 0 in a dense layer
Flops dense_flops(const ModelConfig& model, i64 layer);  ///< per token: 6*H*D, 0 in a layer with experts
Flops expert_flops(const ModelConfig& model);            ///< per row of one routed expert: 6*H*I
Flops head_flops(const ModelConfig& model);              ///< per token: 2*H*V
inline constexpr Flops kEmbeddingFlops = 0;              ///< a gather

/// Per token, of everything that op `attention` of a layer does: projections, scores at this length
/// (score_flops / s), router, shared experts or dense MLP.
Flops attention_part_flops(const ModelConfig& model, i64 layer, i64 seq_len);

/// Per token: all layers' attention parts, k experts in each MoE layer, and the head. For model FLOPs
/// utilisation: recomputation is not counted.
Flops model_flops_per_token(const ModelConfig& model, i64 seq_len);
/// Forward and backward, 3 * model_flops_per_token: each GEMM has two GEMMs of the same size in backward.
Flops training_flops_per_token(const ModelConfig& model, i64 seq_len);

/// Backward FLOPs over forward FLOPs. GEMM: gradients of input and weight. Scores: with probabilities kept,
/// the gradients of two products are four; a fused kernel computes the scores again, five products for two.
inline constexpr double kGemmBackward = 2.0;
inline constexpr double kScoreBackwardPlain = 2.0;
inline constexpr double kScoreBackwardFused = 2.5;

// --- memory traffic, in elements read plus written by the forward pass, without weights ---

/// Per token of op `attention`: norm 2H; q, k, v GEMM H in, q + k + v out (MLA: also each low-rank stage in,
/// out and normed); q/k norm and rotary embedding 2(q + k) each; biases 2(q + k + v); attention q + k + v in,
/// h*dv out (a fused kernel; add 4 * score_elements / s for one that writes and reads scores and
/// probabilities); o GEMM; residual 3H; norm 2H; router H + E; shared or dense MLP of width W: gate and up
/// GEMM H + 2W, product 3W, down GEMM W + H, add 3H, gate of a shared expert 3H.
double attention_traffic(const ModelConfig& model, i64 layer);
/// The part of this traffic from the first norm to the rotary embedding, and that of the attention kernel. A
/// team computes these two in ops of their own.
double projection_traffic(const ModelConfig& model);
double score_traffic(const ModelConfig& model);
/// The part of projection_traffic that makes keys and values of all heads from latents: k + v out, 2k where
/// their turned part is repeated.
double latent_product_traffic(const ModelConfig& model);
/// Per row of an expert: gate and up GEMM H + 2I, product 3I, down GEMM I + H, routing weight 2H.
double expert_traffic(const ModelConfig& model);
/// Per token: norm 2H, GEMM H + V, loss and gradient of the logits 2V.
double head_traffic(const ModelConfig& model);
double embedding_traffic(const ModelConfig& model);  ///< per token: one row read, one written, 2H

// --- activations ---

/// One row of hidden states, as it lies in memory or goes over the wire: H * element.
Bytes row_bytes(const ModelConfig& model, Bytes element);

/// Per token of a MoE layer, kept until backward whatever is recomputed (top-k is never run twice): k expert
/// ids of 8 bytes and k weights of 4. 0 in a dense layer.
Bytes routing_bytes(const ModelConfig& model, i64 layer);
/// Tables of rows and copies that are sent: one index of a row; of a copy its row, its expert and its place.
Bytes send_index_bytes(double rows, double copies);

/// The activations that forward keeps for backward. kSelected: without the results of norms and activation
/// functions, which are cheap to compute again, and without the rows of experts, which are sent again.
enum class KeptActivations { kInputs, kSelected, kAll };

struct ActivationOptions {
  Bytes element = 2;
  KeptActivations keeps = KeptActivations::kInputs;
  bool scores_in_memory = false;  ///< the attention kernel keeps its probabilities: h*s elements per token
  i64 seq_len = 0;                ///< only used with scores_in_memory
  bool of_team = false;           ///< queries to the kernel's output are made by ops of their own
  bool latents = false;           ///< of a team: keys and values are made by the attention kernel's op
  /// For activation_ledger(): devices of an even team, whose lines are then listed, too; and rows of a token
  /// at the owners of experts, one for each of these with row_dedup.
  i64 team = 0;
  double rows = 0;
};

/// A tensor that backward may need.
struct Activation {
  /// Of a token in an attention part, of a (row, expert) pair, of a row at an owner of experts.
  enum class Of { kToken, kCopy, kRow };
  enum class Kept {
    kAlways,            ///< backward starts from it
    kUnlessRecomputed,  ///< with KeptActivations::kAll and kSelected from forward on, else made again
    kUnlessSelected,    ///< with kAll from forward on, else made again
    kUnlessSent,        ///< but with kSelected, where it is sent again
    kNever,             ///< made inside an op from what is kept
    kPassing            ///< of forward alone: backward does not need it
  };
  /// For lines of an attention part: up to q, k and v; of the attention kernel; after it.
  enum class In { kProjection, kScores, kRest };
  const char* name;
  Of of;
  Kept kept;
  In in = In::kRest;
  double elements = 0;  ///< in the compute dtype
  Bytes wide = 0;       ///< bytes of fp32 numbers and indices, whatever the dtype
  Bytes bytes(Bytes element) const { return elements * element + wide; }
};
/// Whether a line is there between forward and backward.
bool is_kept(Activation::Kept kept, KeptActivations keeps);
/// The ledger of a layer: everything that forward makes and backward needs, and nothing else says how large
/// it is. W = S*I of the shared expert or D of the dense MLP. MLA: q (after rotary), k = h*d (shared rotary
/// part repeated), v, and the latents before and after their norms. With scores_in_memory the attention
/// kernel keeps its probabilities, else log-sums. Of a device of a team: per token of its own, everything
/// that forward makes; the kernel's q, k and v are those of its heads for all tokens of the team.
std::vector<Activation> activation_ledger(const ModelConfig& model, i64 layer,
                                          const ActivationOptions& options);
/// How often a line of such a ledger occurs for a token.
double times_per_token(const ModelConfig& model, const Activation& line, const ActivationOptions& options);

/// Bytes per token that op `attention` makes and backward needs, besides its input and the routing: lines of
/// the ledger that are kept unless recomputed. With recompute none of it is kept between forward and
/// backward; all of it exists while one backward op runs.
Bytes attention_work_bytes(const ModelConfig& model, i64 layer, const ActivationOptions& options);
/// The lines of one part of the attention part among these, whatever options.of_team says.
Bytes kept_bytes_of(const ModelConfig& model, i64 layer, Activation::In in, const ActivationOptions& options);
/// Further bytes per token that the backward of an attention part holds, at its peak: the gradients of q, k,
/// v and of the attention kernel's output.
Bytes attention_gradient_bytes(const ModelConfig& model, Bytes element);
/// Bytes per token that attention.B leaves for attention.W: the inputs of the products and the gradients of
/// their results. In elements H + h*dv + H and the inner activation W of the MLP beside; q + k + v, H of the
/// output projection, 2W + H of that MLP; MLA: q, both latents after their norms, compressed and decompressed
/// keys and values instead of q + k + v. Gradients of router logits are fp32. In a team the first of these,
/// up to q + k + v, are not left: their op computes the gradients of its weights.
Bytes attention_left_bytes(const ModelConfig& model, i64 layer, Bytes element, bool of_team = false);
/// Bytes per token of these that forward keeps.
Bytes attention_kept_bytes(const ModelConfig& model, i64 layer, const ActivationOptions& options);
/// Per token, memory traffic of making again what kSelected does not keep: both norms 2H each, the product of
/// an MLP 3W. In elements.
double selected_traffic(const ModelConfig& model, i64 layer);
/// Kept per token and layer between forward and backward: the input row, the routing and
/// attention_kept_bytes.
Bytes attention_saved_bytes(const ModelConfig& model, i64 layer, const ActivationOptions& options);

/// Bytes per (row, expert) pair that op `experts` makes inside: gate, up and their product, 3*I elements;
/// backward writes the gradients over them. The expert's output is not among them: the gradient of the
/// routing weight is the product of (gradient through down) and the inner activation.
Bytes expert_work_bytes(const ModelConfig& model, Bytes element);
/// The activation's own intermediate results, besides: in fp64 so many numbers for each of the I. None in 16
/// bits and in fp32, where they are never in memory. A GPU without kernels of our own has at most
/// kActivationBlockBytes of them, which do not count here.
inline constexpr i64 kActivationTemporaries = 11, kActivationBlockBytes = 64 << 20;
Bytes activation_work_bytes(const ModelConfig& model, double copies, Bytes element);
/// Bytes per pair that experts.B leaves for experts.W: gradients of gate and up, and the inner activation.
Bytes expert_left_bytes(const ModelConfig& model, Bytes element);
/// The part of these that backward needs: gate and up.
Bytes expert_kept_bytes(const ModelConfig& model, Bytes element);
/// Kept per (row, expert) pair between forward and backward: the received row and its routing weight (4
/// bytes), unless it is sent again; with kAll and kSelected expert_kept_bytes. A row that is received once
/// for several experts of a device is counted once per expert here: an upper bound with row_dedup.
Bytes expert_saved_bytes(const ModelConfig& model, const ActivationOptions& options);

/// Tokens whose logits exist at once: the head works in runs of so many. On a CPU, and on a GPU: there
/// products of few rows are slow, so a run has 4,096 tokens, and up to 8,192 where their logits take no more
/// than 512 MiB.
inline constexpr i64 kHeadRunOnCpu = 1024;
i64 head_run_on_gpu(const ModelConfig& model, Bytes element);
/// Work memory of the head for one run of the microbatch's tokens, on the kind of device that needs more. Per
/// token of a CPU: logits, V*element, and their softmax, V*4, plus the normed row. Per token of a GPU:
/// logits, in whose place their gradient comes, plus the row.
Bytes head_work_bytes(const ModelConfig& model, double tokens, Bytes element);

}  // namespace hetermoe
