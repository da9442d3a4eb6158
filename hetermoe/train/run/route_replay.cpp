#include "hetermoe/train/run/route_replay.h"

#include <algorithm>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/routing/trace_routing.h"
#include "hetermoe/train/run/route_probe.h"

namespace hetermoe {

RouteReplay::RouteReplay(const Job& job, const ModelConfig& model, const std::string& text)
    : options_(job.routing),
      num_layers_(model.num_layers),
      seq_len_(job.train.seq_len),
      num_experts_(model.num_experts),
      trace_(job.routing.replay) {
  check_trace_model(trace_.header(), model, options_.replay);
  if (const std::optional<std::string>& recorded = trace_.header().text;
      recorded && !text.empty() && *recorded != text)
    fail<InputError>(
        options_.replay,
        "was recorded on other text: got checksum {}, expected {}, that of this job's data, train.seed and "
        "train.seq_len, by which its sequences have numbers. Record a trace with this job",
        *recorded, text);
  for (const i64 step : trace_.steps()) {
    const TraceStep read = trace_.read_sequences(step);
    for (i64 position = 0; position < read.num_sequences(); ++position) {
      const i64 index = read.sequences[idx(position)].index;
      if (index < 0) continue;  // nobody can ask for it
      const auto [found, fresh] = places_.try_emplace(index, Place{step, position});
      if (!fresh)
        fail<InputError>(
            options_.replay,
            "sequence {} of the data is in step {} and in step {}: which of both is meant cannot "
            "be told, expected a trace that has each sequence once",
            index, found->second.step, step);
    }
  }
  if (places_.empty())
    fail<InputError>(
        options_.replay,
        "none of its sequences says which of the data it is: nothing can be replayed. Record the "
        "trace with routing.record, or give its sequences an index");
}

void RouteReplay::refuse_gap(const std::string& what) const {
  if (options_.replay_gaps == ReplayGaps::kChoose) return;
  fail<InputError>(options_.replay,
                   "{}. Record these steps, too, or leave such tokens to the routers by "
                   "routing.replay_gaps: choose",
                   what);
}

const TraceStep& RouteReplay::step_of(i64 sequence, const Place& place) {
  if (step_.step != place.step || step_.sequences.empty()) step_ = trace_.read(place.step);
  if (!step_.has_choices())
    fail<InputError>(options_.replay,
                     "step {} with sequence {} has counts only: got no choices to replay. Record it with "
                     "routing.detail: choices",
                     place.step, sequence);
  const i64 tokens = step_.sequences[idx(place.position)].tokens;
  // Who records while it generates never routes the last token.
  if (tokens != seq_len_ && tokens != seq_len_ - 1)
    fail<InputError>(options_.replay,
                     "sequence {} of step {} has {} tokens: expected {}, or one less, as train.seq_len says",
                     sequence, place.step, tokens, seq_len_);
  return step_;
}

/// Writes the choices of one sequence.
void RouteReplay::add_sequence(i64 sequence, i64 row, std::vector<at::Tensor>& out) {
  const auto found = places_.find(sequence);
  if (found == places_.end()) {
    refuse_gap(fmt::format("sequence {} of the data is not in the trace", sequence));
    return;
  }
  const Place place = found->second;
  const TraceStep& step = step_of(sequence, place);
  const TraceHeader& header = trace_.header();
  const i64 tokens = step.sequences[idx(place.position)].tokens;
  for (std::size_t l = 0; l < header.layers.size(); ++l) {
    const std::uint16_t* ids = step.choices[l].data() + step.first_token[idx(place.position)] * header.top_k;
    auto* to = out[idx(header.layers[l])][row].mutable_data_ptr<std::int32_t>();
    for (i64 t = 0; t < tokens; ++t, ids += header.top_k, to += header.top_k) {
      if (std::find(ids, ids + header.top_k, kNoExpert) == ids + header.top_k)
        std::copy(ids, ids + header.top_k, to);
      else
        refuse_gap(fmt::format("token {} of sequence {} has no {} experts in layer {} of step {}", t,
                               sequence, header.top_k, header.layers[l], place.step));
    }
  }
}

std::vector<at::Tensor> RouteReplay::choices(i64 first, i64 count) {
  taken_.assign(idx(num_layers_), {});
  for (const i64 layer : trace_.header().layers)
    taken_[idx(layer)] = at::full({count, seq_len_, trace_.header().top_k}, -1, at::kInt);
  for (i64 row = 0; row < count; ++row) add_sequence(first + row, row, taken_);
  double replayed = 0, all = 0;
  for (const i64 layer : trace_.header().layers) {
    replayed += taken_[idx(layer)].ge(0).sum().item<double>();
    all += static_cast<double>(taken_[idx(layer)].numel());
  }
  coverage_ = replayed / all;
  return taken_;
}

std::vector<std::string> RouteReplay::notes(const ModelConfig& model) const {
  std::vector<std::string> out = trace_.notes();
  const std::string other = note_of_model(trace_.header(), model);
  if (!other.empty()) out.push_back(other);
  return out;
}

void RouteReplay::check_all() const {
  if (coverage_ < 1)
    fail<InputError>(options_.replay,
                     "got choices for {:.1f} % of the tokens of the step, expected all of them, as foresight "
                     "needs. Say balancer.knows: history",
                     100 * coverage_);
}

std::vector<std::vector<double>> RouteReplay::copies(i64 first, i64 count) {
  const std::vector<at::Tensor> all = choices(first, count);
  check_all();
  return copies_of_choices(all, num_experts_);
}

TraceRouting RouteReplay::routing(const ModelConfig& model) const {
  return routing_of_choices(taken_, model, options_.replay);
}

void RouteReplay::check_counts(const at::Tensor& counts_LE) const {
  if (coverage_ < 1) return;
  const at::Tensor counts = counts_LE.to(at::kCPU);
  for (const i64 layer : trace_.header().layers) {
    const at::Tensor ids = taken_[idx(layer)].reshape({-1}).to(at::kLong);
    HM_CHECK(at::equal(ids.bincount({}, counts.size(1)), counts[layer]),
             "routing replay: the routers of layer {} took other experts than the trace has", layer);
  }
}

}  // namespace hetermoe
