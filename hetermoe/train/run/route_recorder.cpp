#include "hetermoe/train/run/route_recorder.h"

#include <cmath>

#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/routing/trace_routing.h"

namespace hetermoe {
namespace {

std::filesystem::path file_of(const RoutingOptions& options, const Processes& processes) {
  if (processes.alone()) return options.record;
  return std::filesystem::path(options.record) / fmt::format("rank-{:05}.routes", processes.rank());
}

/// The trace of a run with more processes has files that those of this one do not replace.
void check_folder(const RoutingOptions& options, const Processes& processes) {
  const std::filesystem::path more =
      std::filesystem::path(options.record) / fmt::format("rank-{:05}.routes", processes.num_ranks());
  if (!processes.alone() && std::filesystem::exists(more))
    fail<IoError>("routing.record",
                  "{} is there, of a run with more than {} processes: expected another folder, or "
                  "an empty one",
                  more.string(), processes.num_ranks());
}

/// Before anything of it is overwritten. The trace of several ranks is a folder.
void check_is_not_replayed(const std::filesystem::path& file, const RoutingOptions& options) {
  const auto is_replayed = [&](const std::filesystem::path& path) {
    std::error_code code;
    return std::filesystem::equivalent(path, options.replay, code);
  };
  if (!options.replay.empty() && (is_replayed(file) || is_replayed(file.parent_path())))
    fail<ConfigError>("routing.record",
                      "{} belongs to the trace that routing.replay reads, expected another file",
                      file.string());
}

TraceHeader header_of(const Job& job, const ModelConfig& model, const RecordedText& text) {
  TraceHeader header;
  header.layers = layers_with_experts(model);
  header.num_experts = model.num_experts;
  header.top_k = model.top_k;
  header.weights = job.routing.weights ? TraceWeights::kF32 : TraceWeights::kNone;
  header.model = model.name;
  header.seq_len = job.train.seq_len;
  header.sequences = job.train.sequences;
  header.condition = text.condition;
  header.domains = text.domains;
  if (!text.name.empty()) header.text = text.name;
  header.source = "hetermoe train";
  return header;
}

/// [sequences of a step]
std::vector<TraceSequence> sequences_of_step(const Plan& plan, i64 first_sequence, const RecordedText& text) {
  std::vector<TraceSequence> out;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    for (std::size_t m = 0; m < plan.groups[g].microbatches.size(); ++m) {
      for (i64 s = 0; s < plan.groups[g].microbatches[m]; ++s) {
        TraceSequence sequence;
        sequence.index = first_sequence + static_cast<i64>(out.size());
        sequence.tokens = sequence.prompt = static_cast<std::uint32_t>(plan.seq_len);
        if (text.domain_of) sequence.domain = text.domain_of(sequence.index);
        sequence.group = static_cast<std::uint16_t>(g);
        sequence.microbatch = static_cast<std::uint16_t>(m);
        out.push_back(sequence);
      }
    }
  }
  return out;
}

}  // namespace

std::string name_of_text(u64 checksum, const Dataset& data, const TrainOptions& train) {
  Fnv all;
  all.add(checksum).add(train.seed).add(train.seq_len);
  for (const Source& source : data.sources) all.add(std::llround(1e9 * source.share));
  return fmt::format("{:016x}", all.value());
}

RouteRecorder::RouteRecorder(const Job& job, const ModelConfig& model, const Processes& processes,
                             i64 first_step, RecordedText text)
    : options_(job.routing), text_(std::move(text)), seq_len_(job.train.seq_len) {
  const TraceHeader header = header_of(job, model, text_);
  if (header.layers.empty())
    fail<ConfigError>("routing.record", "model {} has no layer with experts: nothing to record", model.name);
  if (job.train.microbatches > 65535)
    fail<ConfigError>("routing.record", "got {} microbatches, expected at most 65535",
                      job.train.microbatches);
  check_folder(options_, processes);
  const std::filesystem::path path = file_of(options_, processes);
  check_is_not_replayed(path, options_);
  if (first_step == 0) {
    writer_.emplace(path, header);
    return;
  }
  if (!std::filesystem::exists(path))
    note_ =
        fmt::format("routing.record: {} is not there and begins at step {}: steps before that are not in it",
                    path.string(), first_step + 1);
  writer_.emplace(RoutingWriter::resume(path, header, first_step + 1));
  const i64 expected = (first_step - 1) / options_.every * options_.every + 1;
  if (writer_->last_step().value_or(expected) < expected)
    note_ = fmt::format(
        "routing.record: {} ends at step {}, expected step {}: the steps between are missing. Was the file "
        "cut?",
        path.string(), *writer_->last_step(), expected);
}

/// A run: what was taken of sequences that follow each other.
void RouteRecorder::write_layer(i64 step, const std::vector<const TakenRoutes*>& run) {
  const TraceHeader& header = writer_->header();
  TraceStep part;
  part.weights.emplace_back();
  std::vector<std::uint16_t>& ids = part.choices.emplace_back();
  for (const TakenRoutes* taken : run) {
    const at::Tensor on_host = to_host(taken->ids, "recorded routing").contiguous();
    const auto* data = reinterpret_cast<const std::uint16_t*>(on_host.const_data_ptr<std::int16_t>());
    ids.insert(ids.end(), data, data + on_host.numel());
    if (!options_.weights) continue;
    const at::Tensor weights = to_host(taken->weights, "recorded routing").contiguous();
    const float* values = weights.const_data_ptr<float>();
    part.weights[0].insert(part.weights[0].end(), values, values + weights.numel());
  }
  const i64 first = run.front()->first, count = run.back()->first + run.back()->count - first;
  if (options_.detail == TraceDetail::kChoices) {
    writer_->choices(step, run.front()->layer, first, count, ids, part.weights[0]);
    return;
  }
  part.sequences.assign(idx(count), {.index = -1, .tokens = static_cast<std::uint32_t>(seq_len_)});
  index_tokens(part);
  TraceHeader of_layer = header;
  of_layer.layers = {run.front()->layer};
  count_choices(part, of_layer);
  writer_->counts(step, run.front()->layer, first, count, part.counts[0]);
}

void RouteRecorder::write(i64 step, i64 first_sequence, const Plan& plan,
                          const std::vector<TakenRoutes>& all) {
  const i64 number = step + 1;  // as people count
  const std::vector<TraceSequence> sequences = sequences_of_step(plan, first_sequence, text_);
  std::vector<bool> is_here(sequences.size() + 1, false);
  for (const TakenRoutes& taken : all) {
    for (i64 s = 0; s < taken.count; ++s) is_here[idx(taken.first + s)] = true;
  }
  for (std::size_t s = 0, begin = 0; s < is_here.size(); ++s) {
    if (!is_here[s]) {
      if (s > begin)
        writer_->sequences(number, static_cast<i64>(begin), std::span(sequences).subspan(begin, s - begin));
      begin = s + 1;
    }
  }
  std::vector<const TakenRoutes*> run;
  for (const TakenRoutes& taken : all) {
    const bool follows = !run.empty() && run.back()->layer == taken.layer &&
                         run.back()->first + run.back()->count == taken.first;
    if (!run.empty() && !follows) {
      write_layer(number, run);
      run.clear();
    }
    run.push_back(&taken);
  }
  if (!run.empty()) write_layer(number, run);
}

}  // namespace hetermoe
