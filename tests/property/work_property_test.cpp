#include <gtest/gtest.h>

#include "tests/property/random_plans.h"

namespace hetermoe {
namespace {

using test::RandomCase, test::RandomPlans;

/// The same load with its matrix written out.
ExchangeLoad as_matrix(const ExchangeLoad& product) {
  ExchangeLoad out = product;
  for (std::size_t s = 0; s < product.num_sources(); ++s) {
    for (std::size_t o = 0; o < product.num_owners(); ++o) {
      out.rows.push_back(product.rows_between(s, o));
      out.copies.push_back(product.copies_between(s, o));
    }
  }
  return out;
}

std::vector<DeviceId> devices_of(const Schedule& schedule, OpId op) {
  std::vector<DeviceId> devices;
  for (const LaneId lane : schedule.lanes_of(op)) devices.push_back(device_of(lane));
  return devices;
}

PortBytes sum(const std::vector<PortBytes>& bytes) {
  PortBytes out;
  for (const PortBytes& b : bytes) {
    out.net_out += b.net_out;
    out.net_in += b.net_in;
    out.local_out += b.local_out;
    out.local_in += b.local_in;
  }
  return out;
}

template <class Check>
void for_transfers(Check check) {
  for (unsigned seed = 1; seed <= 200 && !::testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomPlans random(seed);
    const RandomCase c = random.make();
    const Schedule schedule = build_schedule(c.plan, c.model, c.options);
    const Placement placement(c.plan, c.model, c.options);
    const WorkModel work(placement, c.model, c.cluster);
    const ExpectedRouting routing(
        c.model, random.chance(0.5) ? std::vector<double>{} : zipf_popularity(c.model.num_experts, 1));
    for (OpId id = 0; id < schedule.num_ops(); ++id) {
      const Op& op = schedule.ops[static_cast<std::size_t>(id)];
      if (is_compute(op.kind)) continue;
      ExchangeLoad load;
      if (op.kind == OpKind::kDispatch || op.kind == OpKind::kCombine) {
        load = routing.exchange(placement, op.group, op.layer, op.microbatch, op.chunk);
      }
      check(work, op, devices_of(schedule, id), load);
    }
  }
}

TEST(WorkModel, WhatIsSentIsReceived) {
  for_transfers([](const WorkModel& work, const Op& op, const std::vector<DeviceId>& devices,
                   const ExchangeLoad& load) {
    const PortBytes total = sum(work.port_bytes(op, devices, &load));
    ASSERT_NEAR(total.net_out, total.net_in, 1e-9 * (1 + total.net_out)) << to_string(op);
    ASSERT_NEAR(total.local_out, total.local_in, 1e-9 * (1 + total.local_out)) << to_string(op);
  });
}

TEST(WorkModel, ProductFormEqualsMatrixForm) {
  i64 num_exchanges = 0;
  for_transfers([&](const WorkModel& work, const Op& op, const std::vector<DeviceId>& devices,
                    const ExchangeLoad& load) {
    if (op.kind != OpKind::kDispatch && op.kind != OpKind::kCombine) return;
    const ExchangeLoad matrix = as_matrix(load);
    const std::vector<PortBytes> a = work.port_bytes(op, devices, &load),
                                 b = work.port_bytes(op, devices, &matrix);
    for (std::size_t i = 0; i < devices.size(); ++i) {
      ASSERT_NEAR(a[i].net_out, b[i].net_out, 1e-9 * (1 + a[i].net_out));
      ASSERT_NEAR(a[i].net_in, b[i].net_in, 1e-9 * (1 + a[i].net_in));
      ASSERT_NEAR(a[i].local_out, b[i].local_out, 1e-9 * (1 + a[i].local_out));
      ASSERT_NEAR(a[i].local_in, b[i].local_in, 1e-9 * (1 + a[i].local_in));
    }
    for (std::size_t o = 0; o < load.num_owners(); ++o) {
      ASSERT_NEAR(load.copies_at(o), matrix.copies_at(o), 1e-9 * (1 + load.copies_at(o)));
    }
    ++num_exchanges;
  });
  EXPECT_GT(num_exchanges, 1000);
}

TEST(WorkModel, EveryTokenIsComputedTopKTimes) {
  for_transfers([](const WorkModel&, const Op& op, const std::vector<DeviceId>&, const ExchangeLoad& load) {
    if (op.kind != OpKind::kDispatch) return;
    double copies = 0, per_token = 0;
    for (std::size_t o = 0; o < load.num_owners(); ++o) {
      copies += load.copies_at(o);
      per_token += load.copies_per_token[o];
      ASSERT_LE(load.rows_per_token[o], load.copies_per_token[o] + 1e-12);
      ASSERT_LE(load.rows_per_token[o], 1 + 1e-9 + load.copies_per_token[o]);
    }
    double tokens = 0;
    for (const double t : load.tokens) tokens += t;
    ASSERT_NEAR(copies, tokens * per_token, 1e-9 * (1 + copies));
  });
}

/// Ops that are placed alike are priced once; every one of them must get the price it would have alone.
TEST(Price, EqualsThePriceOfEveryOpAlone) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomCase c = RandomPlans(seed).make();
    const Schedule schedule = build_schedule(c.plan, c.model, c.options);
    const Placement placement(c.plan, c.model, c.options);
    const WorkModel work(placement, c.model, c.cluster);
    const ExpectedRouting routing(c.model);
    const test::PortCost cost(c.cluster);
    const OpCosts costs = price(schedule, placement, c.model, c.cluster, cost, routing);
    for (OpId id = 0; id < schedule.num_ops(); ++id) {
      const Op& op = schedule.ops[static_cast<std::size_t>(id)];
      ExchangeLoad load;
      if (op.kind == OpKind::kDispatch || op.kind == OpKind::kCombine || op.kind == OpKind::kExperts) {
        load = routing.exchange(placement, op.group, op.layer, op.microbatch, op.chunk);
      }
      const std::vector<DeviceId> devices = devices_of(schedule, id);
      const Seconds expected =
          is_compute(op.kind) ? cost.compute(work.compute_work(op, devices[0], &load))
                              : cost.transfer({op, devices, work.port_bytes(op, devices, &load)}).seconds();
      ASSERT_EQ(costs.seconds[static_cast<std::size_t>(id)], expected) << to_string(op);
    }
  }
}

}  // namespace
}  // namespace hetermoe
