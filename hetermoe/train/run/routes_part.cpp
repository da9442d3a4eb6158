#include <algorithm>

#include "hetermoe/train/run/parts.h"
#include "hetermoe/train/run/route_collector.h"

namespace hetermoe {
namespace {

class RoutesPart : public RunPart {
 public:
  explicit RoutesPart(RunState& run) : run_(run), collector_(run.job, run.model) {}

  void add_to(StepInput& input) override {
    if (is_read(input.step)) input.routes = &collector_;
    collector_.set_order(run_.order);
  }

  void step_ended(StepRecord& record) override {
    const i64 step = record.step - 1;
    if (!is_read(step)) return;
    const std::vector<TakenRoutes> taken = collector_.finish();
    for (RouteReader* reader : run_.route_readers) {
      if (reader->reads(step)) reader->read(step, run_.first_sequence(), taken);
    }
  }

  bool ends_before_next(i64) const override { return true; }

 private:
  bool is_read(i64 step) const {
    return std::any_of(run_.route_readers.begin(), run_.route_readers.end(),
                       [&](const RouteReader* reader) { return reader->reads(step); });
  }

  RunState& run_;
  RouteCollector collector_;
};

}  // namespace

std::unique_ptr<RunPart> routes_part(RunState& run) {
  if (run.route_readers.empty()) return nullptr;
  check_choices_are_whole(run);
  return std::make_unique<RoutesPart>(run);
}

}  // namespace hetermoe
