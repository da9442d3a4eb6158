#include "hetermoe/schedule/builder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/ops/exchange.h"
#include "hetermoe/schedule/schedule_error.h"

namespace hetermoe {
namespace {

constexpr std::size_t kMaxOverwrites = 10;
constexpr std::size_t kNone = SIZE_MAX;

template <class F>
void for_kinds(Occurs occurs, const F& f) {
  for (i32 kind = 0; kind < kNumOpKinds; ++kind)
    if (row_of(static_cast<OpKind>(kind)).occurs == occurs) f(static_cast<OpKind>(kind));
}

Op state_op(OpKind kind, i32 state) { return {.kind = kind, .state = state}; }

}  // namespace

Scoreboard::Scoreboard(const Placement& placement) : index_(placement), pages_(idx(placement.num_places())) {
  for (std::size_t b = 0; b < kNumBuffers; ++b)
    first_page_[b + 1] = first_page_[b] + index_.size(static_cast<Buffer>(b)) / kOfPage + 1;
}

Scoreboard::Entry& Scoreboard::entry(const Access& access, DeviceId device) {
  std::vector<Entry*>& pages = pages_[idx(device)];
  if (pages.empty()) pages.resize(first_page_.back(), nullptr);
  const std::size_t index = index_(access.key);
  Entry*& page = pages[first_page_[idx(access.buffer())] + index / kOfPage];
  if (page == nullptr) {
    const std::size_t size = std::min(kOfPage, index_.size(access.buffer()));
    page = all_pages_.emplace_back(std::make_unique<Entry[]>(size)).get();
  }
  return page[index % kOfPage];
}

/// A reader takes the place of an earlier one on its lane, so that a list is never longer than there are
/// queues: parameters are read in every microbatch.
void Scoreboard::add_reader(Entry& entry, OpId op, i32 lane) {
  Reader* reader = &entry.reader;
  while (reader->op >= 0 && reader->lane != lane && reader->next >= 0) reader = &pool_[idx(reader->next)];
  if (reader->op < 0 || reader->lane == lane) {
    reader->op = op;
    reader->lane = static_cast<std::int16_t>(lane);
    return;
  }
  if (free_ < 0) {
    free_ = static_cast<i32>(pool_.size());
    pool_.emplace_back();
  }
  Reader& added = pool_[idx(free_)];
  const i32 next_free = added.next;
  added = {.op = op, .next = entry.reader.next, .lane = static_cast<std::int16_t>(lane)};
  entry.reader.next = std::exchange(free_, next_free);
}

bool Scoreboard::visit(Entry& entry, const Access& access, OpId op, i32 lane, const OpId* known,
                       std::vector<OpId>& before) {
  const auto wait_for = [&](OpId other, i32 its_lane) {
    if (other > known[its_lane] && other != op) before.push_back(other);
  };
  const OpId writer = entry.writer();
  if (writer >= 0) wait_for(writer, entry.reader.lane_of_writer);
  const bool is_there = (writer >= 0 && !entry.taken()) || outlives_step(access.buffer());
  if (access.mode == Mode::kRead) {
    add_reader(entry, op, lane);
    return is_there;
  }
  if (entry.reader.op >= 0) wait_for(entry.reader.op, entry.reader.lane);
  for (i32 reader = entry.reader.next; reader >= 0;) {
    Reader& r = pool_[idx(reader)];
    wait_for(r.op, r.lane);
    const i32 next = std::exchange(r.next, free_);
    free_ = std::exchange(reader, next);
  }
  const bool takes = access.mode == Mode::kTake;
  entry.write(op, lane, takes);
  return !takes || is_there;  // gradients and counts begin as zeros: adding needs no earlier writer
}

void Scoreboard::begin_next_step() {
  for (std::vector<Entry*>& pages : pages_) {
    for (std::size_t b = 0; b < kNumBuffers && !pages.empty(); ++b) {
      if (!spans_steps(static_cast<Buffer>(b)))
        std::fill(pages.data() + first_page_[b], pages.data() + first_page_[b + 1], nullptr);
    }
  }
}

ScheduleBuilder::ScheduleBuilder(const Placement& placement, std::vector<bool> listed)
    : placement_(placement), listed_(std::move(listed)), scoreboard_(placement), residency_(placement) {
  HM_CHECK(listed_.empty() || placement.num_hosts() == 0, "hosts are not folded");
  i32 num_listed = 0;
  for (i32 g = 0; g < placement_.num_groups(); ++g) num_listed += lists_group(g) ? 1 : 0;
  groups_pending_.assign(placement_.states().size(), num_listed);
  schedule_.num_devices = placement_.num_devices();
  schedule_.num_hosts = placement_.num_hosts();
  schedule_.states = placement_.states().all();
  last_on_lane_.assign(idx(schedule_.num_places()) * kLanesOfPlace, kNone);
  for (i32 set = 0; set < placement_.balance_sets().size(); ++set) {
    routes_pending_.push_back(static_cast<i64>(placement_.balance_sets()[set].size()));
  }
}

bool ScheduleBuilder::lists_group(i32 group) const {
  const std::vector<DeviceId>& devices = placement_.plan().groups[static_cast<std::size_t>(group)].devices;
  return std::any_of(devices.begin(), devices.end(), [&](DeviceId d) { return lists(d); });
}

void ScheduleBuilder::append(const Op& op, std::span<const DeviceId> devices) {
  const auto id = static_cast<OpId>(schedule_.ops.size());
  const Queue queue = queue_of_op(op, placement_.plan().queue_binding);
  deps_.clear();
  for (const DeviceId device : devices) {
    const LaneId lane = lane_of(op, device, queue);
    Numbers& numbers = device < schedule_.num_devices ? device_lanes_ : host_lanes_;
    const i32 number = numbers.of(lane);
    const std::span<OpId> clock = begin_clock(lane, numbers.count);
    visit_buffers(id, op, device, number, clock.data());
    add_dependencies(device, numbers, clock);
    clock[idx(number)] = id;
    schedule_.lanes.push_back(lane);
  }
  std::sort(deps_.begin(), deps_.end());
  deps_.erase(std::unique(deps_.begin(), deps_.end()), deps_.end());
  schedule_.deps.insert(schedule_.deps.end(), deps_.begin(), deps_.end());
  schedule_.dep_begin.push_back(static_cast<i64>(schedule_.deps.size()));
  schedule_.lane_begin.push_back(static_cast<i64>(schedule_.lanes.size()));
  schedule_.ops.push_back(op);
}

/// Leaves in before_ what the op must wait for on this device, less what the clock of its lane implies.
void ScheduleBuilder::visit_buffers(OpId id, const Op& op, DeviceId device, i32 lane, const OpId* clock) {
  accesses_.clear();
  before_.clear();
  accesses(op, device, placement_, accesses_);
  // All are looked up before the first is read: memory is waited for once.
  entries_.clear();
  for (const Access& access : accesses_) entries_.push_back(&scoreboard_.entry(access, device));
  for (std::size_t i = 0; i < accesses_.size(); ++i) {
    const Access& access = accesses_[i];
    if (!scoreboard_.visit(*entries_[i], access, id, lane, clock, before_) &&
        faults_.size() < kMaxOverwrites) {
      faults_.push_back(fmt::format("{} on device {} reads {}, which no earlier op writes", to_string(op),
                                    device, to_string(access.key)));
    }
  }
}

/// Of the next entry of schedule_.lanes: it starts as the clock of the lane's last op.
std::span<OpId> ScheduleBuilder::begin_clock(LaneId lane, i32 width) {
  const std::size_t entry = clock_begin_.size(), begin = clocks_.size();
  const std::size_t last = std::exchange(last_on_lane_[idx(lane)], entry);
  clock_begin_.push_back(begin);
  clocks_.resize(begin + idx(width), -1);
  const std::span<OpId> clock = clock_of(entry);
  if (last != kNone) std::ranges::copy(clock_of(last), clock.begin());
  return clock;
}

std::span<OpId> ScheduleBuilder::clock_of(std::size_t entry) {
  OpId* const begin = clocks_.data() + clock_begin_[entry];
  OpId* const end =
      clocks_.data() + (entry + 1 < clock_begin_.size() ? clock_begin_[entry + 1] : clocks_.size());
  return {begin, end};
}

/// Keeps the dependencies that neither the lane nor a later dependency implies on this device. Later ops
/// first: only they can imply earlier ones.
void ScheduleBuilder::add_dependencies(DeviceId device, Numbers& numbers, std::span<OpId> clock) {
  std::sort(before_.begin(), before_.end(), std::greater<>());
  before_.erase(std::unique(before_.begin(), before_.end()), before_.end());
  for (const OpId other : before_) {
    const std::size_t entry = entry_of(other, device);
    if (other <= clock[idx(numbers.of(schedule_.lanes[entry]))]) continue;
    deps_.push_back(other);
    const std::span<const OpId> implied = clock_of(entry);
    for (std::size_t i = 0; i < implied.size(); ++i) clock[i] = std::max(clock[i], implied[i]);
  }
}

/// Of the op's lane on this device, in schedule_.lanes.
std::size_t ScheduleBuilder::entry_of(OpId op, DeviceId device) const {
  const std::span<const LaneId> lanes = schedule_.lanes_of(op);
  const auto lane = std::lower_bound(lanes.begin(), lanes.end(), lane_of(device, Queue::kCompute));
  return static_cast<std::size_t>(&*lane - schedule_.lanes.data());
}

void ScheduleBuilder::compute(const Op& op, DeviceId device) {
  if (!lists(device) || !in_step(op, placement_)) return;
  if (!residency_.active()) return append(op, {&device, 1});
  Op placed = op;
  residency_.before(placed, device, visits_);
  append_visits();
  append(placed, {&device, 1});
  residency_.after(placed, device, visits_);
  append_visits();
}

/// What the residency asked for, unless the order lists it.
void ScheduleBuilder::append_visits() {
  for (const Op& visit : visits_) {
    if (!lists_visits_) transfer(visit);
  }
  visits_.clear();
}

void ScheduleBuilder::compute_on_shares(const Op& op, i32 layer) {
  for (const TokenRange range : placement_.ranges(op.group, layer, op.microbatch, op.phase))
    compute(op, range.device);
}

void ScheduleBuilder::transfer(const Op& op) {
  if (!in_step(op, placement_)) return;
  participants_.clear();
  const auto add_listed = [&](const std::vector<DeviceId>& devices) {
    for (const DeviceId d : devices) {
      if (lists(d)) participants_.push_back(d);
    }
  };
  if (row_of(op.kind).participants == Participants::kExchange) {
    add_listed(Exchange(op, placement_).participants());  // most transfers: no copy
  } else {
    add_listed(participants(op, placement_));
  }
  if (!participants_.empty()) append(op, participants_);
}

void ScheduleBuilder::routed(i32 group, i32 microbatch) {
  const i32 set = placement_.balance_sets().of(group, microbatch);
  if (set < 0 || --routes_pending_[static_cast<std::size_t>(set)] > 0) return;
  const MicrobatchRef last = placement_.balance_sets()[set].back();
  transfer({.kind = OpKind::kBalance,
            .group = static_cast<std::int16_t>(last.group),
            .microbatch = last.microbatch});
}

void ScheduleBuilder::state_done(UnitPart part, i32 layer) {
  const auto [first, last] = placement_.states().of(part, layer);
  for (i32 state = first; state < last; ++state) {
    if (--groups_pending_[static_cast<std::size_t>(state)] > 0) continue;
    const State& done = schedule_.states[idx(state)];
    residency_.finish(state, visits_);
    append_visits();
    if (done.reduced() && !done.gathered())
      transfer(state_op(done.sharded ? OpKind::kReduceScatter : OpKind::kReduce, state));
    if (placement_.states().lags(state)) {  // its last fetch is appended
      compute_on_homes(OpKind::kPublish, state);
      lagging_.push_back(state);
    }
    if (!done.visits()) {
      for (const Op& store : stores_once(placement_, state)) transfer(store);
    }
  }
}

Schedule ScheduleBuilder::finish() {
  if (placement_.options().backward) {
    for (const i32 pending : groups_pending_) {
      HM_CHECK(pending == 0, "an order policy left gradients open");
    }
    // Behind all that is published: the next step waits for that, and gradients come late.
    for (const i32 state : lagging_) compute_on_homes(OpKind::kTake, state);
    for_kinds(Occurs::kPerStep, [&](OpKind kind) { transfer({.kind = kind}); });
    for_kinds(Occurs::kPerState, [&](OpKind kind) { compute_on_states(kind); });
    for_kinds(Occurs::kAfterUpdate, [&](OpKind kind) { transfer_sharded_states(kind); });
    fetch_updated();
  }
  return take();
}

void ScheduleBuilder::compute_on_states(OpKind kind) {
  for (std::size_t s = 0; s < schedule_.states.size(); ++s) compute_on_homes(kind, static_cast<i32>(s));
}

void ScheduleBuilder::compute_on_homes(OpKind kind, i32 state) {
  for (const PlaceId place : placement_.states()[idx(state)].updaters())
    compute(state_op(kind, state), place);
}

void ScheduleBuilder::append_again(const Schedule& step) {
  scoreboard_.begin_next_step();
  std::vector<DeviceId> places;
  for (OpId op = 0; op < step.num_ops(); ++op) {
    places.clear();
    for (const LaneId lane : step.lanes_of(op)) places.push_back(device_of(lane));
    append(step.ops[idx(op)], places);
  }
}

void add_carry(Schedule& schedule, const Placement& placement) {
  ScheduleBuilder twice(placement);
  twice.append_again(schedule);
  twice.append_again(schedule);
  const OpId first = schedule.num_ops();  // of the second step
  schedule.carry_begin = {0};
  for (OpId op = 0; op < first; ++op) {
    const std::span<const OpId> deps = twice.schedule().deps_of(first + op);
    const auto own = std::lower_bound(deps.begin(), deps.end(), first);
    HM_CHECK(static_cast<std::size_t>(deps.end() - own) == schedule.deps_of(op).size(),
             "{} waits for other ops of its step when a step comes before", to_string(schedule.ops[idx(op)]));
    schedule.carry.insert(schedule.carry.end(), deps.begin(), own);
    schedule.carry_begin.push_back(static_cast<i64>(schedule.carry.size()));
  }
}

void ScheduleBuilder::transfer_sharded_states(OpKind kind) {
  for (std::size_t s = 0; s < schedule_.states.size(); ++s) {
    if (schedule_.states[s].gathered_after_update()) transfer(state_op(kind, static_cast<i32>(s)));
  }
}

/// Weights that stay on devices while their optimizer is on the host come back when they are updated.
void ScheduleBuilder::fetch_updated() {
  for (std::size_t s = 0; s < schedule_.states.size(); ++s) {
    for (const Op& fetch : fetches_once(placement_, static_cast<i32>(s))) transfer(fetch);
  }
}

/// A load-balancing group spans microbatches of which one is through before the next begins.
void ScheduleBuilder::refuse_balance_group() const {
  const Plan& plan = placement_.plan();
  const i64 group = placement_.options().aux_group;
  const std::vector<i64>& microbatches = plan.groups[0].microbatches;
  fail<ScheduleError>("train.aux_group",
                      "got {}: the load-balancing loss of {} needs microbatches that plan \"{}\" does not "
                      "have in flight together ({}). Set train.aux_group to 1 or more, at most {} (sequences "
                      "of a microbatch), or plan.window to {} (all microbatches)",
                      group, group == 0 ? "the whole step" : counted(group, "sequence"), plan.strategy,
                      plan.window == 0 ? "its order" : fmt::format("plan.window {}", plan.window),
                      *std::min_element(microbatches.begin(), microbatches.end()), microbatches.size());
}

Schedule ScheduleBuilder::take() {
  if (!faults_.empty()) {
    const std::string text = fmt::format("{}", fmt::join(faults_, "\n  "));
    if (text.find("reads " + std::string(name_of(Buffer::kBalance))) != text.npos) refuse_balance_group();
    fail<ScheduleError>(
        "schedule",
        "the order of plan \"{}\" breaks dependencies:\n  {}\nOther numbers of microbatches or "
        "devices may have one that works.",
        placement_.plan().strategy, text.c_str());
  }
  return std::move(schedule_);
}

}  // namespace hetermoe
