#pragma once
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "hetermoe/routing/trace.h"

namespace hetermoe {

/// The detail that is kept of each step.
enum class TraceDetail { kChoices, kCounts };
template <>
struct EnumNames<TraceDetail> {
  static const std::vector<std::string>& names();
};

/// Writes a routing trace frame by frame; what was written stays readable whatever happens next. Throws
/// IoError, WriteError when the disk is full.
class RoutingWriter {
 public:
  /// Begins a new file, in whose place there may be an older trace. Missing folders are made. While it lives,
  /// no other writer takes the file. Throws ConfigError when it is no trace, or when another process writes
  /// it.
  RoutingWriter(const std::filesystem::path& path, const TraceHeader& header);
  /// Goes on with the file of a run that is resumed: what it has of step `step` and later ones is dropped.
  /// Where there is no such file, it is begun. Throws InputError when it is a trace of something else.
  static RoutingWriter resume(const std::filesystem::path& path, const TraceHeader& header, i64 step);
  ~RoutingWriter();
  RoutingWriter(RoutingWriter&& other) noexcept;
  RoutingWriter& operator=(RoutingWriter&&) = delete;

  /// Sequences first, first + 1, ... of a step. To be told before their choices or counts.
  void sequences(i64 step, i64 first, std::span<const TraceSequence> sequences);
  /// ids: [tokens * K] of `count` sequences; weights: as many where the header says f32.
  void choices(i64 step, i64 layer, i64 first, i64 count, std::span<const std::uint16_t> ids,
               std::span<const float> weights = {});
  /// counts: [count * E].
  void counts(i64 step, i64 layer, i64 first, i64 count, std::span<const std::uint32_t> counts);
  /// A whole step: one frame of sequences, and one for each layer.
  void step(const TraceStep& step, TraceDetail detail = TraceDetail::kChoices);
  /// Afterwards all that was written so far survives a power cut.
  void sync();
  /// Says that the trace ended in order, and closes the file.
  void finish();

  const TraceHeader& header() const { return header_; }
  /// After resume(): the newest step of which the file had something, 0 = there was none. Empty for a new
  /// file.
  const std::optional<i64>& last_step() const { return last_step_; }

 private:
  RoutingWriter(TraceHeader header, std::string name, int file, i64 num_frames)
      : header_(std::move(header)), name_(std::move(name)), file_(file), num_frames_(num_frames) {}
  void frame(u64 kind, i64 step, i64 layer, i64 first, i64 count, const std::string& payload);
  void write(const void* data, u64 bytes);

  TraceHeader header_;
  std::string name_;
  int file_ = -1;
  i64 num_frames_ = 0;
  std::optional<i64> last_step_;
};

}  // namespace hetermoe
