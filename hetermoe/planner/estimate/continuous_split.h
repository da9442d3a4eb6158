#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/planner/estimate/sketch.h"

// The work of a group of a sketch in real numbers: how much of it a device of each class does. Estimates use
// it as it is, rounding makes whole numbers of it.
namespace hetermoe {

/// Devices of equal load within a group.
struct Part {
  std::size_t cls = 0;
  double count = 0;
  bool attention = false, experts = false;  ///< what they may do
  double sequences = 0;                     ///< per microbatch, mean
  double most = 0;                          ///< in the fullest microbatch
  Seconds attention_s = 0;                  ///< per step: attention parts and head
  Seconds unit_s = 0;                       ///< per step: one expert of one layer
  Bytes fixed = 0;                          ///< memory without experts
  Bytes unit = 0;                           ///< memory of one expert of one layer
  double owned = 0;                         ///< experts per MoE layer
};

/// The device class whose memory a sketch overfills most.
struct Shortage {
  std::size_t cls = 0;
  Bytes need = 0;
  bool attention = false;
  double sequences = 0;  ///< at once, with attention
  double experts = 0;    ///< of all layers
};
/// "device 2 (V100 16 GiB) needs 18.2 GiB at 1 sequence"; with experts of its own: "... with 24 experts".
std::string to_string(const Rates& rates, const Shortage& shortage);

/// Splits the work of a group, one of `groups` like it: sequences by speed, experts so that the busiest
/// device is as little busy as possible, within memory. Sets `shortage` when that is not enough.
std::vector<Part> split_work(const Rates& rates, const Sketch& sketch, const SketchGroup& group,
                             std::size_t groups, std::optional<Shortage>& shortage);

/// Sequences of a step for an attention device of each class.
std::vector<double> quotas(const Rates& rates, const Sketch& sketch, const SketchGroup& group);

/// Experts of all layers together that fit on a device of the part. `squeeze` scales what of its free memory
/// experts may take.
double expert_room(const Rates& rates, const Part& part, double squeeze);

}  // namespace hetermoe
