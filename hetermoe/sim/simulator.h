#pragma once
#include <vector>

#include "hetermoe/cost/price.h"
#include "hetermoe/timeline/timeline.h"

namespace hetermoe {

/// Start and end of every op; a transfer occupies all its lanes for the same time.
struct OpTimes {
  std::vector<Seconds> start, end;
  Seconds step = 0;
};

/// Event-driven replay of a schedule. Transfers that use a port at the same time share it fairly (each port
/// is water-filled on its own: what an op cannot use because another port limits it is not given away again),
/// and a transfer slows compute of its devices by their interference. With tiles (OpCosts::tiles) the parts
/// of a transfer to the owners of experts come evenly. Keeps its memory between runs.
class Simulator {
 public:
  /// The result stays valid until the next run.
  const OpTimes& run(const Schedule& schedule, const OpCosts& costs);

 private:
  struct Event {
    Seconds time;
    OpId op;
    i32 version;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : op > other.op;
    }
  };
  /// An op whose speed can change while it runs.
  struct Running {
    double remaining = 0;  // seconds at full rate
    double rate = 0;
    Seconds since = 0;
    i32 version = 0;
    bool in_latency = false, changed = false, ended = false;
    bool first_tile = false;  ///< of a transfer: `remaining` is that of the first tile
    bool waits = false;       ///< an op of experts that has done its work before its last rows came
  };
  /// A port and the transfers that use it now, as indices into OpCosts::loads.
  struct Port {
    std::vector<i64> loads;
    double level = 1;  // part of the port that one transfer may use
  };

  void prepare(const Schedule& schedule, const OpCosts& costs);
  void index_lanes();
  void index_dependents();
  void index_ports();
  void index_tiles();
  void arrive(OpId op);
  void start(OpId op);
  void finish(OpId op);
  void on_event(const Event& event);
  void enter_ports(OpId op);
  void leave_ports(OpId op);
  void end_first_tile(OpId transfer);
  bool waits_for_rows(OpId op);
  void update_level(Port& port);
  void update_changed();
  void update_compute_of(OpId transfer);
  double port_rate(OpId op) const;
  void set_rate(OpId op, double rate);
  void push(Seconds time, OpId op, i32 version);
  bool uses_ports(OpId op) const;
  Seconds alone(OpId op) const;

  const Schedule* schedule_ = nullptr;
  const OpCosts* costs_ = nullptr;
  Seconds now_ = 0;
  bool interferes_ = false;
  OpTimes times_;
  std::vector<i32> waiting_;          // [op] lanes it does not head plus dependencies not ended
  std::vector<i64> dependent_begin_;  // [op + 1]
  std::vector<OpId> dependents_;
  std::vector<OpId> feeder_;     // [op] of experts in tiles: the transfer of their rows, else -1
  std::vector<bool> is_feeder_;  // [op]
  OpId ended_ = 0;
  std::vector<i64> lane_begin_;  // [lane + 1]
  std::vector<OpId> lane_ops_;
  std::vector<i64> lane_next_;  // [lane] position of the head
  std::vector<Event> heap_;
  std::vector<Running> running_;       // [op]
  std::vector<Port> ports_;            // [port]
  std::vector<double> demand_;         // [load] part of the port that it needs at full rate
  std::vector<OpId> load_op_;          // [load]
  std::vector<OpId> changed_;          // transfers that may have got another rate
  std::vector<i32> active_transfers_;  // [device]
  std::vector<OpId> compute_running_;  // [device]
  std::vector<i64> cursor_;            // scratch
};

/// So many steps of a schedule that overlaps are simulated, so that the pipeline fills and what lasts shows.
inline constexpr i32 kSteadySteps = 8;

/// One step of kSteadySteps that overlap, `all` of repeat(schedule, kSteadySteps): one from their middle,
/// whose first op starts at 0. `step` is what a step adds to a long run, the mean over the second half; the
/// last op may end later.
OpTimes steady_step(const Schedule& schedule, const OpTimes& all);

/// Prices a schedule and runs it once; of one that overlaps the steady_step(). tiles: see OpCosts.
OpTimes simulate(const Schedule& schedule, const Placement& placement, const ModelConfig& model,
                 const Cluster& cluster, const CostModel& cost, const RoutingLoad& routing, i32 tiles = 0);

/// Oracle where nothing contends: one pass in append order (dependencies and lanes point backwards).
OpTimes longest_path(const Schedule& schedule, const std::vector<Seconds>& seconds);

/// One span per (op, device).
Timeline make_timeline(const Schedule& schedule, const OpTimes& times, const Plan& plan,
                       const Cluster& cluster, const std::string& source);
/// Ops and devices of a timeline, without spans.
Timeline timeline_frame(const Schedule& schedule, const Plan& plan, const Cluster& cluster,
                        const std::string& source);

}  // namespace hetermoe
