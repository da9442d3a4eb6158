#pragma once
#include <filesystem>
#include <mutex>
#include <string>

#include "hetermoe/report/run_page.h"

namespace hetermoe {

/// The page of a run that may still be under way, as a server hands it out.
///
/// Threads: any.
class LiveRun {
 public:
  explicit LiveRun(std::filesystem::path output) : output_(std::move(output)), folder_(output_) {}

  /// As it is now; its script asks for parts() every other second.
  std::string page();
  /// JSON: the parts of the page by their ids; the data of its timelines where they are others than those of
  /// version `seen`, else null; their version.
  std::string parts(i64 seen);
  /// The report of the run; empty while there is none.
  std::string report() const;

 private:
  ReportInput input();
  bool has_report() const;
  std::filesystem::path output_;
  std::mutex mutex_;
  RunFolder folder_;
};

}  // namespace hetermoe
