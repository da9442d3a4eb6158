#pragma once
#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "hetermoe/base/types.h"
#include "hetermoe/model/model_config.h"
#include "hetermoe/nn/router_training.h"

// The whole model on one device in plain form with ordinary autograd: what every plan must reproduce. It
// shares no code with the tasks of this folder.
namespace hetermoe {

using TensorsByName = std::map<std::string, at::Tensor>;  ///< by Hugging Face name

struct ReferenceResult {
  double loss = 0;      ///< cross entropy (mean over counted targets) + aux_loss
  double aux_loss = 0;  ///< load-balancing loss and z-loss, coefficients included
  TensorsByName grads;  ///< of every parameter (buffers have none)
};

/// Over what the load-balancing loss (model.aux_loss_coef) is computed.
struct AuxLoss {
  i64 group = 0;           ///< so many consecutive sequences, averaged weighted by tokens; 0 = all together
  bool per_layer = false;  ///< each MoE layer, averaged; false: all of them together, as in transformers
};

/// tokens_BS, targets_BS: int64 [B, seq_len], target -100 = not counted. choices: of routing replay,
/// [num_layers] integers [B, seq_len, K], see StepInput; empty = the routers choose. starts_BS: 1 where a
/// document begins, whose tokens see nothing from before it; undefined = sequences are not divided.
ReferenceResult reference_step(const ModelConfig& model, const TensorsByName& params,
                               const at::Tensor& tokens_BS, const at::Tensor& targets_BS,
                               const AuxLoss& aux = {}, const std::vector<at::Tensor>& choices = {},
                               const at::Tensor& starts_BS = {}, const RouterTraining& router = {});

/// Logits [B, S, V] of the same model, without gradients.
at::Tensor reference_logits(const ModelConfig& model, const TensorsByName& params,
                            const at::Tensor& tokens_BS);

}  // namespace hetermoe
