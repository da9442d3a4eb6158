#pragma once
#include <deque>
#include <filesystem>
#include <optional>
#include <string>

#include "hetermoe/report/html.h"

namespace hetermoe {

/// Contents of the output folder of a run, under way or over: job.json, model.json, cluster.json,
/// summary.json, and for each strategy its plan, prediction, metrics, timeline and experts. Missing and
/// unreadable files are left out. Text from files is not escaped yet.
class RunFolder {
 public:
  explicit RunFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}
  /// Reads what has changed since the last call. live: the run may go on, so say how far it is.
  ReportInput page(bool live);
  /// Other timelines than at the last call of page() have another one.
  i64 version() const { return version_; }

 private:
  /// Contents of a file when it was written last.
  template <class T>
  struct Cached {
    std::filesystem::file_time_type written = {};
    std::optional<T> value = {};
  };
  struct LoadedPlan {
    Plan plan;
    PlanLayout layout;
  };
  struct Strategy {
    std::string name, suffix;
    Json row;  ///< of summary.json
    MetricsFile metrics;
    Cached<Timeline> predicted = {}, executed = {};
    Cached<LoadedPlan> plan = {};
  };
  template <class T, class Load>
  bool refresh(Cached<T>& cached, const std::string& name, const Load& load) const;
  void list_strategies();
  void update();
  std::vector<Fact> facts(bool live) const;
  StrategyReport report_of(const Strategy& strategy) const;
  Seconds measured_step(const Strategy& strategy) const;
  std::vector<Fact> money_of(const Strategy& strategy) const;
  std::vector<DeviceMemory> memory_of(const Strategy& strategy) const;
  std::optional<ExpertLoad> load_of(const Strategy& strategy) const;
  std::string loss_word() const;
  void add_growth(std::vector<ExpertLoad>& loads) const;

  std::filesystem::path folder_;
  Json job_;
  Cached<ModelConfig> model_;
  Cached<Cluster> cluster_;
  std::deque<Strategy> strategies_;  // their metrics are referred to
  i64 version_ = 0;
};

/// The page of a folder, read once.
inline ReportInput run_page(const std::filesystem::path& folder) { return RunFolder(folder).page(false); }

}  // namespace hetermoe
