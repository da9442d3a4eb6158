#include "hetermoe/routing/trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/numbers.h"
#include "hetermoe/base/words.h"
#include "hetermoe/routing/frames.h"

namespace hetermoe {
namespace {

/// A frame of a trace, without its payload.
struct Frame {
  std::size_t file;
  frames::Kind kind;
  i64 layer, first, count;
  u64 payload, bytes;
};

struct Run {
  i64 first = 0, count = 0;
  std::vector<std::uint32_t> tokens;
};

i64 tokens_of(const Run& run, i64 first, i64 count) {
  const auto begin = run.tokens.begin() + (first - run.first);
  return std::accumulate(begin, begin + count, i64{0});
}

constexpr std::size_t kMostNotes = 8;

}  // namespace

struct RoutingTrace::Content {
  std::filesystem::path path;
  TraceHeader header;
  std::vector<std::unique_ptr<frames::InputFile>> files;
  std::map<i64, std::vector<Frame>> frames;  // by step, in the order of the files
  std::vector<i64> steps;
  std::vector<std::string> notes;
  i64 num_frames = 0, num_notes = 0;

  void note(std::string text) {
    if (++num_notes <= static_cast<i64>(kMostNotes)) notes.push_back(std::move(text));
  }
  void add_file(const std::filesystem::path& file);
  void add_frame(const frames::Walk& walk, const frames::InputFile& file,
                 std::map<i64, std::vector<Run>>& runs);
  void check_size(const frames::Walk& walk, const frames::InputFile& file, const Run* run) const;
  std::string missing(i64 step) const;
  void find_steps();
};

namespace {

/// The runs of sequences of a file that hold all of these; null = none.
const Run* find_run(const std::vector<Run>& runs, i64 first, i64 count) {
  for (const Run& run : runs) {
    if (run.first <= first && first + count <= run.first + run.count) return &run;
  }
  return nullptr;
}

void check_sequences(const frames::Walk& walk, const frames::InputFile& file, const TraceHeader& header,
                     std::vector<Run>& runs) {
  const frames::Head& head = walk.head();
  Run run{head.first, head.count, {}};
  for (u64 i = 0; i < head.count; ++i) {
    TraceSequence sequence;
    std::memcpy(&sequence, walk.payload().data() + i * sizeof(sequence), sizeof(sequence));
    const std::string where = frames::place(file, walk.payload_offset() + i * sizeof(sequence));
    if (sequence.domain != kNoDomain && sequence.domain >= header.domains.size())
      fail<InputError>(where, "domain of a sequence: got {}, expected less than {} or none", sequence.domain,
                       header.domains.size());
    if (sequence.prompt > sequence.tokens)
      fail<InputError>(where, "prompt of a sequence: got {}, expected at most its tokens ({})",
                       sequence.prompt, sequence.tokens);
    run.tokens.push_back(sequence.tokens);
  }
  for (const Run& other : runs) {
    if (run.first < other.first + other.count && other.first < run.first + run.count)
      fail<InputError>(frames::place(file, walk.frame()), "sequences {} to {} of step {} are there twice",
                       run.first, run.first + run.count - 1, head.step);
  }
  runs.push_back(std::move(run));
}

}  // namespace

void RoutingTrace::Content::check_size(const frames::Walk& walk, const frames::InputFile& file,
                                       const Run* run) const {
  const frames::Head& head = walk.head();
  const std::string where = frames::place(file, walk.frame());
  u64 expected = 0;
  if (head.kind == frames::kSequences) {
    expected = u64{head.count} * sizeof(TraceSequence);
  } else if (head.kind == frames::kEnd) {
    expected = 8;
  } else {
    if (run == nullptr)
      fail<InputError>(where, "sequences {} to {} of step {}: got no frame of sequences before, expected one",
                       head.first, head.first + i64{head.count} - 1, head.step);
    const i64 tokens = tokens_of(*run, head.first, head.count);
    if (head.kind == frames::kCounts)
      expected = u64{head.count} * static_cast<u64>(header.num_experts) * 4;
    else  // every token has a byte at least, which keeps the product small
      expected = static_cast<u64>(tokens) > head.bytes
                     ? static_cast<u64>(tokens)
                     : frames::choices_bytes(header, static_cast<u64>(tokens));
  }
  if (head.bytes != expected)
    fail<InputError>(where, "payload of the frame: got {} bytes, expected {}", head.bytes, expected);
}

void RoutingTrace::Content::add_frame(const frames::Walk& walk, const frames::InputFile& file,
                                      std::map<i64, std::vector<Run>>& runs) {
  const frames::Head& head = walk.head();
  const std::string where = frames::place(file, walk.frame());
  if (head.kind < frames::kSequences || head.kind > frames::kEnd)
    fail<InputError>(where, "kind of the frame: got {}, expected 1 to 4", head.kind);
  if (head.step < 0 || head.first < 0 || head.first > (i64{1} << 40))
    fail<InputError>(where, "step {}, first sequence {}: expected none below 0", head.step, head.first);
  const bool routes = head.kind == frames::kChoices || head.kind == frames::kCounts;
  const std::vector<i64>& layers = header.layers;
  if (routes ? !std::binary_search(layers.begin(), layers.end(), i64{head.layer}) : head.layer != 0)
    fail<InputError>(where, "layer: got {}, expected {}", head.layer,
                     routes ? "one of the header" : "0 in a frame of this kind");
  std::vector<Run>& of_step = runs[head.step];
  check_size(walk, file, routes ? find_run(of_step, head.first, head.count) : nullptr);
  if (head.kind == frames::kSequences) check_sequences(walk, file, header, of_step);
  if (head.kind == frames::kEnd) return;
  frames[head.step].push_back({files.size() - 1, static_cast<frames::Kind>(head.kind), head.layer, head.first,
                               head.count, walk.payload_offset(), head.bytes});
}

void RoutingTrace::Content::add_file(const std::filesystem::path& name) {
  files.push_back(std::make_unique<frames::InputFile>(name));
  const frames::InputFile& file = *files.back();
  const frames::FileStart start = frames::read_start(file);
  if (files.size() == 1) {
    header = start.header;
  } else if (start.header != header) {
    fail<InputError>(file.name(), "is part of another trace: got header {}, expected that of {}, {}",
                     frames::header_text(start.header), files[0]->name(), frames::header_text(header));
  }
  frames::Walk walk(file, start.end);
  std::map<i64, std::vector<Run>> runs;
  bool ended = false;
  for (i64 before = 0; walk.next(); ++before) {
    if (ended)
      fail<InputError>(frames::place(file, walk.frame()), "got a frame, expected none after the last one");
    add_frame(walk, file, runs);
    ++num_frames;
    if (walk.head().kind != frames::kEnd) continue;
    u64 told;
    std::memcpy(&told, walk.payload().data(), 8);
    if (told != static_cast<u64>(before))
      fail<InputError>(frames::place(file, walk.frame()), "frames before the last one: got {}, expected {}",
                       before, told);
    ended = true;
  }
  const u64 rest = file.size() - walk.offset();
  if (ended && rest > 0)
    fail<InputError>(frames::place(file, walk.offset()), "got {} bytes, expected none after the last frame",
                     rest);
  if (rest > 0)
    note(fmt::format("{} is cut: its last {} at byte {} are no whole frame and are left out", file.name(),
                     counted(rest, "byte"), walk.offset()));
  else if (!ended)
    note(fmt::format("{} has no last frame: what wrote it did not end in order, or still goes on",
                     file.name()));
}

namespace {

/// Whether runs [first, count) put one after another are 0, 1, ... total - 1; else what is wrong.
std::string gap(std::vector<std::pair<i64, i64>> runs, i64 total) {
  std::sort(runs.begin(), runs.end());
  i64 end = 0;
  for (const auto& [first, count] : runs) {
    if (first < end) return fmt::format("has sequence {} twice", first);
    if (first > end) break;
    end += count;
  }
  return end == total ? "" : fmt::format("has no sequence {} of {}", end, total);
}

}  // namespace

/// Why a step is not whole; empty = it is.
std::string RoutingTrace::Content::missing(i64 step) const {
  std::map<i64, std::vector<std::pair<i64, i64>>> by_layer;
  std::vector<std::pair<i64, i64>> told;
  i64 total = 0;
  for (const Frame& frame : frames.at(step)) {
    if (frame.count == 0) continue;
    total = std::max(total, frame.first + frame.count);
    (frame.kind == frames::kSequences ? told : by_layer[frame.layer]).emplace_back(frame.first, frame.count);
  }
  // Several ranks may describe a sequence, each for its layers.
  std::sort(told.begin(), told.end());
  i64 end = 0;
  for (const auto& [first, count] : told) {
    if (first > end) break;
    end = std::max(end, first + count);
  }
  if (end < total || total == 0) return fmt::format("has no sequence {} of {}", end, total);
  for (const i64 layer : header.layers) {
    const std::string what = gap(by_layer[layer], total);
    if (!what.empty()) return fmt::format("layer {} {}", layer, what);
  }
  return "";
}

void RoutingTrace::Content::find_steps() {
  for (const auto& [step, of_step] : frames) {
    const std::string what = missing(step);
    if (what.empty())
      steps.push_back(step);
    else
      note(fmt::format("step {} is not whole and is left out: {}", step, what));
  }
  if (num_notes > static_cast<i64>(kMostNotes))
    notes.push_back(fmt::format("and {} more of the kind", num_notes - static_cast<i64>(kMostNotes)));
}

namespace {

/// The files of a folder, by name. Throws InputError when a rank is missing.
std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".routes") all.push_back(entry.path());
  }
  std::sort(all.begin(), all.end());
  if (all.empty())
    fail<InputError>(folder.string(), "is no routing trace: got a folder without files *.routes");
  i64 expected = 0;
  for (const std::filesystem::path& path : all) {
    const std::string stem = path.stem().string();
    if (!stem.starts_with("rank-")) continue;
    const std::string rank = fmt::format("rank-{:05}", expected++);
    if (stem != rank)
      fail<InputError>(folder.string(), "a rank is missing: got {}, expected {}.routes",
                       path.filename().string(), rank);
  }
  return all;
}

}  // namespace

