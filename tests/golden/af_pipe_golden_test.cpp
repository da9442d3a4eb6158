#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include "hetermoe/planner/strategies/strategies.h"
#include "tests/golden/constant_cost.h"
#include "tests/schedule/plans.h"

// AF-Pipe (arXiv 2605.11005) with one device in each group: the order `timed`. The expected figures were
// worked out by a script of its own from the description of the order and of the lanes below.
namespace hetermoe {
namespace {

struct AfPipe {
  i32 groups;
  i64 layers, microbatches;
  i32 window = 0;
  double attention = 1, experts = 1, head = 1, transfer = 0.25;
  HeadOn head_on = HeadOn::kExperts;
  CombineTo combine_to = CombineTo::kSource;
  double move() const { return transfer / 2; }
};
constexpr double kBackward = 2;

struct Made {
  ModelConfig model;
  Cluster cluster;
  Plan plan;
};

Made make(const AfPipe& p) {
  Made made{test::make_model({.num_layers = p.layers, .num_experts = 1, .top_k = 1}),
            test::make_cluster({2 * p.groups}),
            {}};
  StrategyRequest request;
  request.seq_len = 8;
  request.sequences = request.microbatches = p.microbatches;
  request.depth_groups = {p.groups};
  request.head_on = p.head_on;
  request.window = p.window;
  for (DeviceId d = 0; d < 2 * p.groups; ++d)
    (d < p.groups ? request.attention : request.experts).push_back(d);
  made.plan = find_strategy("af-pipe").make(made.model, made.cluster, request);
  made.plan.recompute = Recompute::kOff;
  made.plan.combine_to = p.combine_to;
  made.plan.expected = ExpectedTimes{{p.attention}, {p.experts}, p.transfer, p.head, kBackward};
  EXPECT_TRUE(test::no_faults(validate(made.plan, made.model, made.cluster)));
  return made;
}

/// A part of a microbatch: k counts the parts of the forward pass, attention even, experts odd, the head
/// last.
struct Part {
  bool forward;
  i64 k;
  i32 microbatch;
  bool operator==(const Part&) const = default;
};

std::vector<Part> parts_of(const Schedule& schedule, i64 layers) {
  std::vector<Part> parts;
  for (const Op& op : schedule.ops) {
    const bool forward = op.phase == Phase::kForward;
    if (op.kind == OpKind::kAttention) parts.push_back({forward, 2 * op.layer, op.microbatch});
    if (op.kind == OpKind::kExperts) parts.push_back({forward, 2 * op.layer + 1, op.microbatch});
    if (op.kind == OpKind::kHead) parts.push_back({true, 2 * layers, op.microbatch});
  }
  return parts;
}

std::vector<Part> order_of(const AfPipe& p) {
  const Made made = make(p);
  const Schedule schedule = build_schedule(made.plan, made.model);
  EXPECT_TRUE(test::no_faults(validate(schedule, made.plan, made.model)));
  return parts_of(schedule, p.layers);
}

/// Pure durations: one compute lane for each station, and at each device one lane for what goes to experts,
/// one for what comes from them, one for moves. A transfer of a device to itself takes as long as any.
class LaneModel {
 public:
  /// brings_routing: results of experts wait for the residual rows of their microbatch, which bring the
  /// routing.
  LaneModel(const AfPipe& p, CombineTo combine_to, bool brings_routing = false)
      : p_(p), next_(combine_to == CombineTo::kNext), brings_routing_(brings_routing) {}

  Seconds step(const std::vector<Part>& order) {
    for (const Part& part : order) append(part);
    return end_;
  }

 private:
  enum Lane { kCompute, kToExperts, kToAttention, kMoves };
  i64 attention(i64 layer) const { return layer % p_.groups; }
  i64 experts(i64 layer) const { return p_.groups + layer % p_.groups; }
  i64 head() const { return p_.head_on == HeadOn::kExperts ? experts(p_.layers - 1) : attention(p_.layers); }
  /// The station of the input of layer `l`, the head's for the last one.
  i64 inputs(i64 layer) const { return layer == p_.layers ? head() : attention(layer); }

  Seconds run(Lane lane, i64 a, i64 b, Seconds ready, Seconds length) {
    Seconds begin = ready;
    for (const i64 device : {a, b}) begin = std::max(begin, lanes_[{lane, device}]);
    for (const i64 device : {a, b}) lanes_[{lane, device}] = begin + length;
    return begin + length;
  }

