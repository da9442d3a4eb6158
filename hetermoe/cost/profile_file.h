#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/base/enum_count.h"
#include "hetermoe/cluster/cluster.h"
#include "hetermoe/model/expert_products.h"
#include "hetermoe/model/model_config.h"

// A profile: what one device took for the ops of one model, as a file that `hetermoe profile` writes and
// MeasuredCost reads.
namespace hetermoe {

/// The ops that were timed. gather: packing rows of a message; merge: adding returned rows to the residual
/// stream; transfer: packing, handing over between two threads of a process and unpacking. The last five are
/// parts of a step on one device, measured in whole steps: transfers whose rows all stay where they are, and
/// gap, the time per op in which no op runs. Older files have none of these.
enum class ProfiledOp {
  kEmbed,
  kAttention,       ///< attention part of a layer with experts: norms, attention, router, routing tables
  kDenseAttention,  ///< attention part of a layer with a dense MLP, the MLP included
  kExperts,
  kHead,
  kUpdate,
  kGather,
  kMerge,
  kTransfer,
  kNorm,
  kDispatch,
  kCombine,
  kBalance,
  kGap
};
inline constexpr int kNumProfiledOps = 14;
/// recompute: a forward that keeps its activations, on a given choice of experts. backward: from kept
/// activations. forward_backward: one op that does both, which is the head while training, and a backward op
/// that starts from its saved input. forward_kept: a forward that chooses experts and keeps its activations,
/// which is that of a step without recomputation.
enum class ProfiledPhase { kForward, kRecompute, kBackward, kForwardBackward, kForwardKept };
inline constexpr int kNumProfiledPhases = 5;

template <>
struct EnumNames<ProfiledOp> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<ProfiledPhase> {
  static const std::vector<std::string>& names();
};

/// One row of the table. Sizes that do not matter for the op are 0.
struct ProfileEntry {
  ProfiledOp op = ProfiledOp::kEmbed;
  ProfiledPhase phase = ProfiledPhase::kForward;
  i64 seq_len = 0, sequences = 0, tokens = 0;
  i64 rows = 0, copies = 0, experts = 0;
  i64 params = 0;
  double bytes = 0;          ///< of the message
  Seconds seconds = 0;       ///< median
  Seconds p10 = 0, p90 = 0;  ///< of the runs
  i64 runs = 0;
  double peak_bytes = 0;  ///< most tensor bytes allocated during the op, inputs and parameters not counted
  double kept_bytes = 0;  ///< of these still alive when it ended: results and kept activations
  bool operator==(const ProfileEntry&) const = default;
  template <class V>
  void fields(V& v) {
    v("op", op, "what was timed");
    v("phase", phase, "direction");
    v("seq_len", seq_len, "attention: tokens per sequence", at_least(0));
    v("sequences", sequences, "attention: sequences", at_least(0));
    v("tokens", tokens, "attention, embed, head, dispatch, combine, balance, gap: tokens", at_least(0));
    v("rows", rows, "experts: rows received; gather, merge, transfer: rows moved", at_least(0));
    v("copies", copies, "experts: (row, expert) pairs", at_least(0));
    v("experts", experts, "experts: how many computed together, with equal rows", at_least(0));
    v("params", params, "update, norm: parameters", at_least(0));
    v("bytes", bytes, "gather, merge, transfer: bytes of the rows", at_least(0));
    v("seconds", seconds, "median of the runs, s", above(0));
    v("p10_s", p10, "tenth percentile, s", above(0));
    v("p90_s", p90, "ninetieth percentile, s", above(0));
    v("runs", runs, "timed runs", at_least(1));
    v("peak_bytes", peak_bytes, "most tensor bytes allocated during the op", at_least(0));
    v("kept_bytes", kept_bytes, "of these alive at its end", at_least(0));
  }
};

/// The fields of a model that decide how long its ops take. Layers are profiled once, so their number is not
/// among them.
struct ProfiledShape {
  i64 hidden = 0, vocab = 0;
  AttentionKind attention = AttentionKind::kGqa;
  i64 num_heads = 0, num_kv_heads = 0, head_dim = 0;
  QkNorm qk_norm = QkNorm::kNone;
  i64 q_lora_rank = 0, kv_lora_rank = 0, qk_rope_dim = 0, v_dim = 0;
  i64 num_experts = 0, top_k = 0, expert_hidden = 0, shared_hidden = 0, dense_hidden = 0;
  RouterScore router_score = RouterScore::kSoftmax;
  bool operator==(const ProfiledShape&) const = default;
  template <class V>
  void fields(V& v) {
    v("hidden", hidden, "hidden size", at_least(1));
    v("vocab", vocab, "vocabulary", at_least(1));
    v("attention", attention, "kind of attention");
    v("num_heads", num_heads, "query heads", at_least(1));
    v("num_kv_heads", num_kv_heads, "key and value heads", at_least(1));
    v("head_dim", head_dim, "width of a query head", at_least(1));
    v("qk_norm", qk_norm, "norms of queries and keys");
    v("q_lora_rank", q_lora_rank, "MLA", at_least(0));
    v("kv_lora_rank", kv_lora_rank, "MLA", at_least(0));
    v("qk_rope_dim", qk_rope_dim, "MLA", at_least(0));
    v("v_dim", v_dim, "MLA: width of a value head", at_least(0));
    v("num_experts", num_experts, "routed experts of a layer", at_least(1));
    v("top_k", top_k, "experts per token", at_least(1));
    v("expert_hidden", expert_hidden, "width of a routed expert", at_least(1));
    v("shared_hidden", shared_hidden, "width of the shared experts", at_least(0));
    v("dense_hidden", dense_hidden, "width of the MLP of dense layers", at_least(0));
    v("router_score", router_score, "score function of the router");
  }
};
ProfiledShape shape_of(const ModelConfig& model);

struct ProfileFile {
  i64 format = 1;
  std::string host, device, date, torch, compiler;
  i64 threads = 1;
  Dtype dtype = Dtype::kFp32;
  std::string model;
  ProfiledShape shape;
  ExpertProducts expert_products = ExpertProducts::kAuto;  ///< the faster ones, if that was measured
  std::vector<ProfileEntry> entries;
  bool operator==(const ProfileFile&) const = default;
  template <class V>
  void fields(V& v) {
    v("format", format, "version of this file's layout", between(1, 1));
    v("host", host, "machine");
    v("device", device, "name of the processor or GPU");
    v("date", date, "UTC, ISO 8601");
    v("torch", torch, "version of libtorch");
    v("compiler", compiler, "compiler of this program");
    v("threads", threads, "threads of an op on a CPU", at_least(1));
    v("dtype", dtype, "compute dtype");
    v("model", model, "name of the model");
    v("shape", shape, "its shape");
    v("expert_products", expert_products,
      "what was faster for the products of experts: each by itself or grouped; auto = not measured");
    v("entries", entries, "what was measured");
  }
};

/// Throws ConfigError for text that is no profile: truncated, unknown keys, a size measured twice, no
/// entries.
ProfileFile parse_profile(const std::string& text, const std::string& where);
ProfileFile read_profile(const std::filesystem::path& path);
void write_profile(const ProfileFile& profile, const std::filesystem::path& path);

/// Throws ConfigError that names the file, what it holds and what the run needs.
void check_profile(const ProfileFile& profile, const ModelConfig& model, Dtype dtype,
                   const std::string& where);

/// Coordinates of an entry in MeasuredCost's tables: family (sequence length of attention, number of experts;
/// 1 for the rest) and size (sequences, rows per expert, tokens, parameters, rows, bytes of a transfer).
struct ProfilePoint {
  double family = 1, size = 0;
};
ProfilePoint point_of(const ProfileEntry& entry);

}  // namespace hetermoe
