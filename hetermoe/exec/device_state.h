#pragma once
#include "hetermoe/comm/codec.h"
#include "hetermoe/exec/parameter_store.h"

namespace hetermoe {

/// The state of one device that outlives a step: its parameters, gradients and moments.
class DeviceState {
 public:
  DeviceState(DeviceId device, const Schedule& schedule, const ModelConfig& model,
              const StorageOptions& options)
      : device_(device),
        num_layers_(static_cast<i32>(model.num_layers)),
        options_(options.values),
        store_(device, model, options, schedule.states) {}

  DeviceId device() const { return device_; }
  at::ScalarType dtype() const { return options_.dtype().toScalarType(); }
  /// Where the tensors are: a CPU or a GPU.
  c10::Device where() const { return options_.device(); }
  /// Options of this device's activations.
  const at::TensorOptions& options() const { return options_; }
  ParameterStore& store() { return store_; }

  StateGroup& embed() { return store_.group(UnitPart::kEmbed, -1); }
  /// With tied embeddings the embedding's.
  StateGroup& head() {
    return store_.has(UnitPart::kHead, num_layers_) ? store_.group(UnitPart::kHead, num_layers_) : embed();
  }
  StateGroup& attention(i32 layer) { return store_.group(UnitPart::kAttention, layer); }
  ExpertSlab& slab(i32 layer) { return store_.slab(layer); }
  bool holds(i32 state) const { return store_.holds(state); }
  StateTensors& tensors(i32 state) { return store_.of_state(state); }
  void zero_grads() { store_.zero_grads(); }

 private:
  DeviceId device_;
  i32 num_layers_;
  at::TensorOptions options_;
  ParameterStore store_;
};

/// Options of the tensors that a device or host of a plan keeps, in memory of `where`. A host has the dtype
/// of its devices.
StorageOptions storage_options(const Plan& plan, PlaceId device, c10::Device where = c10::Device(at::kCPU));

}  // namespace hetermoe
