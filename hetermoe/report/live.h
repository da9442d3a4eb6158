#pragma once
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/base/types.h"

namespace hetermoe {

/// What an output folder says of a run that may still be under way: job.json, metrics*.jsonl and, at the end,
/// report.html. Reads what was added to the metrics since the last call.
///
/// Threads: any.
class LiveRun {
 public:
  explicit LiveRun(std::filesystem::path output) : output_(std::move(output)) {}

  /// A page that asks for body() every other second.
  std::string page() const;
  /// HTML: how far the run is, its last figures and warnings, and curves over the steps. Text from files is
  /// escaped.
  std::string body();
  /// The report of the run; empty while there is none.
  std::string report() const;

 private:
  /// Of one metrics file. Lines beyond kMostPoints are thinned out evenly.
  struct Metrics {
    std::string strategy = {};  ///< empty for metrics.jsonl
    std::uintmax_t read = 0;
    std::string rest = {};         ///< of a line that is not complete
    std::vector<Json> lines = {};  ///< every `every`-th
    Json last = {};
    i64 every = 1, count = 0;
    std::vector<std::string> warnings = {};  ///< the last few, with their steps
  };
  void update();
  void read_new(const std::filesystem::path& file, Metrics& metrics) const;
  std::string facts() const;
  std::string curves() const;

  std::filesystem::path output_;
  std::mutex mutex_;
  std::map<std::filesystem::path, Metrics> metrics_;
  Json job_;
};

}  // namespace hetermoe
