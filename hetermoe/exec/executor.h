#pragma once
#include <array>
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
  /// Unfinished ops that a lane may have on its stream; a lane with more waits. The memory that these ops
  /// will free is not available yet.
  std::size_t ops_ahead = 4;
};

/// The work of a device in a step.
struct DeviceWork {
  DeviceId device = 0;
  Seconds busy = 0;     ///< time of its compute ops, in the clock's seconds
  Seconds nominal = 0;  ///< what they take by ExecutorOptions::nominal
};

/// Runs a schedule on real tensors: one thread per lane of the local devices, in schedule order. On a GPU
/// each lane has its own stream. It launches an op when all ops that it depends on are launched; the stream
/// waits for their events, and the lane does not wait for the end of the op. A buffer is dropped when the
/// events of all its users have passed. Only under an emulated clock or a memory meter a lane waits for each
/// op.
///
/// If the schedule overlaps with the step before it (Schedule::carry), begin() may be called while one step
/// is under way. That holds if may_overlap(): no device is a GPU, memory is not metered, and the transport
/// does not take turns. Each of the two steps has its own buffers. The carried dependencies cover the buffers
/// that both use.
///
/// Threads: one thread at a time calls; when all steps that were begun have ended no lane does anything.
class Executor {
 public:
  /// States are those of the devices that live in this process; all referenced objects must outlive the
  /// executor.
  Executor(const RunContext& context, std::vector<DeviceState*> states, Transport& transport,
           ExecutorOptions options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// One step: begin() and end().
  StepResult run(const StepInput& input);
  /// Lets the lanes go on with a step; the first starts the threads. Throws DeviceError when the system gives
  /// no thread for a lane.
  void begin(const StepInput& input);
  /// Waits for the first step that has not ended. Throws the first error of any lane, when all lanes have
  /// left their steps; the executor is unusable afterwards.
  StepResult end();
  /// Waits until no lane does anything. Steps that were begun still have to be ended.
  void settle();
  i64 steps_under_way() const { return begun_ - over_; }
  bool may_overlap() const { return may_overlap_; }

  // Results of the step that ended last. If a step began before the end of the one before, its duration
  // counts from that end. Times begin with its first span.
  /// Spans of the last step (of local devices).
  Timeline timeline() const;
  /// Work of local devices in the last step.
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
    std::vector<OpId> carried;       // such ops of the step before
    std::vector<i64> turns;          // of a transfer: of its exchanges among those of this device
  };
  /// Thrown on a lane to leave the step after another lane failed.
  struct Poisoned {};
  struct DeviceLanes;
  /// From when to when an op ran on its stream.
  struct Launched {
    EventPtr start, end;
  };
  /// Record of a lane in a step.
  struct LaneStep {
    std::vector<Span> spans;  // of all ops, in order
    Seconds end = 0;          // of the last op; while it runs, of that before
    double cpu_seconds = 0;
    Seconds busy = 0, nominal = 0;  // of compute ops
  };
  struct Lane {
    LaneId id;
    DeviceLanes* device;
    std::unique_ptr<WorkStream> stream;  // of its thread; null where ops end before their call returns
    std::vector<LaneOp> ops;
    std::array<LaneStep, 2> steps;           // by side()
    std::atomic<i64> step = 0;               // that it is in, 1 = the first
    std::vector<Launched> launched;          // of the ops that were launched on the stream
    std::atomic<std::size_t> num_ended = 0;  // of those launched, for the watchdog
    std::atomic<std::size_t> next = 0;       // position of the head, for the watchdog
    std::unique_ptr<MemoryMeter::Watch> watch;
    std::thread thread;
  };
  /// Data of one step on a device.
  struct DeviceStep {
    DeviceStep(const RunContext& context, DeviceState& state) : runtime(context, state) {}
    DeviceRuntime runtime;
    std::vector<Seconds> end;                  // [op] of the local part
    std::vector<i32> uses_left;                // [epoch], own epochs only
    std::vector<std::vector<EventPtr>> users;  // [epoch] ends of the ops that have used it
  };
  struct DeviceLanes {
    DeviceLanes(const RunContext& context, DeviceState& state);
    DeviceRuntime& runtime(i64 step = 1) const { return steps[side(step) % steps.size()]->runtime; }
    DeviceStep& of(i64 step) const { return *steps[side(step) % steps.size()]; }
    std::vector<std::unique_ptr<DeviceStep>> steps;  // two where steps overlap
    i64 state_bytes = 0;                             // when the step began
    std::mutex mutex;
    std::condition_variable changed;
    EventPtr begin;   // of the step's ops, behind what begin_step() launched; null on a CPU
    EventPtr origin;  // of the times of events, at this time of the clock
    Seconds origin_time = 0;
    std::vector<i64> done;        // [op] the last step in which it has ended, or is launched
    std::vector<EventPtr> ended;  // [op] on its stream
  };

  static std::size_t side(i64 step) { return static_cast<std::size_t>(step) % 2; }
  static LaneStep& now(Lane& lane) { return lane.steps[side(lane.step)]; }
  static DeviceStep& here(const Lane& lane) { return lane.device->of(lane.step); }
  bool can_overlap() const;
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
  void wait_for_writers(const std::vector<Message>& in) const;
  static Message bring_here(std::vector<Message>& in, c10::Device here);
  void wait_for_event(const StreamEvent& event) const;
  void end_stream(Lane& lane);
  void end_launched(Lane& lane);
  Seconds run_compute(Lane& lane, const Op& op, Seconds ready, Span& span);
  Seconds run_transfer(Lane& lane, const LaneOp& item, const Op& op, Seconds ready, Span& span);
  Seconds exchange(Lane& lane, const LaneOp& item, const TransferOp& transfer, i32 round, Seconds ready,
                   std::span<const DeviceId> participants);
  void keep_until_read(Lane& lane, std::vector<Message> in);
  void finish_op(Lane& lane, const LaneOp& item, Seconds end);
  void poison(std::exception_ptr error);
  void wait_for_lanes(i64 step);
  void report_hang(Seconds quiet);
  std::string hang_report() const;
  void set_memory_limits();
  void check_memory(const Lane& lane) const;
  void check_leaks(i64 step) const;
  Seconds end_of(i64 step) const;
  StepResult collect(i64 step);

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
  std::array<StepInput, 2> inputs_;          // by side(), as the next two
  std::array<bool, 2> follows_{};            // the step began while the one before it was under way
  std::array<std::size_t, 2> lanes_left_{};  // lanes that are still in it
  bool may_overlap_ = false;
  Seconds last_end_ = 0, last_step_ = 0;  // of the step that ended last

  mutable std::mutex mutex_;
  std::condition_variable started_, ended_;
  bool has_started_ = false;
  i64 begun_ = 0, over_ = 0;  // steps
  bool stop_ = false;
  std::atomic<bool> poisoned_ = false;
  std::atomic<i64> ops_ended_ = 0;
  std::exception_ptr error_;
};

}  // namespace hetermoe
