#include "hetermoe/routing/trace.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/routing/trace_content.h"

namespace hetermoe {
namespace {

i64 tokens_of(const SequenceRun& run, i64 first, i64 count) {
  const auto begin = run.tokens.begin() + (first - run.first);
  return std::accumulate(begin, begin + count, i64{0});
}

/// The runs of sequences of a file that hold all of these; null = none.
const SequenceRun* find_run(const std::vector<SequenceRun>& runs, i64 first, i64 count) {
  for (const SequenceRun& run : runs) {
    if (run.first <= first && first + count <= run.first + run.count) return &run;
  }
  return nullptr;
}

void check_sequences(const frames::Walk& walk, const frames::InputFile& file, const TraceHeader& header,
                     std::vector<SequenceRun>& runs) {
  const frames::Head& head = walk.head();
  SequenceRun run{head.first, head.count, {}};
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
  for (const SequenceRun& other : runs) {
    if (run.first < other.first + other.count && other.first < run.first + run.count)
      fail<InputError>(frames::place(file, walk.frame()), "sequences {} to {} of step {} are there twice",
                       run.first, run.first + run.count - 1, head.step);
  }
  runs.push_back(std::move(run));
}

}  // namespace

void RoutingTrace::Content::check_size(const frames::Walk& walk, const frames::InputFile& file,
                                       const SequenceRun* run) const {
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
                                      std::map<i64, std::vector<SequenceRun>>& runs) {
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
  std::vector<SequenceRun>& of_step = runs[head.step];
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
  std::map<i64, std::vector<SequenceRun>> runs;
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
  std::map<i64, std::set<frames::Kind>> kinds;
  std::vector<std::pair<i64, i64>> told;
  i64 total = header.sequences.value_or(0);  // else the last one that a frame tells of
  for (const TraceFrame& frame : frames.at(step)) {
    if (frame.count == 0) continue;
    if (frame.kind != frames::kSequences) kinds[frame.layer].insert(frame.kind);
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
    if (kinds[layer].size() > 1)
      return fmt::format("layer {} has choices of some sequences and counts of others", layer);
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
  if (num_notes > kMostNotes) notes.push_back(fmt::format("and {} more of the kind", num_notes - kMostNotes));
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

}  // namespace hetermoe
