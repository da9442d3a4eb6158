#pragma once
#include <string>
#include <vector>

#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// Lets parts of a plan live on the hosts of its devices. Each entry is `[layers A-B:][devices A-B:]WHAT`
/// with WHAT one of all, none, weights, optimizer, saved, or PART, PART.weights, PART.optimizer with a part
/// of embed, attention, experts, head; "layers 8:" is one layer. Weights take their optimizer along; saved
/// are the inputs from which backward starts. Later entries overrule earlier ones. Throws ConfigError with
/// `where` for an entry that means nothing.
void offload(Plan& plan, const ModelConfig& model, const Cluster& cluster,
             const std::vector<std::string>& entries, const std::string& where);

/// Embedding, attention parts and head are divided over the devices that have them (Residence::kSharded), and
/// so is the optimizer of everything.
void shard_weights(Plan& plan);
/// Some part is.
bool shards_weights(const Plan& plan);

}  // namespace hetermoe