  void append(const Part& part) {
    const bool is_head = part.k == 2 * p_.layers;
    const i64 layer = part.k / 2;
    const bool odd = part.k % 2 == 1;
    const i64 at = is_head ? head() : odd ? experts(layer) : attention(layer);
    const Seconds forward = is_head ? p_.head : odd ? p_.experts : p_.attention;
    const Seconds end = run(kCompute, at, at, ready_[{part.forward, part.k, part.microbatch}],
                            part.forward ? forward : kBackward * forward);
    end_ = std::max(end_, end);
    if (part.forward && !is_head)
      odd ? from_experts(part, layer, end) : to_experts(part, layer, end);
    else if (odd)
      arrive(false, part.k - 1, part, run(kToAttention, experts(layer), attention(layer), end, p_.transfer));
    else if (is_head || layer > 0)
      gradient(part, is_head ? p_.layers - 1 : layer - 1, at, end);
  }

  void arrive(bool forward, i64 k, const Part& part, Seconds when) {
    Seconds& ready = ready_[{forward, k, part.microbatch}];
    ready = std::max(ready, when);
  }
  void to_experts(const Part& part, i64 layer, Seconds end) {
    arrive(true, part.k + 1, part, run(kToExperts, attention(layer), experts(layer), end, p_.transfer));
    if (!next_ || inputs(layer + 1) == attention(layer)) return;
    const Seconds moved = run(kMoves, attention(layer), inputs(layer + 1), end, p_.move());
    arrive(true, part.k + 2, part, moved);
    if (brings_routing_) routed_[{layer, part.microbatch}] = moved;
  }
  void from_experts(const Part& part, i64 layer, Seconds end) {
    const i64 to = inputs(layer + 1);
    const Seconds ready = std::max(end, routed_[{layer, part.microbatch}]);
    Seconds when = run(kToAttention, experts(layer), next_ ? to : attention(layer), ready, p_.transfer);
    if (!next_ && to != attention(layer)) when = run(kMoves, attention(layer), to, when, p_.move());
    arrive(true, part.k + 1, part, when);
  }
  /// Of the output of `layer`, from where it was made.
  void gradient(const Part& part, i64 layer, i64 from, Seconds end) {
    Seconds sent = end;
    if (from != attention(layer)) {
      const Seconds moved = run(kMoves, from, attention(layer), end, p_.move());
      if (next_)
        arrive(false, 2 * layer, part, moved);
      else
        sent = moved;
    }
    const i64 source = next_ ? from : attention(layer);
    arrive(false, 2 * layer + 1, part, run(kToExperts, source, experts(layer), sent, p_.transfer));
  }

