#pragma once
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hetermoe/ops/buffer_index.h"
#include "hetermoe/schedule/residency.h"
#include "hetermoe/schedule/schedule.h"

namespace hetermoe {

/// Remembers, per buffer, the last writer and the readers since: what a new access must wait for.
class Scoreboard {
 public:
  class Entry;
  explicit Scoreboard(const Placement& placement);

  /// The record of a buffer. The reference stays valid.
  Entry& entry(const Access& access, DeviceId device);
  /// Appends to `before` the ops that must end before `op` may touch the buffer, and records the access.
  /// Returns false when the op reads a buffer that no op wrote. entry: that of the access. lane: that of the
  /// op, numbered among those of its place. known: [lane of the place] the last op that has surely ended;
  /// these and those before them are left out.
  bool visit(Entry& entry, const Access& access, OpId op, i32 lane, const OpId* known,
             std::vector<OpId>& before);
  /// From here on accesses are those of the next step, which has buffers of its own but for those that span
  /// steps.
  void begin_next_step();

 private:
  struct Reader {
    OpId op = -1;                      // -1 = none
    i32 next = -1;                     // in pool_
    std::int16_t lane = -1;            // among those of the place
    std::int16_t lane_of_writer = -1;  // of the entry; in the head of a list alone, where it takes no room
  };

 public:
  class Entry {
   private:
    friend class Scoreboard;
    OpId writer() const { return taken() ? kTaken - code_ : code_; }
    bool taken() const { return code_ <= kTaken; }  // by the writer
    void write(OpId op, i32 lane, bool takes) {
      code_ = takes ? kTaken - op : op;
      reader = {.lane_of_writer = static_cast<std::int16_t>(lane)};
    }

    static constexpr i32 kTaken = -2;
    i32 code_ = -1;  // the writer, -1 = none; of one that takes kTaken less it
    Reader reader;   // head of a list, most of which have one
  };

 private:
  void add_reader(Entry& entry, OpId op, i32 lane);

  // A device touches few of the layers and states of a large plan: entries come in pages of so many, on first
  // use.
  static constexpr std::size_t kOfPage = 64;

  BufferIndex index_;
  std::array<std::size_t, kNumBuffers + 1> first_page_ = {};  // of each buffer, and the end
  std::vector<std::vector<Entry*>> pages_;                    // [device] empty until its first access
  std::vector<std::unique_ptr<Entry[]>> all_pages_;
  std::vector<Reader> pool_;
  i32 free_ = -1;  // list of unused readers
};

/// Appends ops in an order that a policy chooses; lanes and dependencies follow from the plan and accesses().
class ScheduleBuilder {
 public:
  /// Keeps a reference to the placement. listed: see build_schedule().
  explicit ScheduleBuilder(const Placement& placement, std::vector<bool> listed = {});

  const Placement& placement() const { return placement_; }
  const Schedule& schedule() const { return schedule_; }
  bool lists(PlaceId device) const { return listed_.empty() || listed_[static_cast<std::size_t>(device)]; }
  /// Some device of the group is listed; ops of other groups are left out.
  bool lists_group(i32 group) const;

  /// A compute op on one device. Ops that have no work because of frozen units are dropped, here and below.
  void compute(const Op& op, DeviceId device);
  /// A compute op on every device of the shares of stage `layer`.
  void compute_on_shares(const Op& op, i32 layer);
  /// A transfer among its participants.
  void transfer(const Op& op);
  /// Says that the last router of a microbatch is appended; the balance op follows when it was the last of
  /// its set.
  void routed(i32 group, i32 microbatch);
  /// Says that group `group` adds no more to the gradients of this part. When all groups have said so, its
  /// reduces are appended.
  void state_done(UnitPart part, i32 layer);
  /// The order itself appends fetches and stores; the builder then adds none.
  void list_visits() { lists_visits_ = true; }
  /// Reduces that are still due, the gradient norm and the updates; then hands the schedule over. Throws
  /// ConfigError with all faults found on the way.
  Schedule finish();
  /// Hands the schedule over as it is (an explicit order lists its reduces and updates itself).
  Schedule take();
  /// Appends ops once more, as the step after it takes them.
  void append_again(const Schedule& step);

 private:
  // Lanes of a place are numbered as they come up, devices and hosts apart: of a step's queues most have few.
  struct Numbers {
    std::array<std::int16_t, kLanesOfPlace> of_lane = {};  // + 1, 0 = none yet
    i32 count = 0;

    i32 of(LaneId lane) {
      std::int16_t& number = of_lane[static_cast<std::size_t>(lane_at(lane))];
      if (number == 0) number = static_cast<std::int16_t>(++count);
      return number - 1;
    }
  };

  void append(const Op& op, std::span<const DeviceId> devices);
  void append_visits();
  [[noreturn]] void refuse_balance_group() const;
  void fetch_updated();
  void compute_on_states(OpKind kind);
  void compute_on_homes(OpKind kind, i32 state);
  void transfer_sharded_states(OpKind kind);
  void visit_buffers(OpId id, const Op& op, DeviceId device, i32 lane, const OpId* clock);
  std::span<OpId> begin_clock(LaneId lane, i32 width);
  void add_dependencies(DeviceId device, Numbers& numbers, std::span<OpId> clock);
  std::span<OpId> clock_of(std::size_t entry);
  std::size_t entry_of(OpId op, DeviceId device) const;

  const Placement& placement_;
  std::vector<bool> listed_;  // [device], empty = all
  Schedule schedule_;
  Scoreboard scoreboard_;
  Residency residency_;
  bool lists_visits_ = false;
  std::vector<Op> visits_;  // scratch of compute() and state_done()
  Numbers device_lanes_, host_lanes_;
  // A clock: of each lane of a place, the last op known to have ended when an op has. Lanes that came up
  // later had none.
  std::vector<OpId> clocks_;               // one after another
  std::vector<std::size_t> clock_begin_;   // [entry of schedule_.lanes] where it begins in clocks_
  std::vector<std::size_t> last_on_lane_;  // [lane] the entry of its last op
  std::vector<i32> groups_pending_;        // [state] groups that may still add to its gradient
  std::vector<i32> lagging_;               // states that are complete and updated a step late
  std::vector<i64> routes_pending_;        // [balance set] microbatches whose last router is not appended
  std::vector<std::string> faults_;
  std::vector<Access> accesses_;             // of the op being appended, on one device
  std::vector<Scoreboard::Entry*> entries_;  // of these
  std::vector<OpId> before_;                 // what they wait for
  std::vector<OpId> deps_;                   // of the op being appended
  std::vector<DeviceId> participants_;       // scratch of transfer()
};

/// The schedule of a step without the ops of devices that are not `listed`, and without their lanes in
/// transfers: what the others do is in their place if they do the same at the same time (cost/fold.h says who
/// does). It keeps the numbers of devices. listed: [num_devices]; empty = all.
Schedule build_schedule(const Placement& placement, const std::vector<bool>& listed = {});

/// Fills carry: what ops of a step wait for in the step before, by the access table over two steps.
void add_carry(Schedule& schedule, const Placement& placement);

}  // namespace hetermoe
