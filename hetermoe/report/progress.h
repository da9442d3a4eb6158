#pragma once
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>

#include "hetermoe/base/types.h"

namespace hetermoe {

enum class ProgressStyle {
  kAuto,   ///< a bar where the output is a terminal, lines otherwise
  kBar,    ///< one line, redrawn in place
  kLines,  ///< a line now and then, fit for log files
  kNone,
};

struct ProgressOptions {
  ProgressStyle style = ProgressStyle::kAuto;
  std::FILE* out = stderr;         ///< stdout stays free for results
  Seconds bar_interval = 0.1;      ///< least time between two redraws of a bar
  Seconds line_interval = 5;       ///< least time between two lines; the last step always has one
  int bar_width = 28;              ///< characters between the brackets
  std::string whose_time = {};     ///< after the time that is left, where a loop tells times of others, too
  std::function<Seconds()> clock;  ///< seconds since any fixed moment; empty = the steady clock
};

/// Shows how far a loop of known length has come:
///
///   Progress progress("training", options.steps);
///   for (...) progress.update(step + 1, fmt::format("loss {:.3f}", loss));
///   progress.finish();
///
/// Not thread-safe.
class Progress {
 public:
  /// total: steps of the whole loop; 0 = unknown, then only the count is shown.
  Progress(std::string label, i64 total, ProgressOptions options = {});
  ~Progress();  ///< ends the line of an unfinished bar, so that what follows (an error, say) starts on its
                ///< own line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` steps have ended; `note` is short text beside them.
  void update(i64 done, const std::string& note = "");
  /// Prints the last state and the elapsed time, unless nothing was begun. Later calls do nothing.
  void finish();

 private:
  std::string text(bool is_bar) const;
  void show(bool is_last);
  Seconds now() const;

  std::string label_;
  i64 total_;
  ProgressOptions options_;
  Seconds started_;
  Seconds shown_at_ = 0;
  Seconds first_at_ = 0;  ///< of the first update: what comes before, as a checkpoint read, is not a pace
  i64 first_done_ = -1;
  i64 done_ = 0;
  i64 shown_done_ = -1;
  std::string note_;
  bool finished_ = false;
};

}  // namespace hetermoe
