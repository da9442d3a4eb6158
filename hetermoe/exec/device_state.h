#pragma once
#include <map>
#include <memory>
#include <vector>

#include "hetermoe/nn/optimizer.h"
#include "hetermoe/nn/params.h"
#include "hetermoe/schedule/schedule.h"

namespace hetermoe {

/// The tensors of one Schedule::states entry on one device.
struct StateTensors {
  State::Part part = State::Part::kEmbed;
  i32 layer = 0;
  std::vector<ExpertId> experts;          ///< of an expert state, in storage order
  bool first_owner = false;               ///< this device is the state's first
  std::vector<at::Tensor> values, grads;  ///< views of a StateGroup's or a slab's storages
  AdamwState moments;
};

/// One logical tensor under its Hugging Face name, with its optimizer state.
struct LogicalTensor {
  std::string name;
  at::Tensor value, exp_avg, exp_avg_sq;
  at::Tensor master;         ///< fp32 copy of a bf16 or fp16 value, else undefined
  bool first_owner = false;  ///< no device before this one holds it: it speaks for the replicas
};

/// Parameters, gradients and optimizer moments of one device: what outlives a step.
class DeviceState {
 public:
  DeviceState(DeviceId device, const Schedule& schedule, const ModelConfig& model,
              const at::TensorOptions& options);

  DeviceId device() const { return device_; }
  at::ScalarType dtype() const { return options_.dtype().toScalarType(); }
  /// Where the tensors are: a CPU or a GPU.
  c10::Device where() const { return options_.device(); }
  /// Of this device's activations.
  const at::TensorOptions& options() const { return options_; }
  StateGroup& embed() { return *embed_; }
  StateGroup& head() { return head_ ? *head_ : *embed_; }  ///< tied embeddings: one group
  StateGroup& attention(i32 layer) { return attention_.at(layer); }
  ExpertSlab& slab(i32 layer) { return slabs_.at(layer); }
  bool holds(i32 state) const { return tensors_.count(state) > 0; }
  StateTensors& tensors(i32 state) { return tensors_.at(state); }
  /// Every logical tensor of this device under its Hugging Face name.
  std::vector<NamedView> views(const ModelConfig& model);
  void initialize(const ModelConfig& model, u64 seed);
  /// Everything that a checkpoint keeps, as views. Buffers have a value only.
  std::vector<LogicalTensor> logical_tensors(const ModelConfig& model);
  /// Optimizer updates done so far; the same for all states.
  void set_updates(i64 count);
  void zero_grads();

 private:
  std::vector<NamedTensor> named(const ModelConfig& model, const StateTensors& state,
                                 const std::vector<at::Tensor>& storages);
  void add_slab(i32 layer, const Schedule& schedule, const ModelConfig& model,
                const at::TensorOptions& options);

  DeviceId device_;
  at::TensorOptions options_;
  std::unique_ptr<StateGroup> embed_, head_;
  std::map<i32, StateGroup> attention_;
  std::map<i32, ExpertSlab> slabs_;
  std::map<i32, StateTensors> tensors_;  // by index of Schedule::states
};

at::ScalarType scalar_type(Dtype dtype);
/// A copy in memory of the CPU.
at::Tensor host_copy(const at::Tensor& tensor);

}  // namespace hetermoe
