#include <algorithm>
#include <cmath>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/routing/trace_content.h"

// Steps of a routing trace in memory.
namespace hetermoe {

bool TraceStep::has_choices() const {
  const auto kept = [&](const std::vector<std::uint16_t>& ids) { return !ids.empty() || num_tokens() == 0; };
  return std::all_of(choices.begin(), choices.end(), kept);
}

void index_tokens(TraceStep& step) {
  step.first_token = {0};
  for (const TraceSequence& sequence : step.sequences)
    step.first_token.push_back(step.first_token.back() + i64{sequence.tokens});
}

namespace {

void count_sequence(const std::uint16_t* id, const std::uint16_t* end, std::uint32_t* counts) {
  for (; id != end; ++id) {
    if (*id != kNoExpert) ++counts[*id];
  }
}

void count_layer(const TraceStep& step, const TraceHeader& header, const std::vector<std::uint16_t>& ids,
                 std::vector<std::uint32_t>& counts) {
  counts.assign(step.sequences.size() * idx(header.num_experts), 0);
  for (std::size_t s = 0; s < step.sequences.size(); ++s) {
    count_sequence(ids.data() + step.first_token[s] * header.top_k,
                   ids.data() + step.first_token[s + 1] * header.top_k,
                   counts.data() + s * idx(header.num_experts));
  }
}

}  // namespace

void count_choices(TraceStep& step, const TraceHeader& header) {
  step.counts.resize(header.layers.size());
  for (std::size_t l = 0; l < header.layers.size(); ++l)
    count_layer(step, header, step.choices[l], step.counts[l]);
}

namespace {

/// Reads the frames of one step.
class StepReader {
 public:
  StepReader(const TraceHeader& header, TraceStep& out) : header_(header), out_(out) {}

  void sequences(const TraceFrame& frame, const frames::InputFile& file) {
    if (frame.count == 0) return;
    std::vector<TraceSequence> read(idx(frame.count));
    file.read(frame.payload, frame.bytes, read.data());
    if (out_.num_sequences() < frame.first + frame.count) {
      out_.sequences.resize(idx(frame.first + frame.count));
      is_known_.resize(out_.sequences.size());
    }
    for (i64 i = 0; i < frame.count; ++i) {
      TraceSequence& place = out_.sequences[idx(frame.first + i)];
      if (is_known_[idx(frame.first + i)] && place != read[idx(i)])
        fail<InputError>(frames::place(file, frame.payload),
                         "sequence {} of step {} differs from what another rank says", frame.first + i,
                         out_.step);
      place = read[idx(i)];
      is_known_[idx(frame.first + i)] = true;
    }
  }

  void choices(const TraceFrame& frame, const frames::InputFile& file, std::size_t layer) {
    const i64 begin = out_.first_token[idx(frame.first)];
    const i64 tokens = out_.first_token[idx(frame.first + frame.count)] - begin;
    const i64 k = header_.top_k;
    buffer_.resize(frame.bytes);
    file.read(frame.payload, frame.bytes, buffer_.data());
    std::vector<std::uint16_t>& ids = out_.choices[layer];
    ids.resize(idx(out_.num_tokens() * k), kNoExpert);
    std::uint16_t* const to = ids.data() + begin * k;
    if (frames::id_bytes(header_) == 2) {
      std::memcpy(to, buffer_.data(), idx(tokens * k) * 2);
    } else {
      for (i64 i = 0; i < tokens * k; ++i) {
        const auto id = static_cast<unsigned char>(buffer_[idx(i)]);
        to[i] = id == 0xff ? kNoExpert : id;
      }
    }
    for (i64 t = 0; t < tokens; ++t) check_token(frame, file, to, t);
    weights(frame, file, layer, begin, tokens);
  }

