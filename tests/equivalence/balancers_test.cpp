#include "hetermoe/balance/balancers.h"

#include <gtest/gtest.h>

#include <numeric>

#include "hetermoe/balance/sequence_order.h"
#include "hetermoe/balance/trace_balance.h"
#include "hetermoe/train/run/route_probe.h"
#include "hetermoe/train/session/batch.h"
#include "tests/equivalence/ran_step.h"
#include "tests/support/case_count.h"
#include "tests/support/strategy_plans.h"

// Whoever owns experts, divides copies and orders sequences: loss and all gradients are those of one device.
namespace hetermoe::testing {
namespace {

const StepOptions kStep = {true, 1, true};

/// All that a user may name: the rows of the table, what has none, and every way to divide copies.
std::vector<std::string> all_balancers() {
  std::vector<std::string> out = {"none", "oracle"};
  for (const Balancer& balancer : balancers()) out.push_back(balancer.name);
  for (const std::string& split : EnumNames<CopySplit>::names()) out.push_back("none+" + split);
  return out;
}

struct BalancedCase {
  ModelConfig model = tiny_mixtral();
  Cluster cluster = {};
  Plan plan = {};  ///< with the strategy's own owners
  std::string balancer = {};
  Knows knows = Knows::kHistory;
};

/// What was seen over all cases, so that a loop over nothing is noticed.
struct Seen {
  i64 balancers = 0, runs = 0, moved = 0, copies = 0, guests = 0, ordered = 0;
};

TraceBalanceOptions options_of(const BalancedCase& c) {
  i64 replicas = 1;  // a row on the owners of every group
  for (const Group& group : c.plan.groups) {
    std::set<DeviceId> owners;
    for (const ExpertOwners& of_expert : group.layers[0].experts) owners.insert(of_expert[0].device);
    replicas = std::lcm(replicas, static_cast<i64>(owners.size()));
  }
  return {
      .balancer = c.balancer, .knows = c.knows, .replicas = replicas, .topology = "ring", .groups = "device"};
}

void count_owners(const BalancedCase& c, const Plan& plan, Seen& seen) {
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    for (std::size_t l = 0; l < plan.groups[g].layers.size(); ++l) {
      const LayerOwners &before = c.plan.groups[g].layers[l].experts, &now = plan.groups[g].layers[l].experts;
      for (std::size_t e = 0; e < now.size(); ++e) {
        seen.copies += static_cast<i64>(now[e].size()) - 1;
        seen.moved += now[e][0].device != before[e][0].device ? 1 : 0;
      }
    }
  }
}

/// Owners by the step before, whose choices are others; or by the step itself, which replays them.
void expect_reference(const BalancedCase& c, Seen& seen) {
  const bool foresees = c.knows == Knows::kForesight;
  const std::vector<at::Tensor> known = random_choices(c.plan, c.model, 5);
  const TraceRouting step = routing_of_choices(known, c.model, "made");
  std::vector<std::vector<double>> loads;
  for (const i64 layer : layers_with_experts(c.model))
    loads.push_back(copies_of_choices(known, c.model.num_experts)[static_cast<std::size_t>(layer)]);
  const TraceBalance balance(c.model, c.cluster, c.plan, kStep, {});
  const TraceBalanceOptions options = options_of(c);
  Plan plan = balance.placed(options, loads, &step);
  use_fp64(plan);
  ASSERT_EQ(validate(plan, c.model, c.cluster), std::vector<std::string>{});
  const std::vector<i64> order =
      foresees ? balance.order(options, plan, chosen_rows(step)) : std::vector<i64>();
  const auto in_order = [&](StepInput& input) {
    if (!order.empty()) reorder(input, order);
  };
  const auto run = [&] {
    return run_step(c.model, c.cluster, plan, kStep, foresees ? known : std::vector<at::Tensor>(), {},
                    in_order);
  };
  const Ran got = run();
  EXPECT_LE(got.difference.max(), kTolerance) << got.difference.worst;
  expect_same_bits(run(), got, "again");
  count_owners(c, plan, seen);
  ++seen.runs;
  seen.guests += got.guests;
  seen.ordered += !std::is_sorted(order.begin(), order.end()) ? 1 : 0;
}

/// Two devices, and two others with twice as many sequences.
Plan make_two_ep_groups(const ModelConfig& model, const Cluster& cluster, StrategyRequest request) {
  const Strategy& ep = find_strategy("ep");
  request.attention = {0, 1};
  Plan plan = ep.make(model, cluster, request);
  request.attention = {3, 4};
  request.sequences = 2 * request.sequences;
  plan.groups.push_back(ep.make(model, cluster, request).groups[0]);
  plan.strategy = "two groups";
  plan.window = 0;
  return plan;
}

/// On so many types of devices, by every strategy, in one part and in three.
void try_balancer(const std::string& name, Knows knows, Seen& seen) {
  BalancedCase c;
  c.balancer = name;
  c.knows = knows;
  c.model.num_experts = 7;
  StrategyRequest request = small_step();
  request.sequences = 12;
  for (const i32 num_types : {2, 3}) {
    c.cluster = make_cluster(5, num_types);
    i32 turn = 0;
    for (const std::string strategy : {"ep", "zebra", "dist-ep", "two groups"}) {
      ++turn;
      c.plan = strategy == "two groups" ? make_two_ep_groups(c.model, c.cluster, request)
                                        : find_strategy(strategy).make(c.model, c.cluster, request);
      for (const i32 chunks : {1, 3}) {
        if (!every_case() && (turn + 2 * num_types + chunks / 3) % 4 != 0) continue;
        c.plan.chunks = chunks;
        SCOPED_TRACE(fmt::format("{} by {}, {}, {} types, {} chunks", name, name_of(knows), strategy,
                                 num_types, chunks));
        expect_reference(c, seen);
      }
    }
  }
}

// Claim (EveryBalancer.*): every row of the table of balancers, by history and by foresight, on two and three
// device types, in one group of devices and in two, in one chunk and in three: loss and all gradients are the
// reference's to 1e-10, and the same bits again; a new row is tested without a new line
TEST(EveryBalancer, EqualsTheReferenceOnTwoAndThreeDeviceTypes) {
  Seen seen;
  for (const std::string& name : all_balancers()) {
    const BalancerChoice choice = balancer_choice(name);
    if (choice.split == CopySplit::kOracle) continue;  // a bound for traces, which nothing can run
    ++seen.balancers;
    // Who goes by the sequences of a step must know them.
    if (choice.balancer == nullptr || !choice.balancer->by_use) try_balancer(name, Knows::kHistory, seen);
    try_balancer(name, Knows::kForesight, seen);
  }
  std::printf("%ld balancers, %ld cases: %ld experts moved, %ld copies, %ld guests, %ld orders\n",
              static_cast<long>(seen.balancers), static_cast<long>(seen.runs), static_cast<long>(seen.moved),
              static_cast<long>(seen.copies), static_cast<long>(seen.guests),
              static_cast<long>(seen.ordered));
  EXPECT_EQ(seen.balancers, static_cast<i64>(balancers().size()) + 4);  // none, and its three divisions
  EXPECT_GT(seen.moved, case_count(100, 500));
  EXPECT_GT(seen.copies, case_count(40, 200));
  EXPECT_GT(seen.guests, case_count(20, 100));
  EXPECT_GT(seen.ordered, case_count(0, 4));
}

}  // namespace
}  // namespace hetermoe::testing
