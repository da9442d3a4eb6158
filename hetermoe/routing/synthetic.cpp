#include "hetermoe/routing/synthetic.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "hetermoe/base/error.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"
#include "hetermoe/routing/metrics.h"

namespace hetermoe {
namespace {

/// What a random number is for: no two uses share one.
enum class Use : u64 { kPopularity = 1, kDrift, kDomain, kChoice, kDomainOfSequence };

u64 key_of(u64 seed, Use use, u64 a, u64 b = 0) {
  return splitmix64(splitmix64(splitmix64(splitmix64(seed) ^ static_cast<u64>(use)) ^ a) ^ b);
}

/// In (0, 1).
double uniform(u64 bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

double normal(u64 key) {
  const double radius = std::sqrt(-2 * std::log(uniform(splitmix64(key))));
  return radius * std::cos(2 * std::numbers::pi * uniform(splitmix64(key + 1)));
}

/// Minus the logarithm of an even number in (0, 1), from 32 random bits.
float waiting_time(u64 bits) {
  return -std::log((static_cast<float>(static_cast<std::uint32_t>(bits) >> 8) + 0.5F) * 0x1p-24F);
}

}  // namespace

SyntheticTrace::SyntheticTrace(TraceHeader header, const SyntheticOptions& options)
    : header_(std::move(header)), options_(options) {
  header_.seq_len = options.seq_len;
  header_.condition = "synthetic";
  for (i64 d = 0; d < options.domains; ++d) header_.domains.push_back(fmt::format("domain-{}", d));
}

std::vector<TraceSequence> SyntheticTrace::sequences_of(i64 step) const {
  std::vector<TraceSequence> out;
  const i64 num_microbatches = options_.microbatches;
  for (i64 i = 0; i < options_.sequences; ++i) {
    TraceSequence sequence;
    sequence.index = step * options_.sequences + i;
    sequence.tokens = sequence.prompt = static_cast<std::uint32_t>(options_.seq_len);
    const u64 drawn = key_of(options_.seed, Use::kDomainOfSequence, static_cast<u64>(sequence.index));
    if (options_.domains > 0)
      sequence.domain = static_cast<std::uint32_t>(drawn % static_cast<u64>(options_.domains));
    i64 m = 0;
    while (options_.sequences * (m + 1) / num_microbatches <= i) ++m;
    sequence.microbatch = static_cast<std::uint16_t>(m);
    out.push_back(sequence);
  }
  return out;
}

/// [experts] 1 over the weight with which a token of the sequence draws each.
std::vector<float> SyntheticTrace::rates(std::size_t layer, i64 step, const TraceSequence& sequence) const {
  std::vector<float> out;
  const u64 seed = options_.seed;
  const i64 microbatch = step * options_.microbatches + sequence.microbatch;
  for (i64 e = 0; e < header_.num_experts; ++e) {
    const u64 place = static_cast<u64>(layer) * static_cast<u64>(kMostTraceExperts) + static_cast<u64>(e);
    double logit = -options_.zipf * std::log(real(e + 1));
    if (options_.spread > 0) logit += options_.spread * normal(key_of(seed, Use::kPopularity, place));
    if (options_.drift > 0)
      logit += options_.drift * normal(key_of(seed, Use::kDrift, place, static_cast<u64>(microbatch)));
    if (options_.domains > 0)
      logit += options_.domain_spread * normal(key_of(seed, Use::kDomain, place, sequence.domain));
    out.push_back(static_cast<float>(std::exp(-std::clamp(logit, -60.0, 60.0))));
  }
  return out;
}

/// The K of which the first arrives: an exponential waiting time over a weight is smallest exactly where the
/// weight's logarithm plus Gumbel noise is largest.
void SyntheticTrace::draw(std::size_t layer, i64 step, i64 token, const std::vector<float>& rates,
                          std::uint16_t* out) const {
  const u64 key = key_of(options_.seed, Use::kChoice, static_cast<u64>(layer) << 32 | static_cast<u64>(step),
                         static_cast<u64>(token));
  const std::size_t k = idx(header_.top_k);
  thread_local std::vector<float> best;
  best.assign(k, std::numeric_limits<float>::infinity());
  std::fill(out, out + k, kNoExpert);
  u64 bits = 0;
  for (std::size_t e = 0; e < rates.size(); ++e) {
    bits = e % 2 == 0 ? splitmix64(key + e) : bits >> 32;
    const float time = waiting_time(bits) * rates[e];
    if (!(time < best[k - 1])) continue;
    std::size_t place = k - 1;
    for (; place > 0 && time < best[place - 1]; --place) {
      best[place] = best[place - 1];
      out[place] = out[place - 1];
    }
    best[place] = time;
    out[place] = static_cast<std::uint16_t>(e);
  }
}

template <class Use>
void SyntheticTrace::each_token(i64 step, std::size_t layer, const Use& use) const {
  std::vector<std::uint16_t> ids(idx(header_.top_k));
  std::vector<float> of_sequence;
  const std::vector<TraceSequence> sequences = sequences_of(step);
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const bool same = s > 0 && sequences[s].microbatch == sequences[s - 1].microbatch &&
                      sequences[s].domain == sequences[s - 1].domain;
    if (!same) of_sequence = rates(layer, step, sequences[s]);
    for (i64 t = 0; t < options_.seq_len; ++t) {
      draw(layer, step, static_cast<i64>(s) * options_.seq_len + t, of_sequence, ids.data());
      use(ids);
    }
  }
}

TraceStep SyntheticTrace::step(i64 step) const {
  TraceStep out;
  out.step = step;
  out.sequences = sequences_of(step);
  index_tokens(out);
  out.choices.resize(header_.layers.size());
  out.weights.resize(header_.layers.size());
  for (std::size_t l = 0; l < header_.layers.size(); ++l) {
    std::vector<std::uint16_t>& all = out.choices[l];
    all.reserve(idx(out.num_tokens() * header_.top_k));
    each_token(step, l, [&](const auto& ids) { all.insert(all.end(), ids.begin(), ids.end()); });
  }
  count_choices(out, header_);
  return out;
}

double SyntheticTrace::gini() const {
  FigureRange range;
  for (std::size_t l = 0; l < header_.layers.size(); ++l) {
    std::vector<double> counts(idx(header_.num_experts), 0);
    for (i64 step = 0; step < options_.steps; ++step) {
      each_token(step, l, [&](const auto& ids) {
        for (const std::uint16_t id : ids) counts[id] += 1;
      });
    }
    range.add(hetermoe::gini(counts));
  }
  return range.mean;
}

double SyntheticTrace::spread_for(double wanted) const {
  constexpr double kTolerance = 0.002, kMostSpread = 20;
  const auto measured = [&](double spread) {
    SyntheticTrace trace = *this;
    trace.options_.spread = spread;
    return trace.gini();
  };
  double low = 0, high = kMostSpread;
  double gini_low = measured(low), gini_high = measured(high);
  if (wanted < gini_low * (1 - kTolerance) || wanted > gini_high)
    fail<InputError>(
        "gini", "got {}, expected {:.4g} to {:.4g}, which this number of experts, top-k and tokens can reach",
        wanted, gini_low, gini_high);
  double spread = std::min(2 * wanted, kMostSpread / 2);  // lognormal shares: near 2 erfinv(G)
  for (int round = 0; round < 60; ++round) {
    const double got = measured(spread);
    if (std::abs(got - wanted) <= kTolerance * wanted) break;
    (got < wanted ? low : high) = spread;
    (got < wanted ? gini_low : gini_high) = got;
    // False position where the ends are near, where the curve is almost straight; halves else.
    const bool near = high - low < 1 && gini_high > gini_low;
    const double part = near ? std::clamp((wanted - gini_low) / (gini_high - gini_low), 0.05, 0.95) : 0.5;
    spread = round == 0 && high == kMostSpread ? std::min(2 * spread + 0.1, high) : low + part * (high - low);
  }
  return spread;
}

}  // namespace hetermoe