  void counts(const TraceFrame& frame, const frames::InputFile& file, std::size_t layer) {
    const std::size_t experts = idx(header_.num_experts);
    std::vector<std::uint32_t>& counts = out_.counts[layer];
    counts.resize(out_.sequences.size() * experts, 0);
    std::uint32_t* const to = counts.data() + idx(frame.first) * experts;
    file.read(frame.payload, frame.bytes, to);
    for (i64 s = 0; s < frame.count; ++s) {
      const i64 tokens = out_.sequences[idx(frame.first + s)].tokens;
      i64 sum = 0;
      for (std::size_t e = 0; e < experts; ++e) {
        const i64 copies = to[idx(s) * experts + e];
        if (copies > tokens)
          fail<InputError>(frames::place(file, frame.payload),
                           "copies of expert {} from a sequence of {}: got {}", e, counted(tokens, "token"),
                           copies);
        sum += copies;
      }
      if (sum > tokens * header_.top_k)
        fail<InputError>(frames::place(file, frame.payload),
                         "copies of a sequence: got {}, expected at most {}", sum, tokens * header_.top_k);
    }
  }

 private:
  void check_token(const TraceFrame& frame, const frames::InputFile& file, const std::uint16_t* ids,
                   i64 token) {
    const i64 k = header_.top_k;
    if (seen_.empty()) seen_.assign(idx(header_.num_experts), 0);
    ++stamp_;
    for (i64 i = token * k; i < (token + 1) * k; ++i) {
      const std::uint16_t id = ids[i];
      if (id == kNoExpert) continue;
      const u64 at = frame.payload + static_cast<u64>(i) * frames::id_bytes(header_);
      if (id >= header_.num_experts)
        fail<InputError>(frames::place(file, at), "expert of step {} layer {}: got {}, expected less than {}",
                         out_.step, frame.layer, id, header_.num_experts);
      if (seen_[id] == stamp_)
        fail<InputError>(frames::place(file, at), "expert {} is there twice in a token of step {} layer {}",
                         id, out_.step, frame.layer);
      seen_[id] = stamp_;
    }
  }

  void weights(const TraceFrame& frame, const frames::InputFile& file, std::size_t layer, i64 begin,
               i64 tokens) {
    if (header_.weights == TraceWeights::kNone) return;
    std::vector<float>& all = out_.weights[layer];
    all.resize(idx(out_.num_tokens() * header_.top_k), 0);
    float* const to = all.data() + begin * header_.top_k;
    const u64 from = frames::weights_begin(header_, static_cast<u64>(tokens));
    std::memcpy(to, buffer_.data() + from, buffer_.size() - from);
    for (i64 i = 0; i < tokens * header_.top_k; ++i) {
      if (!std::isfinite(to[i]))
        fail<InputError>(frames::place(file, frame.payload + from + static_cast<u64>(i) * 4),
                         "routing weight of step {} layer {}: got {}, expected a finite number", out_.step,
                         frame.layer, to[i]);
    }
  }

  const TraceHeader& header_;
  TraceStep& out_;
  std::vector<bool> is_known_;  // [sequences]
  std::vector<char> buffer_;
  std::vector<u64> seen_;  // [experts] token that had it last
  u64 stamp_ = 0;
};

}  // namespace

TraceStep RoutingTrace::read_sequences(i64 step) const {
  const Content& content = *content_;
  if (!std::binary_search(content.steps.begin(), content.steps.end(), step))
    fail<InputError>(content.path.string(),
                     "step {} is not in the trace, or not whole: expected one of its {}", step,
                     counted(content.steps.size(), "step"));
  TraceStep out;
  out.step = step;
  StepReader reader(content.header, out);
  for (const TraceFrame& frame : content.frames.at(step)) {
    if (frame.kind == frames::kSequences) reader.sequences(frame, *content.files[frame.file]);
  }
  index_tokens(out);
  return out;
}

TraceStep RoutingTrace::read(i64 step) const {
  const Content& content = *content_;
  TraceStep out = read_sequences(step);
  StepReader reader(content.header, out);
  const std::vector<TraceFrame>& all = content.frames.at(step);
  const std::vector<i64>& layers = content.header.layers;
  out.choices.resize(layers.size());
  out.weights.resize(layers.size());
  out.counts.resize(layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    bool counted = false;  // a layer of a whole step has choices or counts
    for (const TraceFrame& frame : all) {
      if (frame.kind == frames::kSequences || frame.layer != layers[l] || frame.count == 0) continue;
      const frames::InputFile& file = *content.files[frame.file];
      counted = frame.kind == frames::kCounts;
      if (counted)
        reader.counts(frame, file, l);
      else
        reader.choices(frame, file, l);
    }
    if (!counted) count_layer(out, content.header, out.choices[l], out.counts[l]);
  }
  return out;
}

}  // namespace hetermoe
