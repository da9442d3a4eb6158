#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/data/dataset.h"
#include "hetermoe/routing/writer.h"
#include "hetermoe/train/run/route_collector.h"

namespace hetermoe {

/// Tells texts apart, and the order and length in which a run reads sequences of them: equal names, equal
/// sequence number i. checksum: of the data, which takes a pass over all of it.
std::string name_of_text(u64 checksum, const Dataset& data, const TrainOptions& train);

/// The text that is read while routing is recorded.
struct RecordedText {
  std::string condition = "text";
  std::string name = {};                                  ///< see name_of_text()
  std::vector<std::string> domains = {};                  ///< names; empty = there are none
  std::function<std::uint32_t(i64)> domain_of = nullptr;  ///< of a sequence by its number in the run
};
/// Writes what the routers of this process's devices choose as a routing trace. Plans and numbers of
/// processes change nothing of it but how sequences are spread over the files of ranks.
class RouteRecorder {
 public:
  /// first_step: steps that an earlier run had done, whose trace goes on. Throws IoError and InputError as
  /// RoutingWriter does.
  RouteRecorder(const Job& job, const ModelConfig& model, const Processes& processes, i64 first_step,
                RecordedText text);

  /// A note on a continued trace that lacks steps; empty = nothing is missing.
  const std::string& note() const { return note_; }
  bool records(i64 step) const { return step % options_.every == 0; }
  /// After a step that was recorded. first_sequence: number of its first sequence in the run; taken: as
  /// RouteCollector::finish() has it.
  void write(i64 step, i64 first_sequence, const Plan& plan, const std::vector<TakenRoutes>& taken);
  /// Afterwards all that was written so far survives a power cut.
  void sync() { writer_->sync(); }
  void finish() { writer_->finish(); }

 private:
  void write_layer(i64 step, const std::vector<const TakenRoutes*>& run);

  RoutingOptions options_;
  RecordedText text_;
  i64 seq_len_;
  std::optional<RoutingWriter> writer_;
  std::string note_;
};

}  // namespace hetermoe
