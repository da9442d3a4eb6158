#pragma once
#include <memory>
#include <vector>

#include "hetermoe/cost/profile_file.h"
#include "hetermoe/nn/params.h"
#include "hetermoe/profile/measure.h"

// The ops of a model as tasks to time, with random data of the sizes asked for.
namespace hetermoe {

/// One row of the table to be: its sizes are set, its times are not.
struct ProfileTask {
  ProfileEntry entry;
  Task task;
};
/// Tasks that share tensors. Made when needed and dropped when done, so that one group lives at a time.
using TaskGroup = std::vector<ProfileTask>;

/// embed forward and backward; head forward and forward_backward.
TaskGroup embed_tasks(const ModelConfig& model, i64 tokens, const at::TensorOptions& options);
TaskGroup head_tasks(const ModelConfig& model, i64 tokens, const at::TensorOptions& options);

/// The attention part of `layer` in all four phases, with what its op does beside: routing tables after
/// forward, adding the rows' gradients before backward, for a plan with kProfiledOwners devices that own
/// experts.
inline constexpr i64 kProfiledOwners = 2;
TaskGroup attention_tasks(const ModelConfig& model, i64 layer, i64 seq_len, i64 sequences,
                          const at::TensorOptions& options);

/// `num_experts` experts of `layer` with `rows` rows each, in all four phases.
TaskGroup expert_tasks(const ModelConfig& model, i64 layer, i64 num_experts, i64 rows,
                       const at::TensorOptions& options, ExpertProducts products = ExpertProducts::kAuto);

/// The optimizer on the parameters that `values` hold.
TaskGroup update_tasks(const std::vector<at::Tensor>& values);

/// Copies of `rows` rows: gather into a message, merge into the residual stream, transfer between two
/// threads.
TaskGroup row_tasks(const ModelConfig& model, i64 rows, const at::TensorOptions& options);

}  // namespace hetermoe
