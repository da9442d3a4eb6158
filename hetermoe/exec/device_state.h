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
  std::vector<at::Tensor> values, grads;  ///< views of a StateGroup's or a slab's storages
  AdamwState moments;
};

/// Parameters, gradients and optimizer moments of one device: what outlives a step.
class DeviceState {
 public:
  DeviceState(DeviceId device, const Schedule& schedule, const ModelConfig& model,
              const at::TensorOptions& options);

  DeviceId device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }
  StateGroup& embed() { return *embed_; }
  StateGroup& head() { return head_ ? *head_ : *embed_; }  ///< tied embeddings: one group
  StateGroup& attention(i32 layer) { return attention_.at(layer); }
  ExpertSlab& slab(i32 layer) { return slabs_.at(layer); }
  bool holds(i32 state) const { return tensors_.count(state) > 0; }
  StateTensors& tensors(i32 state) { return tensors_.at(state); }
  /// Every logical tensor of this device under its Hugging Face name.
  std::vector<NamedView> views(const ModelConfig& model);
  void initialize(const ModelConfig& model, u64 seed);
  void zero_grads();

 private:
  void add_slab(i32 layer, const Schedule& schedule, const ModelConfig& model,
                const at::TensorOptions& options);

  DeviceId device_;
  at::ScalarType dtype_;
  std::unique_ptr<StateGroup> embed_, head_;
  std::map<i32, StateGroup> attention_;
  std::map<i32, ExpertSlab> slabs_;
  std::map<i32, StateTensors> tensors_;  // by index of Schedule::states
};

at::ScalarType scalar_type(Dtype dtype);

}  // namespace hetermoe
