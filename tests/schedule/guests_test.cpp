#include <gtest/gtest.h>

#include "hetermoe/base/index.h"
#include "hetermoe/ops/buffers.h"
#include "hetermoe/schedule/builder.h"
#include "hetermoe/schedule/lifetimes.h"
#include "tests/support/guest_plan.h"
#include "tests/support/op_count.h"

// The ops `lend` and `settle`: where they are, what they touch, and what refuses them.
namespace hetermoe::testing {
namespace {

struct GuestsCase {
  ModelConfig model = tiny_mixtral();
  Cluster cluster = make_cluster(5);
  Plan plan;
  explicit GuestsCase(const std::string& strategy = "ep", i32 microbatches = 2) {
    StrategyRequest request = small_step();
    request.sequences = 2 * microbatches;
    request.microbatches = microbatches;
    plan = find_strategy(strategy).make(model, cluster, request);
    use_guests(plan, model);
  }
};

TEST(Guests, AreLentTwiceAndSettledOncePerLayerAndMicrobatch) {
  for (const char* strategy : {"ep", "zebra", "dist-ep"}) {
    for (const i32 chunks : {1, 3}) {
      for (const QueueBinding binding :
           {QueueBinding::kDirection, QueueBinding::kName, QueueBinding::kPhase}) {
        GuestsCase c(strategy);
        c.plan.chunks = chunks;
        c.plan.queue_binding = binding;
        const Schedule schedule = build_schedule(c.plan, c.model);
        EXPECT_EQ(count(schedule, OpKind::kLend), 2 * 2 * 2);
        EXPECT_EQ(count(schedule, OpKind::kSettle), 2 * 2);
        EXPECT_EQ(count(schedule, OpKind::kTally), 2 * 2);
        EXPECT_TRUE(validate(schedule, c.plan, c.model).empty()) << validate(schedule, c.plan, c.model)[0];
        c.plan.tally = false;  // counts that are foreseen
        const Schedule foreseen = build_schedule(c.plan, c.model);
        EXPECT_EQ(schedule.num_ops() - foreseen.num_ops(), 2 * 2);
        EXPECT_TRUE(validate(foreseen, c.plan, c.model).empty());
        c.plan.guest_slots = 0;
        EXPECT_EQ(foreseen.num_ops() - build_schedule(c.plan, c.model).num_ops(), 3 * 2 * 2);
      }
    }
  }
}

TEST(Guests, AreRefusedWithResendOtherDevicesForBackwardAndExpertsOnHosts) {
  GuestsCase c;
  EXPECT_TRUE(validate(c.plan, c.model, c.cluster).empty());
  c.plan.recompute = Recompute::kResend;
  EXPECT_EQ(validate(c.plan, c.model, c.cluster).at(0),
            "[groups[0].layers[0].recompute] is resend, which no plan with guests may have. Use local");
  c.plan.recompute = Recompute::kLocal;
  Shares other = c.plan.groups[0].layers[1].attention;
  for (ShareRow& row : other) std::reverse(row.begin(), row.end());
  c.plan.groups[0].layers[1].attention_backward = other;
  EXPECT_EQ(
      validate(c.plan, c.model, c.cluster).at(0),
      "[groups[0].layers[1].attention_backward] differs from attention, which no plan with guests may have");
  c.plan.groups[0].layers[1].attention_backward = {};
  c.plan.groups[0].layers[0].experts_home = Home{.weights = Residence::kHost, .optimizer = Residence::kHost};
  EXPECT_EQ(validate(c.plan, c.model, c.cluster).at(0),
            "[groups[0].layers[0].experts_home] is not the device, which no plan with guests may have");
}

TEST(Guests, GoThroughJson) {
  GuestsCase c;
  c.plan.guest_cost = {1, 2, 3, 4, 5};
  c.plan.guest_depth = 3;
  const Plan back = plan_from_json(to_json(c.plan), "plan");
  EXPECT_EQ(back.guest_slots, 2);
  EXPECT_EQ(back.guest_depth, 3);
  EXPECT_EQ(back.guest_cost, c.plan.guest_cost);
  c.plan.guest_slots = 0;
  EXPECT_FALSE(to_json(c.plan).contains("guest_slots"));  // plans without guests keep their text
}

TEST(Guests, GoThroughTheTextOfASchedule) {
  for (const char* strategy : {"ep", "zebra"}) {
    GuestsCase c(strategy);
    const Schedule schedule = build_schedule(c.plan, c.model);
    Plan listed = c.plan;
    listed.order = OrderPolicy::kExplicit;
    listed.explicit_order = to_text(schedule);
    EXPECT_NE(listed.explicit_order.find("device 1 guests: "), std::string::npos);
    EXPECT_EQ(hash(build_schedule(listed, c.model)), hash(schedule));
  }
}

/// What an op of layer 0 touches on a device, in words.
std::vector<std::string> touched(const Placement& p, OpKind kind, Phase phase, DeviceId device) {
  static const std::vector<std::string> modes = {"read", "write", "add", "take"};
  const Op op = {.kind = kind, .phase = phase, .layer = 0, .microbatch = 0};
  std::vector<Access> all;
  accesses(op, device, p, all);
  std::vector<std::string> out;
  for (const Access& access : all) out.push_back(modes[idx(access.mode)] + " " + name_of(access.buffer()));
  return out;
}

// Claim (Guests.Touch*, Guests.AreThereForAsManyExchangesAsThereAreTurns): a row of the access table of
// `lend` and `settle` that is dropped is noticed; that of the turn by the guests that are there at once
TEST(Guests, TouchTallyWeightsTheirTurnAndTheirGradients) {
  GuestsCase c("zebra");
  c.plan.weight_gradients = WeightGradients::kWith;
  using Words = std::vector<std::string>;
  {
    const Placement p(c.plan, c.model, {});
    const DeviceId source = c.plan.groups[0].layers[0].attention[0][0].device, owner = p.owners(0, 0)[0];
    const std::size_t states = p.states().on(owner, UnitPart::kExperts, 0).size();
    ASSERT_EQ(states, 1U);
    EXPECT_EQ(touched(p, OpKind::kTally, Phase::kForward, source), (Words{"read routing", "write tally"}));
    EXPECT_EQ(touched(p, OpKind::kTally, Phase::kForward, owner), (Words{"write tally"}));
    EXPECT_EQ(touched(p, OpKind::kLend, Phase::kForward, owner),
              (Words{"read tally", "read params", "write guest", "write guest_turn"}));
    EXPECT_EQ(touched(p, OpKind::kLend, Phase::kBackward, owner),
              (Words{"read tally", "read params", "write guest", "write guest_turn"}));
    EXPECT_EQ(touched(p, OpKind::kDispatch, Phase::kForward, source),
              (Words{"write load", "read tally", "read send", "read routing"}));
    EXPECT_EQ(touched(p, OpKind::kDispatch, Phase::kForward, owner),
              (Words{"write load", "read tally", "write rows"}));
    EXPECT_EQ(touched(p, OpKind::kExperts, Phase::kForward, owner),
              (Words{"read params", "read guest", "read guest_turn", "read load", "read rows", "write out"}));
    EXPECT_EQ(touched(p, OpKind::kExperts, Phase::kBackward, owner),
              (Words{"read params", "read guest", "read guest_turn", "read load", "read rows", "read d_out",
                     "write d_rows", "add grad", "add guest_grad"}));
    EXPECT_EQ(touched(p, OpKind::kSettle, Phase::kBackward, owner),
              (Words{"read tally", "take guest_grad", "add grad"}));
  }
  c.plan.tally = false;
  c.plan.weight_gradients = WeightGradients::kAfter;
  const Placement p(c.plan, c.model, {});
  const DeviceId owner = p.owners(0, 0)[0];
  EXPECT_EQ(touched(p, OpKind::kLend, Phase::kForward, owner),
            (Words{"read params", "write guest", "write guest_turn"}));
  EXPECT_EQ(touched(p, OpKind::kExperts, Phase::kWeights, owner),
            (Words{"read rows", "read d_out", "read left_experts", "read guest", "read guest_turn",
                   "add grad", "add guest_grad"}));
  EXPECT_EQ(touched(p, OpKind::kSettle, Phase::kBackward, owner), (Words{"take guest_grad", "add grad"}));
}

/// Guests of one device that are there at once at most, when lends come as early as dependencies and lanes
/// let them.
i64 most_at_once(const Plan& plan, const ModelConfig& model) {
  const Placement placement(plan, model, {});
  const Schedule schedule = build_schedule(placement);
  // Everything but lends takes a second; these none, so that they begin when they may.
  std::vector<double> start(schedule.ops.size(), 0), end(schedule.ops.size(), 0);
  std::vector<double> lane_end(idx(schedule.num_places()) * kLanesOfPlace, 0);
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    for (const OpId dep : schedule.deps_of(op)) start[idx(op)] = std::max(start[idx(op)], end[idx(dep)]);
    for (const LaneId lane : schedule.lanes_of(op))
      start[idx(op)] = std::max(start[idx(op)], lane_end[idx(lane)]);
    end[idx(op)] = start[idx(op)] + (schedule.ops[idx(op)].kind == OpKind::kLend ? 0.001 : 1);
    for (const LaneId lane : schedule.lanes_of(op)) lane_end[idx(lane)] = end[idx(op)];
  }
  const Lifetimes lifetimes = make_lifetimes(schedule, placement);
  std::vector<double> gone(lifetimes.epochs.size(), 0);
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    for (std::size_t i = 0; i < schedule.lanes_of(op).size(); ++i) {
      for (const i32 epoch : lifetimes.uses_of(schedule, op, i))
        gone[idx(epoch)] = std::max(gone[idx(epoch)], end[idx(op)]);
    }
  }
  i64 most = 0;
  for (std::size_t a = 0; a < lifetimes.epochs.size(); ++a) {
    if (lifetimes.epochs[a].key.buffer() != Buffer::kGuest) continue;
    i64 count = 0;
    const double now = start[idx(lifetimes.epochs[a].first)];
    for (std::size_t b = 0; b < lifetimes.epochs.size(); ++b) {
      const Epoch& other = lifetimes.epochs[b];
      count += other.key.buffer() == Buffer::kGuest && other.device == lifetimes.epochs[a].device &&
               start[idx(other.first)] <= now && now < gone[b];
    }
    most = std::max(most, count);
  }
  return most;
}

/// The turn is a token without bytes: what it keeps is the memory of lends that could come ahead.
TEST(Guests, AreThereForAsManyExchangesAsThereAreTurns) {
  GuestsCase c("zebra", 4);
  c.plan.tally = false;  // nothing else holds a lend back
  for (const i64 depth : {1, 2, 3}) {
    c.plan.guest_depth = depth;
    EXPECT_EQ(most_at_once(c.plan, c.model), depth);
  }
}

/// Experts of a window come after all its attention parts: several lends before the first reader.
TEST(Guests, OfAWholeWindowAreLentBeforeTheFirstIsRead) {
  GuestsCase c("ep", 3);
  c.plan.window = 0;
  c.plan.guest_depth = 1;
  const Schedule schedule = build_schedule(c.plan, c.model);
  EXPECT_TRUE(validate(schedule, c.plan, c.model).empty());
  i64 lends = 0, most = 0;
  for (const Op& op : schedule.ops) {
    if (op.kind == OpKind::kLend) most = std::max(most, ++lends);
    if (op.kind == OpKind::kExperts) lends = 0;
  }
  EXPECT_EQ(most, 3);
}

}  // namespace
}  // namespace hetermoe::testing
