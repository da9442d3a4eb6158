#pragma once
#include <map>

#include "hetermoe/routing/frames.h"

// The data of its files that a reader of a routing trace keeps.
namespace hetermoe {

/// A frame of a trace, without its payload.
struct TraceFrame {
  std::size_t file;
  frames::Kind kind;
  i64 layer, first, count;
  u64 payload, bytes;
};

/// Sequences that a file tells of in one frame.
struct SequenceRun {
  i64 first = 0, count = 0;
  std::vector<std::uint32_t> tokens;
};

struct RoutingTrace::Content {
  static constexpr i64 kMostNotes = 8;
  std::filesystem::path path;
  TraceHeader header;
  std::vector<std::unique_ptr<frames::InputFile>> files;
  std::map<i64, std::vector<TraceFrame>> frames;  // by step, in the order of the files
  std::vector<i64> steps;
  std::vector<std::string> notes;
  i64 num_frames = 0, num_notes = 0;

  void note(std::string text) {
    if (++num_notes <= kMostNotes) notes.push_back(std::move(text));
  }
  void add_file(const std::filesystem::path& file);
  void add_frame(const frames::Walk& walk, const frames::InputFile& file,
                 std::map<i64, std::vector<SequenceRun>>& runs);
  void check_size(const frames::Walk& walk, const frames::InputFile& file, const SequenceRun* run) const;
  std::string missing(i64 step) const;
  void find_steps();
};

}  // namespace hetermoe
