#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "hetermoe/device/stream.h"
#include "hetermoe/exec/clock.h"
#include "hetermoe/exec/device_runtime.h"
#include "hetermoe/exec/memory_meter.h"
#include "hetermoe/schedule/lifetimes.h"
#include "hetermoe/timeline/timeline.h"

namespace hetermoe {

struct ExecutorOptions {
  ClockKind clock = ClockKind::kReal;
  double pace_scale = 1;                ///< paced: real seconds per emulated second
  const CostModel* truth = nullptr;     ///< virtual, paced: how long ops take on the emulated devices
  const Placement* emulated = nullptr;  ///< what `truth` prices: the plan with the dtypes of the emulated
                                        ///< devices; null = the plan as it is
  const CostModel* nominal = nullptr;   ///< what compute ops take on devices that keep their type's speed;
                                        ///< null = device_work() does not say
  i32 threads_per_lane = 1;             ///< intra-op threads of a compute lane
  /// Transfers in the order in which devices launch them where a transport needs one order (NCCL):
  /// dependencies first, the same in all processes. Empty = the schedule's own.
  std::vector<OpId> launch_order;
  Seconds watchdog = 300;         ///< no op ended for so long = hung
  MemoryMeter* memory = nullptr;  ///< counts the tensors of each op; messages are then copied by their
                                  ///< receiver, as a network would
  /// Bytes that a device, not a host, may hold at once, 0 = no limit; an op that needs more ends the step.
  Bytes memory_limit = 0;
  /// Called before every op on its lane thread; tests delay or fail ops with it.
  std::function<void(const Op&, DeviceId)> before_op;
  /// Starts a lane's thread; empty = std::thread does. Tests let it fail as the system may.
  std::function<std::thread(std::function<void()>)> start_thread;
  /// The stream on which a lane launches its ops; it returns null where ops end before their call returns.
  /// Tests give CPUs streams, too.
  MakeStream make_stream = make_gpu_stream;
  /// Of the ops that a lane has launched on its stream, the last ones that may not have ended: a lane that is
  /// further ahead waits. What they will free is memory that nobody has yet.
  std::size_t ops_ahead = 4;
};

/// What a device computed in a step.
struct DeviceWork {
  DeviceId device = 0;
  Seconds busy = 0;     ///< time of its compute ops, in the clock's seconds
  Seconds nominal = 0;  ///< what they take by ExecutorOptions::nominal
};

/// Runs a schedule on real tensors: one thread per lane of the local devices, in schedule order. On a GPU
/// each lane has its own stream: it launches an op when those that it depends on are launched, after their
/// events on the stream, and does not wait until it has ended. A buffer is dropped when the events of all its
/// users have passed. Only under an emulated clock or a memory meter a lane waits for each op.
///
/// Threads: one thread at a time calls; between two calls of run() no lane does anything.
class Executor {
 public:
  /// States are those of the devices that live in this process; all referenced objects must outlive the
  /// executor.
  Executor(const RunContext& context, std::vector<DeviceState*> states, Transport& transport,
           ExecutorOptions options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// One step; the first starts the threads. Throws DeviceError when the system gives no thread for a lane,
  /// and the first error of any lane; the executor is unusable afterwards.
  StepResult run(const StepInput& input);

  /// Spans of the last step (of local devices).
  Timeline timeline() const;
  /// Of local devices in the last step.
  std::vector<DeviceWork> device_work() const;
  /// Loads of the last step, for replay in the simulator.
  RecordedRouting recorded_routing() const;
  ClockKind clock() const { return clock_.kind(); }
  /// Between steps only. An emulated clock needs options.truth.
  void set_clock(ClockKind kind, double pace_scale);

 private:
  struct LaneOp {
    OpId op;
    std::size_t lane_number;         // position among the op's lanes
    std::vector<OpId> dependencies;  // those with a lane on this device
    std::vector<i64> turns;          // of a transfer: of its exchanges among those of this device
  };
  /// Thrown on a lane to leave the step after another lane failed.
  struct Poisoned {};
  struct DeviceLanes;
  /// From when to when an op ran on its stream.
  struct Launched {
    EventPtr start, end;
  };
  struct Lane {
    LaneId id;
    DeviceLanes* device;
    std::unique_ptr<WorkStream> stream;  // of its thread; null where ops end before their call returns
    std::vector<LaneOp> ops;
    std::vector<Span> spans;                 // of all ops, in order
    std::vector<Launched> launched;          // of the ops that were launched on the stream
    std::atomic<std::size_t> num_ended = 0;  // of those launched, for the watchdog
    Seconds end = 0;
    double cpu_seconds = 0;
    Seconds busy = 0, nominal = 0;      // of compute ops
    std::atomic<std::size_t> next = 0;  // position of the head, for the watchdog
    std::unique_ptr<MemoryMeter::Watch> watch;
    std::thread thread;
  };
  struct DeviceLanes {
    explicit DeviceLanes(const RunContext& context, DeviceState& state) : runtime(context, state) {}
    DeviceRuntime runtime;
    i64 state_bytes = 0;  // when the step began
    std::mutex mutex;
    std::condition_variable changed;
    EventPtr begin;   // of the step's ops, behind what begin_step() launched; null on a CPU
    EventPtr origin;  // of the times of events, at this time of the clock
    Seconds origin_time = 0;
    std::vector<char> done;                    // [op] has ended, or is launched
    std::vector<Seconds> end;                  // [op] of the local part
    std::vector<EventPtr> ended;               // [op] on its stream
    std::vector<i32> uses_left;                // [epoch], own epochs only
    std::vector<std::vector<EventPtr>> users;  // [epoch] ends of the ops that have used it
  };

  void make_lanes();
  void start_lanes();
  void stop_lanes();
  std::vector<OpId> order_of_exchanges() const;
  void give_turns();
  void lane_main(Lane& lane);
  void run_lane(Lane& lane);
  void run_op(Lane& lane, const LaneOp& item);
  /// Runs f and turns what it throws into the error of the step.
  void guard(const Lane& lane, const LaneOp& item, const std::function<void()>& f);
  Seconds wait_until_ready(Lane& lane, const LaneOp& item);
  Seconds perform(Lane& lane, const LaneOp& item, Seconds ready);
  void begin_stream(Lane& lane);
  void launch(Lane& lane, const LaneOp& item, Seconds ready);
  bool runs_ahead(const Lane& lane) const;
  void wait_for_event(const StreamEvent& event) const;
  void end_stream(Lane& lane);
  void end_launched(Lane& lane);
  Seconds run_compute(Lane& lane, const Op& op, Seconds ready, Span& span);
  Seconds run_transfer(Lane& lane, const LaneOp& item, const Op& op, Seconds ready, Span& span);
  Seconds exchange(Lane& lane, const LaneOp& item, const TransferOp& transfer, i32 round, Seconds ready,
                   std::span<const DeviceId> participants);
  void keep_until_read(Lane& lane, std::vector<Message> in);
  void finish_op(Lane& lane, const LaneOp& item, Seconds end);
  void poison(const std::string& where, std::exception_ptr error);
  void wait_for_lanes();
  void report_hang(Seconds quiet);
  std::string hang_report() const;
  void set_memory_limits();
  void check_memory(const Lane& lane) const;
  void check_leaks() const;
  StepResult collect();

  const RunContext context_;
  Transport& transport_;
  ExecutorOptions options_;
  Clock clock_;
  WorkModel work_;
  std::unique_ptr<MemoryMeter> own_meter_;  // where there is a limit and nobody gave a meter
  Lifetimes lifetimes_;
  std::unique_ptr<Transport> host_links_;  // fetch and store stay in the process and take no turns
  std::vector<std::unique_ptr<DeviceLanes>> devices_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  const StepInput* input_ = nullptr;

  mutable std::mutex mutex_;
  std::condition_variable started_, ended_;
  bool has_started_ = false;
  i64 generation_ = 0;  // of the step the lanes should run
  std::size_t lanes_left_ = 0;
  bool stop_ = false;
  std::atomic<bool> poisoned_ = false;
  std::atomic<i64> ops_ended_ = 0;
  std::exception_ptr error_;
};

}  // namespace hetermoe