RoutingTrace::RoutingTrace(const std::filesystem::path& path) : content_(std::make_unique<Content>()) {
  content_->path = path;
  if (std::filesystem::is_directory(path)) {
    for (const std::filesystem::path& file : files_of(path)) content_->add_file(file);
  } else {
    content_->add_file(path);
  }
  content_->find_steps();
}

RoutingTrace::~RoutingTrace() = default;
RoutingTrace::RoutingTrace(RoutingTrace&&) noexcept = default;
RoutingTrace& RoutingTrace::operator=(RoutingTrace&&) noexcept = default;
const std::filesystem::path& RoutingTrace::path() const { return content_->path; }
const TraceHeader& RoutingTrace::header() const { return content_->header; }
const std::vector<i64>& RoutingTrace::steps() const { return content_->steps; }
const std::vector<std::string>& RoutingTrace::notes() const { return content_->notes; }
i64 RoutingTrace::num_frames() const { return content_->num_frames; }

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

  void sequences(const Frame& frame, const frames::InputFile& file) {
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

  void choices(const Frame& frame, const frames::InputFile& file, std::size_t layer) {
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

  void counts(const Frame& frame, const frames::InputFile& file, std::size_t layer) {
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
  void check_token(const Frame& frame, const frames::InputFile& file, const std::uint16_t* ids, i64 token) {
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

  void weights(const Frame& frame, const frames::InputFile& file, std::size_t layer, i64 begin, i64 tokens) {
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

TraceStep RoutingTrace::read(i64 step) const {
  const Content& content = *content_;
  if (!std::binary_search(content.steps.begin(), content.steps.end(), step))
    fail<InputError>(content.path.string(),
                     "step {} is not in the trace, or not whole: expected one of its {}", step,
                     counted(content.steps.size(), "step"));
  TraceStep out;
  out.step = step;
  StepReader reader(content.header, out);
  const std::vector<Frame>& all = content.frames.at(step);
  for (const Frame& frame : all) {
    if (frame.kind == frames::kSequences) reader.sequences(frame, *content.files[frame.file]);
  }
  index_tokens(out);
  const std::vector<i64>& layers = content.header.layers;
  out.choices.resize(layers.size());
  out.weights.resize(layers.size());
  out.counts.resize(layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    bool counted_only = false;
    for (const Frame& frame : all) {
      if (frame.kind == frames::kSequences || frame.layer != layers[l] || frame.count == 0) continue;
      if (frame.kind == frames::kChoices) reader.choices(frame, *content.files[frame.file], l);
      counted_only = counted_only || frame.kind == frames::kCounts;
    }
    if (!counted_only || !out.choices[l].empty())
      count_layer(out, content.header, out.choices[l], out.counts[l]);
    for (const Frame& frame : all) {
      if (frame.kind == frames::kCounts && frame.layer == layers[l])
        reader.counts(frame, *content.files[frame.file], l);
    }
    if (counted_only) out.choices[l].clear();
  }
  return out;
}

TraceStep read_steps(const RoutingTrace& trace, i64 first, i64 last) {
  TraceStep out;
  bool found = false;
  for (const i64 step : trace.steps()) {
    if (step < first || step > last) continue;
    TraceStep next = trace.read(step);
    if (!found) {
      out = std::move(next);
    } else {
      out.sequences.insert(out.sequences.end(), next.sequences.begin(), next.sequences.end());
      for (std::size_t l = 0; l < out.counts.size(); ++l) {
        const auto append = [l](auto& to, const auto& from) {
          to[l].insert(to[l].end(), from[l].begin(), from[l].end());
        };
        append(out.choices, next.choices);
        append(out.weights, next.weights);
        append(out.counts, next.counts);
      }
      index_tokens(out);
    }
    found = true;
  }
  if (!found)
    fail<InputError>(trace.path().string(), "has no whole step from {} to {}: got {}", first, last,
                     trace.steps().empty()
                         ? "no whole step at all"
                         : fmt::format("steps {} to {}", trace.steps().front(), trace.steps().back()));
  return out;
}

}  // namespace hetermoe
