#pragma once
#include "hetermoe/nn/kv_cache.h"
#include "hetermoe/nn/params.h"

namespace hetermoe {

/// A whole model on one device, which is not trained.
struct ModelState {
  StateGroup embed, head;             ///< head: empty with tied embeddings
  std::vector<StateGroup> attention;  ///< [num_layers]
  std::vector<ExpertSlab> experts;    ///< [num_layers], without slots in dense layers
  /// Every parameter and buffer under its Hugging Face name.
  std::vector<NamedView> views(const ModelConfig& model) const;
};
ModelState make_model_state(const ModelConfig& model, const at::TensorOptions& options);

/// Reads one text, token after token, and says what comes next. Works where the state is, with keys and
/// values there, too; tokens may be on the host.
class Decoder {
 public:
  /// capacity: tokens of the text, at most. Keeps references to model and state.
  Decoder(const ModelConfig& model, const ModelState& state, i64 capacity);
  i64 size() const { return caches_[0].size; }  ///< tokens read
  /// Logits [tokens, vocabulary] after each of the next tokens, fp32 (fp64 in an fp64 model).
  at::Tensor read(const at::Tensor& tokens_T);
  /// Logits [vocabulary] after the last of the next tokens. Reads them in parts, so that beside keys and
  /// values the memory does not grow with their number. Parts are of `part` tokens; 0 = chosen by the
  /// capacity.
  at::Tensor read_prompt(const at::Tensor& tokens_T, i64 part = 0);

 private:
  at::Tensor hidden_states(const at::Tensor& tokens_T);
  at::Tensor logits_of(const at::Tensor& y_TD) const;
  at::Tensor add_experts(i64 layer, const AttentionOutput& out) const;
  const ModelConfig& model_;
  const ModelState& state_;
  std::vector<KvCache> caches_;  // [num_layers]
};

struct SamplingOptions {
  double temperature = 0;  ///< 0 = the most likely token
  double top_p = 1;        ///< of the likeliest tokens that have this probability together
  u64 seed = 1;
};
/// A token after position `position`, of logits [vocabulary]: the same for the same seed and position.
i64 choose_token(const at::Tensor& logits_V, const SamplingOptions& options, i64 position);

}  // namespace hetermoe
