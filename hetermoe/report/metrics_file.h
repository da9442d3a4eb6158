#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/base/types.h"

namespace hetermoe {

/// Something noteworthy of a step.
struct StepNote {
  double step = 0;
  std::string text;
};

/// JSON lines of which, when there are many, every second, fourth, ... is kept.
class ThinnedLines {
 public:
  void add(Json line);
  const std::vector<Json>& all() const { return lines_; }

 private:
  std::vector<Json> lines_;
  i64 every_ = 1, count_ = 0;
};

/// A metrics.jsonl that may still grow.
class MetricsFile {
 public:
  explicit MetricsFile(std::filesystem::path path) : path_(std::move(path)) {}
  /// Reads what was added since the last call; a file that was begun anew is read anew.
  void update();

  const std::vector<Json>& lines() const { return lines_.all(); }
  const std::vector<Json>& validations() const { return validations_.all(); }  ///< lines that have one
  const Json& last() const { return last_; }                                   ///< null before the first
  const std::vector<StepNote>& marks() const {
    return marks_;
  }  ///< what changed before a step; the last ones
  const std::vector<StepNote>& warnings() const { return warnings_; }  ///< the last ones
  /// The median of what the last lines have under this key.
  double recent(const char* key) const;

 private:
  void add(Json line);
  std::filesystem::path path_;
  std::uintmax_t read_ = 0;
  std::string rest_ = {};  ///< of a line that is not complete
  ThinnedLines lines_ = {}, validations_ = {};
  Json last_ = {};
  std::vector<StepNote> marks_ = {}, warnings_ = {};
};

/// The number under a key, 0 where there is none.
double number_in(const Json& line, const std::string& key);

}  // namespace hetermoe
