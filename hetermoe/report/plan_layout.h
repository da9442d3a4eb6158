#pragma once
#include <string>
#include <vector>

#include "hetermoe/cluster/cluster.h"
#include "hetermoe/model/model_config.h"
#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// How a plan lays the model on the devices, for people.
struct PlanLayout {
  std::vector<std::string> sentences;
  std::vector<std::string> devices;  ///< those that the plan uses, groups and roles together
  i64 num_layers = 0, num_experts = 0;
  /// [devices][layers]. attention: share of the sequences of its group whose attention part the device
  /// computes. experts: experts of which the device is an owner; with several owners each has a part of one.
  std::vector<std::vector<double>> attention, experts;
  std::vector<double> embed, head;   ///< [devices] share of the sequences
  const char* shared = "sequences";  ///< what attention parts are shared by: of teams tokens
};

/// "fp16", or "bf16 and fp16": what the devices that the plan uses compute in.
std::string dtypes_text(const Plan& plan);

PlanLayout plan_layout(const Plan& plan, const ModelConfig& model, const Cluster& cluster);

/// Standalone SVG: a row for each device, a column for the embedding, each layer and the head; in the upper
/// half of a cell the attention part, in the lower one the experts, the darker the larger its share. Without
/// experts a cell has no halves.
std::string plan_svg(const PlanLayout& layout);

}  // namespace hetermoe
