#pragma once
#include <functional>
#include <vector>

#include "hetermoe/schedule/builder.h"

namespace hetermoe {

/// Most microbatches of a layer that wait for backward on a device at once; layer num_layers is the head.
using InFlight = std::function<i64(std::size_t layer, DeviceId)>;

/// Properties of an order policy that other code asks for.
struct OrderPolicyTraits {
  OrderPolicy policy;
  void (*append)(ScheduleBuilder&);  ///< appends every op of all groups
  bool appends_end_of_step;  ///< reduces, norm and updates as well; else ScheduleBuilder::finish() does
  bool treats_equals_alike;  ///< equal devices, and groups arranged alike, do the same at the same time
  bool has_window;           ///< follows Plan::window and Plan::chunks
  bool zero_window_is_all;   ///< with window 0 all microbatches of a group may be in one layer
  /// Windows of Plan::window microbatches go through all layers one after another.
  bool windows_in_sequence;
  bool has_stages;  ///< runs of layers with equal shares work at the same time, on other microbatches
  bool has_rounds;  ///< likewise, and devices take the next run of layers in turn: Plan::turn_lengths
  InFlight (*in_flight)(const Plan&, const Group&);  ///< the plan must outlive it
  const char* plan_name;  ///< of plans that run so; empty = they are named by their placement
};

/// The row of each order policy, in its file order_<name>.cpp.
namespace order_rows {
#define HM_ROW(policy, name) OrderPolicyTraits name##_order();
HM_ORDER_POLICIES(HM_ROW)
#undef HM_ROW
}  // namespace order_rows

/// OrderPolicyTraits::in_flight of policies that follow Plan::window alone.
InFlight in_flight_of_window(const Plan& plan, const Group& group);

/// The table: a new order policy is a line of HM_ORDER_POLICIES and a file order_<name>.cpp.
const std::vector<OrderPolicyTraits>& order_policies();
const OrderPolicyTraits& traits_of(OrderPolicy policy);

}  // namespace hetermoe
