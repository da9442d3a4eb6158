#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/types.h"

// Gather and squeeze: HeterMoE, arXiv 2504.03871, Algorithm 1. The attention devices' idle time per layer is
// gathered until a whole chunk of expert work fits into it; that chunk then moves to them.
namespace hetermoe {

/// Times are of one layer and one microbatch, forward, on one device.
struct AsymEaInput {
  i64 num_layers = 0;
  i64 num_experts = 0;    ///< per layer
  i64 num_attention = 0;  ///< attention devices
  i64 num_expert_devices = 0;
  i64 attention_ns = 0;     ///< T_A: the part of a layer that is not experts, on an attention device
  i64 local_expert_ns = 0;  ///< T_X: what an expert device does for a layer, on an attention device
  i64 expert_ns = 0;        ///< T_E: the same on the expert device
  std::optional<i64> expert_capacity;     ///< experts that one expert device can hold, all layers together
  std::optional<i64> attention_capacity;  ///< likewise of an attention device
};

/// A quotient in lowest terms, denominator > 0.
struct Fraction {
  i64 numerator = 0, denominator = 1;
  bool operator==(const Fraction&) const = default;
};

struct AsymEaResult {
  std::vector<i64> moved;  ///< [num_layers] experts that each expert device gives up
  i64 chunk_received = 0;  ///< experts that one chunk brings to each attention device
  i64 chunk_given = 0;     ///< experts that one chunk takes from each expert device
  Fraction squeeze_ns;     ///< time that one chunk evens out
  std::string infeasible;  ///< why no assignment exists; empty = `moved` holds one
};

/// Chunks that the rule moves in all layers together.
i64 total_chunks(const AsymEaResult& result);

/// Exact integers throughout, so that no chunk is lost to rounding. Where the printed algorithm is
/// inconsistent, this holds: T_squeeze is the time saved on an expert device plus the time added on an
/// attention device. A layer gives at most the chunks of an expert device (the rest goes to the next layers).
/// Memory bounds are counted in chunks. With `chunks` that total is spread instead of the one the times ask
/// for, within the memory bounds.
AsymEaResult gather_and_squeeze(const AsymEaInput& input, std::optional<i64> chunks = {});

}  // namespace hetermoe
