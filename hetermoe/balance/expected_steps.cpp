#include "hetermoe/balance/expected_steps.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/base/index.h"
#include "hetermoe/routing/trace_routing.h"

namespace hetermoe {

LayerPopularity::LayerPopularity(const ModelConfig& model, const std::vector<i64>& layers,
                                 const std::vector<std::vector<double>>& copies)
    : of_layer_(idx(model.num_layers), nullptr) {
  for (std::size_t l = 0; l < layers.size(); ++l) {
    std::vector<double> popularity = copies[l];
    // An expert that nobody chose yet may be chosen next.
    const double sum = std::accumulate(popularity.begin(), popularity.end(), 0.0), least = 1e-6 * sum;
    for (double& share : popularity) share = (share + least) / (sum + least * real(popularity.size()));
    loads_.push_back(std::make_unique<ExpectedRouting>(model, popularity));
    of_layer_[idx(layers[l])] = loads_.back().get();
  }
}

ExchangeLoad LayerPopularity::exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                                       i32 chunk) const {
  return of_layer_[idx(layer)]->exchange(placement, group, layer, microbatch, chunk);
}

DomainRouting::DomainRouting(const ModelConfig& model, const std::vector<i64>& layers, const DomainUse& use,
                             std::vector<i32> domains)
    : of_domain_(use.copies.size()), domains_(std::move(domains)) {
  const auto experts = static_cast<std::ptrdiff_t>(model.num_experts);
  for (const i32 domain : domains_) {
    std::unique_ptr<LayerPopularity>& popularity = of_domain_[idx(domain)];
    if (popularity) continue;
    std::vector<std::vector<double>> copies;
    const std::vector<double>& row = use.copies[idx(domain)];
    for (auto at = row.begin(); at != row.end(); at += experts) copies.emplace_back(at, at + experts);
    popularity = std::make_unique<LayerPopularity>(model, layers, copies);
  }
}

ExchangeLoad DomainRouting::exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                                     i32 chunk) const {
  const Plan& plan = placement.plan();
  std::size_t place = idx(first_sequence(plan, group, microbatch));
  std::vector<ExchangeLoad> of_domain(of_domain_.size());
  for (std::size_t d = 0; d < of_domain.size(); ++d) {
    if (of_domain_[d]) of_domain[d] = of_domain_[d]->exchange(placement, group, layer, microbatch, chunk);
  }
  // An empty microbatch at the end of the step has no place, and nothing to tell.
  ExchangeLoad out = of_domain[idx(domains_[std::min(place, domains_.size() - 1)])];
  const std::size_t owners = out.num_owners();
  out.rows.assign(out.num_sources() * owners, 0);
  out.copies = out.rows;
  const std::size_t nodes = out.node_rows_per_token.size();
  out.node_rows.assign(out.num_sources() * nodes, 0);
  const TokenRanges sources = placement.ranges(group, layer, microbatch);
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const i64 sequences = sources.tokens(s) / plan.seq_len;
    const auto [begin, end] = chunk_range(sources.tokens(s), chunk, plan.chunks);
    for (i64 sequence = 0; sequence < sequences; ++sequence) {
      const i64 first = std::max(begin, sequence * plan.seq_len),
                last = std::min(end, (sequence + 1) * plan.seq_len);
      if (last <= first) continue;
      const ExchangeLoad& load = of_domain[idx(domains_[place + idx(sequence)])];
      for (std::size_t o = 0; o < owners; ++o) {
        out.rows[s * owners + o] += real(last - first) * load.rows_per_token[o];
        out.copies[s * owners + o] += real(last - first) * load.copies_per_token[o];
      }
      for (std::size_t n = 0; n < nodes; ++n)
        out.node_rows[s * nodes + n] += real(last - first) * load.node_rows_per_token[n];
    }
    place += idx(sequences);
  }
  return out;
}

}  // namespace hetermoe
