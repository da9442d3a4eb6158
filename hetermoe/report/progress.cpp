#include "hetermoe/report/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "hetermoe/report/table.h"

namespace hetermoe {

Progress::Progress(std::string label, i64 total, ProgressOptions options)
    : label_(std::move(label)), total_(total), options_(std::move(options)), started_(now()) {
  if (options_.style == ProgressStyle::kAuto) {
    options_.style = isatty(fileno(options_.out)) != 0 ? ProgressStyle::kBar : ProgressStyle::kLines;
  }
}

Progress::~Progress() {
  if (!finished_ && shown_done_ >= 0 && options_.style == ProgressStyle::kBar) std::fputs("\n", options_.out);
}

Seconds Progress::now() const {
  if (options_.clock) return options_.clock();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string Progress::text(bool is_bar) const {
  std::string line = label_ + " ";
  if (is_bar && total_ > 0) {
    const double share = std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
    const int filled = static_cast<int>(share * options_.bar_width);
    line += fmt::format("[{:#<{}}{:.<{}}] ", "", filled, "", options_.bar_width - filled);
  }
  line += total_ > 0 ? fmt::format("{}/{}", done_, total_) : fmt::format("{}", done_);
  if (!note_.empty()) line += "  " + note_;
  const Seconds elapsed = now() - started_;
  if (done_ > first_done_ && done_ < total_) {
    const Seconds each = (now() - first_at_) / static_cast<double>(done_ - first_done_);
    line += fmt::format("  {}{} left", format_seconds(each * static_cast<double>(total_ - done_)),
                        options_.whose_time);
  }
  if (finished_) line += fmt::format("  in {}", format_seconds(elapsed));
  return line;
}

void Progress::show(bool is_last) {
  shown_at_ = now();
  shown_done_ = done_;
  const bool is_bar = options_.style == ProgressStyle::kBar;
  // "\33[K" clears what a longer line left behind.
  const std::string line =
      is_bar ? fmt::format("\r{}\33[K{}", text(true), is_last ? "\n" : "") : text(false) + "\n";
  std::fputs(line.c_str(), options_.out);
  std::fflush(options_.out);
}

void Progress::update(i64 done, const std::string& note) {
  done_ = done;
  note_ = note;
  if (first_done_ < 0) first_done_ = done, first_at_ = now();
  if (finished_ || options_.style == ProgressStyle::kNone) return;
  const Seconds interval =
      options_.style == ProgressStyle::kBar ? options_.bar_interval : options_.line_interval;
  // The second update is the first that can tell the time left.
  if (shown_done_ < 0 || shown_done_ == first_done_ || now() - shown_at_ >= interval) show(false);
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  if (shown_done_ < 0 && done_ == 0) return;  // nothing was begun
  if (options_.style != ProgressStyle::kNone) show(true);
}

}  // namespace hetermoe
