#pragma once
#include <vector>

#include "hetermoe/schedule/builder.h"

namespace hetermoe {

/// What everybody else needs to know of an order policy.
struct OrderPolicyTraits {
  OrderPolicy policy;
  void (*append)(ScheduleBuilder&);  ///< appends every op of all groups
  bool appends_end_of_step;  ///< reduces, norm and updates as well; else ScheduleBuilder::finish() does
  bool treats_equals_alike;  ///< equal devices, and groups arranged alike, do the same at the same time
  bool has_window;           ///< follows Plan::window and Plan::chunks; with window 1 microbatches take turns
  i64 (*in_flight)(const Plan&, const Group&);  ///< most microbatches between forward and backward at once
  const char* plan_name;  ///< of plans that run so; empty = they are named by their placement
};

/// The table: a new order policy is an enumerator with its name, a file order_x.cpp and a row.
const std::vector<OrderPolicyTraits>& order_policies();
const OrderPolicyTraits& traits_of(OrderPolicy policy);

}  // namespace hetermoe
