#pragma once
#include <optional>
#include <vector>

#include "hetermoe/routing/trace.h"

namespace hetermoe {

/// Properties of a made trace. A token draws its experts by Gumbel noise on logits: the K largest of
/// popularity + drift + domain + noise.
struct SyntheticOptions {
  i64 seq_len = 0, sequences = 0, microbatches = 1, steps = 1;
  double spread = 0;         ///< of the experts' popularity: standard deviation of their logits
  double zipf = 0;           ///< popularity 1 / rank^zipf besides, expert 0 first
  double drift = 0;          ///< standard deviation of what a microbatch adds to the logits
  i64 domains = 0;           ///< each sequence is of one of so many
  double domain_spread = 0;  ///< standard deviation of what a domain adds to the logits
  u64 seed = 1;
};

/// Makes steps of choices. Equal options give equal steps on one machine.
class SyntheticTrace {
 public:
  /// header: layers, num_experts and top_k; the rest is filled in.
  SyntheticTrace(TraceHeader header, const SyntheticOptions& options);
  const TraceHeader& header() const { return header_; }
  TraceStep step(i64 step) const;
  /// Mean over layers of the Gini coefficient of all steps together.
  double gini() const;
  /// The standard deviation that gives this Gini coefficient within 0.2 %, all draws held fixed. Throws
  /// InputError with what can be reached.
  double spread_for(double wanted) const;

 private:
  struct Token;
  std::vector<TraceSequence> sequences_of(i64 step) const;
  std::vector<float> rates(std::size_t layer, i64 step, const TraceSequence& sequence) const;
  void draw(std::size_t layer, i64 step, i64 token, const std::vector<float>& rates,
            std::uint16_t* out) const;
  template <class Use>
  void each_token(i64 step, std::size_t layer, const Use& use) const;

  TraceHeader header_;
  SyntheticOptions options_;
};

}  // namespace hetermoe