  AfPipe p_;
  bool next_, brings_routing_;
  std::map<std::pair<i64, i32>, Seconds> routed_;
  std::map<std::pair<Lane, i64>, Seconds> lanes_;
  std::map<std::tuple<bool, i64, i32>, Seconds> ready_;
  Seconds end_ = 0;
};

struct G1Row {
  i32 groups;
  i64 layers, microbatches;
  std::vector<std::pair<double, double>> next_and_source;  // at transfer 0.25, 0.5, 1
};

// Claim (AfPipeGolden.*): order `timed` gives the steps of a model of lanes, whose figures an independent
// script made; it is within 10 % of the best of all orders on small instances
TEST(AfPipeGolden, StepsOfTheLaneModel) {
  const std::vector<G1Row> rows = {
      {1, 2, 2, {{18.5, 18.5}, {20, 20}, {23, 24}}},
      {1, 4, 8, {{107.5, 107.5}, {108, 108}, {109, 110}}},
      {2, 4, 4, {{40.5, 41.25}, {44, 46.5}, {51, 56}}},
      {2, 5, 7, {{73.5, 73.5}, {74, 74}, {77, 82}}},
      {2, 8, 8, {{114.5, 114.75}, {116, 117}, {119, 136}}},
      {2, 8, 16, {{218.5, 218.75}, {220, 221}, {223, 244}}},
      {4, 16, 32, {{440.5, 441.25}, {444, 451.5}, {545.5, 598}}},
      {3, 7, 10, {{103.5, 103.5}, {104, 104}, {111, 125}}},
  };
  for (const G1Row& row : rows) {
    for (std::size_t i = 0; i < 3; ++i) {
      const AfPipe p{row.groups, row.layers, row.microbatches, 0, 1, 1, 1, std::array{0.25, 0.5, 1.0}[i]};
      const std::vector<Part> order = order_of(p);
      EXPECT_EQ(LaneModel(p, CombineTo::kNext).step(order), row.next_and_source[i].first) << row.groups << i;
      EXPECT_EQ(LaneModel(p, CombineTo::kSource).step(order), row.next_and_source[i].second)
          << row.groups << i;
    }
  }
}

TEST(AfPipeGolden, HeadOnEitherRoleAndWindows) {
  const auto step = [](i32 groups, i64 layers, i64 microbatches, i32 window, HeadOn head_on) {
    const AfPipe p{groups, layers, microbatches, window, 1.5, 1, 2, 0.5, head_on};
    return LaneModel(p, CombineTo::kNext).step(order_of(p));
  };
  using Steps = std::pair<Seconds, Seconds>;
  const auto both = [&](i32 groups, i64 layers, i64 microbatches, i32 window) {
    return Steps{step(groups, layers, microbatches, window, HeadOn::kExperts),
                 step(groups, layers, microbatches, window, HeadOn::kAttention)};
  };
  EXPECT_EQ(both(2, 8, 8, 0), Steps(163.5, 160));
  EXPECT_EQ(both(2, 8, 8, 4), Steps(186, 173.5));
  EXPECT_EQ(both(2, 8, 16, 8), Steps(327, 320));
  EXPECT_EQ(both(2, 5, 7, 0), Steps(105, 94.5));
  EXPECT_EQ(both(1, 4, 8, 0), Steps(153, 160));
}

/// The engine's step, with times of the lane model.
Seconds simulated(AfPipe p, CombineTo combine_to) {
  p.combine_to = combine_to;
  const Made made = make(p);
  test::ConstantCost cost;
  cost.attention = p.attention, cost.experts = p.experts;
  cost.tail = p.head / (1 + kBackward);
  cost.transfer_time = p.transfer, cost.move_time = p.move();
  cost.backward = kBackward;
  cost.first_expert_device = p.groups;
  return test::simulate(made.plan, made.model, made.cluster, cost).times.step;
}

/// Where results go to the next layer no merge holds a lane: the engine's steps are those of the lane model.
/// Results wait for the routing that comes with the residual rows. That costs something only where moves
/// queue: with a transfer of 1 in 3 and 4 groups.
TEST(AfPipeGolden, SimulatedStepsWhereResultsGoToTheNextLayer) {
  const HeadOn on_attention = HeadOn::kAttention;
  const std::vector<std::pair<AfPipe, Seconds>> rows = {
      {{1, 2, 2, 0, 1, 1, 1, 0.25}, 18.5},   {{1, 2, 2, 0, 1, 1, 1, 1}, 23},
      {{1, 4, 8, 0, 1, 1, 1, 0.5}, 108},     {{2, 4, 4, 0, 1, 1, 1, 0.25}, 40.5},
      {{2, 4, 4, 0, 1, 1, 1, 0.5}, 44},      {{2, 4, 4, 0, 1, 1, 1, 1}, 51},
      {{2, 5, 7, 0, 1, 1, 1, 1}, 77},        {{2, 8, 8, 0, 1, 1, 1, 0.25}, 114.5},
      {{2, 8, 8, 0, 1, 1, 1, 1}, 119},       {{2, 8, 16, 0, 1, 1, 1, 1}, 223},
      {{4, 16, 32, 0, 1, 1, 1, 0.5}, 444},   {{3, 7, 10, 0, 1, 1, 1, 0.5}, 104},
      {{2, 8, 8, 0, 1.5, 1, 2, 0.5}, 163.5}, {{2, 8, 8, 0, 1.5, 1, 2, 0.5, on_attention}, 160},
      {{2, 8, 8, 4, 1.5, 1, 2, 0.5}, 186},   {{2, 5, 7, 0, 1.5, 1, 2, 0.5, on_attention}, 94.5},
      {{2, 8, 16, 8, 1.5, 1, 2, 0.5}, 327},  {{4, 16, 32, 0, 1, 1, 1, 1}, 546.5},
      {{3, 7, 10, 0, 1, 1, 1, 1}, 112},
  };
  for (const auto& [p, next] : rows) {
    const Seconds step = simulated(p, CombineTo::kNext);
    EXPECT_NEAR(step, next, 1e-9) << p.groups << " " << p.layers << " " << p.transfer;
    EXPECT_NEAR(step, LaneModel(p, CombineTo::kNext, true).step(order_of(p)), 1e-9);
    EXPECT_GE(simulated(p, CombineTo::kSource), step - 1e-9);
  }
}

/// With one group and the head on its attention device nothing moves or merges apart: the simulator's lanes
/// are those of the model.
TEST(AfPipeGolden, SimulatedStepsWhereNothingMoves) {
  for (const auto& [layers, microbatches, expected] :
       {std::tuple<i64, i64, Seconds>{2, 2, 17}, std::tuple<i64, i64, Seconds>{4, 8, 104}}) {
    const AfPipe p{
        .groups = 1, .layers = layers, .microbatches = microbatches, .head_on = HeadOn::kAttention};
    const Made made = make(p);
    test::ConstantCost cost;
    cost.attention = cost.experts = 1;
    cost.tail = 1 / (1 + kBackward);
    cost.transfer_time = p.transfer;
    cost.backward = kBackward;
    const test::SimulatedPlan simulated = test::simulate(made.plan, made.model, made.cluster, cost);
    EXPECT_EQ(simulated.times.step, expected);
    EXPECT_EQ(LaneModel(p, CombineTo::kSource).step(parts_of(simulated.schedule, layers)), expected);
  }
}

/// All orders of two microbatches of one group, of which the best cannot be much faster.
TEST(AfPipeGolden, IsNearTheBestOfAllOrders) {
  std::mt19937 random(7);
  const auto number = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  double sum = 0, worst = 0;
  int count = 0;
  for (int i = 0; i < 12; ++i) {
    const AfPipe p{.groups = 1,
                   .layers = i < 11 ? 1 : 2,
                   .microbatches = 2,
                   .attention = real(number(1, 4)),
                   .experts = real(number(1, 4)),
                   .head = real(number(1, 4)),
                   .transfer = real(number(0, 2))};
    std::vector<std::pair<bool, i64>> way;
    for (i64 k = 0; k <= 2 * p.layers; ++k) way.emplace_back(true, k);
    for (i64 k = 2 * p.layers - 1; k >= 0; --k) way.emplace_back(false, k);
    Seconds best = std::numeric_limits<Seconds>::infinity();
    std::vector<Part> order;
    std::size_t done[2] = {0, 0};
    const std::function<void()> go_on = [&] {
      if (order.size() == 2 * way.size()) {
        best = std::min(best, LaneModel(p, CombineTo::kNext).step(order));
        return;
      }
      for (i32 m = 0; m < 2; ++m) {
        if (done[m] == way.size()) continue;
        order.push_back({way[done[m]].first, way[done[m]].second, m});
        ++done[m];
        go_on();
        --done[m];
        order.pop_back();
      }
    };
    go_on();
    const double ratio = LaneModel(p, CombineTo::kNext).step(order_of(p)) / best - 1;
    sum += ratio, worst = std::max(worst, ratio), ++count;
  }
  EXPECT_LE(worst, 0.1);
  EXPECT_LE(sum / count, 0.02);
}

/// Any times, windows and numbers, zeros among them: every part follows those that it needs, and the step is
/// no shorter than the busiest station's work or the way of one microbatch.
TEST(AfPipeGolden, OrdersFollowTheWayOfMicrobatches) {
  std::mt19937 random(3);
  const auto number = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  for (int i = 0; i < 100; ++i) {
    AfPipe p{.groups = number(1, 4), .layers = 0, .microbatches = number(1, 6), .window = number(0, 5)};
    p.layers = number(p.groups, 7);
    p.attention = number(0, 3), p.experts = number(0, 3), p.head = number(0, 3),
    p.transfer = 0.5 * number(0, 3);
    p.head_on = number(0, 1) == 0 ? HeadOn::kExperts : HeadOn::kAttention;
    const std::vector<Part> order = order_of(p);
    EXPECT_EQ(order.size(), static_cast<std::size_t>(p.microbatches * (4 * p.layers + 1)));
    std::vector<i64> done(static_cast<std::size_t>(p.microbatches), 0);
    i64 under_way = 0, most = 0;
    for (const Part& part : order) {
      i64& next = done[static_cast<std::size_t>(part.microbatch)];
      EXPECT_EQ(part.forward ? part.k : 4 * p.layers - part.k, next);
      under_way += next == 0 ? 1 : next == 4 * p.layers ? -1 : 0;
      ++next;
      most = std::max(most, under_way);
    }
    EXPECT_LE(most, p.window > 0 ? i64{p.window} : p.microbatches);
    const double way = real(p.layers) * 3 * (p.attention + p.experts) + p.head;
    for (const CombineTo to : {CombineTo::kNext, CombineTo::kSource})
      EXPECT_GE(LaneModel(p, to).step(order), way);
  }
}

/// One after another, whatever is expected.
TEST(AfPipeGolden, WindowOneIsOneMicrobatchAfterAnother) {
  Made made = make({.groups = 2, .layers = 5, .microbatches = 3, .window = 1});
  test::ConstantCost cost;
  cost.attention = 1, cost.experts = 2, cost.transfer_time = 0.5, cost.move_time = 0.25, cost.tail = 1;
  cost.first_expert_device = 2;
  const Seconds timed = test::simulate(made.plan, made.model, made.cluster, cost).times.step;
  made.plan.order = OrderPolicy::kLayerMajor;
  made.plan.expected.reset();
  EXPECT_EQ(timed, test::simulate(made.plan, made.model, made.cluster, cost).times.step);
}

}  // namespace
}  // namespace hetermoe
