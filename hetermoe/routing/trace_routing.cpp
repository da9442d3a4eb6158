#include "hetermoe/routing/trace_routing.h"

#include <algorithm>
#include <limits>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"

namespace hetermoe {

std::vector<i64> layers_with_experts(const ModelConfig& model) {
  std::vector<i64> layers;
  for (i64 l = 0; l < model.num_layers; ++l) {
    if (model.is_moe(l)) layers.push_back(l);
  }
  return layers;
}

void check_trace_model(const TraceHeader& header, const ModelConfig& model, const std::string& where) {
  if (header.num_experts != model.num_experts)
    fail<InputError>(where, "experts of a layer: got {}, expected {} as model {} has", header.num_experts,
                     model.num_experts, model.name);
  if (header.top_k != model.top_k)
    fail<InputError>(where, "experts of a token (top_k): got {}, expected {} as model {} has", header.top_k,
                     model.top_k, model.name);
  const std::vector<i64> expected = layers_with_experts(model);
  if (header.layers != expected)
    fail<InputError>(where, "layers with experts: got {}, expected {} as model {} has",
                     Json(header.layers).dump(), Json(expected).dump(), model.name);
}

TraceRouting::TraceRouting(TraceHeader header, TraceStep step, const ModelConfig& model, std::string where)
    : header_(std::move(header)), step_(std::move(step)), where_(std::move(where)) {
  check_trace_model(header_, model, where_);
  if (!step_.has_choices())
    fail<InputError>(where_,
                     "step {}: got counts alone, expected the choices of every token. Record with "
                     "routing.detail: choices",
                     step_.step);
}

void TraceRouting::check_plan(const Plan& plan) const {
  const i64 wanted = total_sequences(plan);
  if (wanted > step_.num_sequences())
    fail<InputError>(where_, "got {}, expected {} as the plan's step has. FILE:A..B joins the steps A to B",
                     counted(step_.num_sequences(), "sequence"), wanted);
  for (i64 s = 0; s < wanted; ++s) {
    if (step_.sequences[idx(s)].tokens != plan.seq_len)
      fail<InputError>(where_, "sequence {}: got {}, expected {} as the plan has (seq_len)", s,
                       counted(i64{step_.sequences[idx(s)].tokens}, "token"), plan.seq_len);
  }
}

void TraceRouting::add_source(ExchangeLoad& load, const OwnerTable& owners, i32 layer, i64 first_token,
                              i64 tokens, bool dedup) const {
  const std::size_t at = position<i64>(header_.layers, i64{layer});
  const auto k = idx(header_.top_k);
  const std::span<const std::uint16_t> ids =
      std::span(step_.choices[at]).subspan(idx(first_token) * k, idx(tokens) * k);
  const std::vector<i32> destinations = copy_destinations(ids, owners);
  const std::size_t num_owners = load.num_owners();
  std::vector<double> rows(num_owners, 0), copies(num_owners, 0);
  std::vector<i64> last(num_owners, -1);  // token that was sent there last
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    if (destinations[i] < 0) continue;
    const std::size_t owner = idx(destinations[i]);
    const auto token = static_cast<i64>(i / k);
    copies[owner] += 1;
    if (!dedup || last[owner] != token) rows[owner] += 1;
    last[owner] = token;
  }
  load.tokens.push_back(real(tokens));
  load.rows.insert(load.rows.end(), rows.begin(), rows.end());
  load.copies.insert(load.copies.end(), copies.begin(), copies.end());
}

ExchangeLoad TraceRouting::exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                                    i32 chunk) const {
  const Plan& plan = placement.plan();
  check_plan(plan);
  i64 sequence = 0;
  for (i32 g = 0; g < group; ++g) sequence += total_sequences(plan.groups[idx(g)]);
  for (i32 m = 0; m < microbatch; ++m) sequence += plan.groups[idx(group)].microbatches[idx(m)];
  ExchangeLoad load;
  load.rows_per_token.assign(placement.num_owners(group, layer), 0);
  load.copies_per_token.assign(load.rows_per_token.size(), 0);
  const OwnerTable owners = owner_table(placement, group, layer);
  for (const Share& share : placement.shares(group, layer, microbatch)) {
    const auto [begin, end] = chunk_range(share.sequences * plan.seq_len, chunk, plan.chunks);
    add_source(load, owners, layer, sequence * plan.seq_len + begin, end - begin, plan.row_dedup);
    sequence += share.sequences;
  }
  return load;
}

}  // namespace hetermoe
