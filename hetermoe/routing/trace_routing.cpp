#include "hetermoe/routing/trace_routing.h"

#include <algorithm>
#include <limits>

#include "hetermoe/base/index.h"
#include "hetermoe/base/printable.h"
#include "hetermoe/base/words.h"
#include "hetermoe/ops/exchange.h"

namespace hetermoe {

std::vector<i64> layers_with_experts(const ModelConfig& model) {
  std::vector<i64> layers;
  for (i64 l = 0; l < model.num_layers; ++l) {
    if (model.is_moe(l)) layers.push_back(l);
  }
  return layers;
}

i64 first_sequence(const Plan& plan, i32 group, i32 microbatch) {
  i64 out = 0;
  for (i32 g = 0; g < group; ++g) out += total_sequences(plan.groups[idx(g)]);
  for (i32 m = 0; m < microbatch; ++m) out += plan.groups[idx(group)].microbatches[idx(m)];
  return out;
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

std::string note_of_model(const TraceHeader& header, const ModelConfig& model) {
  if (!header.model || *header.model == model.name) return "";
  return fmt::format("the trace is of model {}, whose layers and experts are as many as those of {}",
                     printable(*header.model), printable(model.name));
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
    fail<InputError>(
        where_,
        "got {}, expected {} as the plan's step has. Give the job that recorded it, or train.sequences; "
        "simulate also joins steps, as FILE:A..B",
        counted(step_.num_sequences(), "sequence"), wanted);
  for (i64 s = 0; s < wanted; ++s) {
    if (step_.sequences[idx(s)].tokens != plan.seq_len)
      fail<InputError>(where_, "sequence {}: got {}, expected {} as the plan has (seq_len)", s,
                       counted(i64{step_.sequences[idx(s)].tokens}, "token"), plan.seq_len);
  }
}

void TraceRouting::add_source(ExchangeLoad& load, const OwnerTable& owners, Ids ids, bool dedup) const {
  const auto k = idx(header_.top_k);
  const std::vector<i32> destinations = copy_destinations(ids, owners);
  const std::size_t num_owners = load.num_owners();
  const std::size_t begin = load.rows.size();
  load.rows.resize(begin + num_owners, 0);
  load.copies.resize(begin + num_owners, 0);
  std::vector<i64> last(num_owners, -1);  // token that was sent there last
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    if (destinations[i] < 0) continue;
    const std::size_t owner = idx(destinations[i]);
    const auto token = static_cast<i64>(i / k);
    load.copies[begin + owner] += 1;
    if (!dedup || last[owner] != token) load.rows[begin + owner] += 1;
    last[owner] = token;
  }
  load.tokens.push_back(real(ids.size() / k));
}

namespace {

/// Of one source. destinations: [tokens * k].
void add_node_rows(ExchangeLoad& load, const NodeRows& nodes, std::span<const i32> destinations,
                   std::size_t k) {
  const std::size_t begin = load.node_rows.size();
  load.node_rows.resize(begin + nodes.num_nodes(), 0);
  std::vector<i64> last(nodes.num_nodes(), -1);  // token that was sent there last
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    if (destinations[i] < 0) continue;
    const std::size_t node = nodes.node_of(idx(destinations[i]));
    if (last[node] != static_cast<i64>(i / k)) load.node_rows[begin + node] += 1;
    last[node] = static_cast<i64>(i / k);
  }
}

/// Rows of a segment, whose first token is number `first` of its source in the chunk, from each owner.
/// destinations: [tokens * k] of the source.
void add_rows_of_segment(ExchangeLoad& load, std::span<const i32> destinations, std::size_t k,
                         std::size_t first, const NextSegment& segment, bool dedup) {
  const std::size_t num_owners = load.num_owners();
  load.next_tokens[segment.receiver] += real(segment.tokens());
  std::vector<i64> last(num_owners, -1);
  for (std::size_t t = first; t < first + idx(segment.tokens()); ++t) {
    for (const i32 destination : destinations.subspan(t * k, k)) {
      if (destination < 0 || (dedup && last[idx(destination)] == static_cast<i64>(t))) continue;
      last[idx(destination)] = static_cast<i64>(t);
      load.next_rows[segment.receiver * num_owners + idx(destination)] += 1;
    }
  }
}

}  // namespace

std::vector<TraceRouting::Ids> TraceRouting::ids_of(const Placement& placement, i32 group, i32 layer,
                                                    i32 microbatch, i32 chunk) const {
  const Plan& plan = placement.plan();
  check_plan(plan);
  const i64 first = first_sequence(plan, group, microbatch) * plan.seq_len;
  const Ids all = step_.choices[position<i64>(header_.layers, i64{layer})];
  std::vector<Ids> out;
  for (const TokenRange range : placement.ranges(group, layer, microbatch)) {
    const auto [begin, end] = chunk_range(range.tokens(), chunk, plan.chunks);
    out.push_back(
        all.subspan(idx((first + range.begin + begin) * header_.top_k), idx((end - begin) * header_.top_k)));
  }
  return out;
}

SourceCopies TraceRouting::copies(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                                  i32 chunk) const {
  SourceCopies out;
  for (const Ids ids : ids_of(placement, group, layer, microbatch, chunk))
    out.push_back(count_copies(ids, header_.num_experts));
  return out;
}

ExchangeLoad TraceRouting::exchange_by(std::span<const OwnerTable> of_source, const Placement& placement,
                                       i32 group, i32 layer, i32 microbatch, i32 chunk) const {
  ExchangeLoad load;
  load.rows_per_token.assign(placement.num_owners(group, layer), 0);
  load.copies_per_token.assign(load.rows_per_token.size(), 0);
  const std::vector<Ids> sources = ids_of(placement, group, layer, microbatch, chunk);
  for (std::size_t s = 0; s < sources.size(); ++s)
    add_source(load, of_source[of_source.size() == 1 ? 0 : s], sources[s], placement.plan().row_dedup);
  if (!placement.plan().row_nodes.empty()) {
    const NodeRows nodes(placement.plan(), group,
                         placement.owners(group, layer, microbatch, Phase::kForward));
    for (std::size_t s = 0; s < sources.size(); ++s)
      add_node_rows(load, nodes, copy_destinations(sources[s], of_source[of_source.size() == 1 ? 0 : s]),
                    idx(header_.top_k));
  }
  if (!placement.joins_at(group, layer + 1, microbatch)) return load;
  load.next_tokens.assign(placement.ranges(group, layer + 1, microbatch).size(), 0);
  load.next_rows.assign(load.next_tokens.size() * load.num_owners(), 0);
  std::vector<std::vector<i32>> destinations;
  for (std::size_t s = 0; s < sources.size(); ++s)
    destinations.push_back(copy_destinations(sources[s], of_source[of_source.size() == 1 ? 0 : s]));
  std::vector<std::size_t> next(sources.size(), 0);  // token in the chunk
  for (const NextSegment& segment : next_segments(placement, group, layer, microbatch, chunk)) {
    add_rows_of_segment(load, destinations[segment.source], idx(header_.top_k), next[segment.source], segment,
                        placement.plan().row_dedup);
    next[segment.source] += idx(segment.tokens());
  }
  return load;
}

ExchangeLoad TraceRouting::exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                                    i32 chunk) const {
  const OwnerTable owners = owner_table(placement, group, layer);
  return exchange_by({&owners, 1}, placement, group, layer, microbatch, chunk);
}

}  // namespace hetermoe
