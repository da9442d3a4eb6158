#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/exec/device_state.h"
#include "hetermoe/weights/safetensors.h"

namespace hetermoe {

/// The adapters of a folder as the PEFT library and train.save_hf write it: adapter_config.json and
/// adapter_model.safetensors, of which each matrix has its own.
class PeftAdapter {
 public:
  /// Throws ConfigError for what is no LoRA, or for kinds of it that act otherwise (DoRA, rank-stabilised,
  /// other ranks for some matrices, biases).
  explicit PeftAdapter(const std::filesystem::path& folder);

  i64 rank() const { return rank_; }
  double alpha() const { return alpha_; }
  /// Matrices by their names in parameters(model), ascending.
  const std::vector<std::string>& targets() const { return targets_; }
  /// Sets the adapters that devices hold, all of which must be there. Throws ConfigError.
  void load(const std::vector<DeviceState*>& states) const;

 private:
  SafetensorsReader file_;
  i64 rank_ = 0;
  double alpha_ = 0;
  std::vector<std::string> targets_;
};

}  // namespace hetermoe
