#include "hetermoe/cost/price.h"

#include <gtest/gtest.h>

#include "hetermoe/cost/roofline.h"
#include "hetermoe/schedule/builder.h"
#include "tests/property/random_plans.h"

namespace hetermoe {
namespace {

/// Ops that are alike are priced once. Each must cost what the cost model says of it alone.
TEST(Price, OfEveryOpIsThatOfTheOpAlone) {
  i64 num_transfers = 0, num_of_states = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const test::RandomCase c = test::RandomPlans(seed).make();
    const Placement placement(c.plan, c.model, c.options);
    const Schedule schedule = build_schedule(placement);
    const RooflineCost cost(c.model, c.cluster, c.plan);
    const ExpectedRouting routing(c.model);
    const OpCosts costs = price(schedule, placement, c.model, c.cluster, cost, routing);
    const WorkModel work(placement, c.model, c.cluster);
    LoadTable loads(placement, routing);
    for (OpId id = 0; id < schedule.num_ops(); ++id) {
      const Op& op = schedule.ops[static_cast<std::size_t>(id)];
      const Seconds found = costs.seconds[static_cast<std::size_t>(id)];
      const ExchangeLoad* load = loads.of(op);
      if (is_compute(op.kind)) {
        const DeviceId device = device_of(schedule.lanes_of(id)[0]);
        ASSERT_EQ(found, cost.compute(work.compute_work(op, device, load))) << to_string(op);
        continue;
      }
      const std::vector<DeviceId> among = participants(op, placement);
      const std::vector<PortBytes> bytes = work.port_bytes(op, among, load);
      ASSERT_EQ(found, cost.transfer({op, among, bytes}).seconds()) << to_string(op);
      ++num_transfers;
      num_of_states += op.state >= 0 ? 1 : 0;
    }
  }
  EXPECT_GT(num_transfers, 1000);
  EXPECT_GT(num_of_states, 100);
}

}  // namespace
}  // namespace hetermoe
