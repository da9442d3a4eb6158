#include "hetermoe/schedule/order_policy.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {

InFlight in_flight_of_window(const Plan& plan, const Group& group) {
  const i64 all = static_cast<i64>(group.microbatches.size());
  const i64 most = plan.window > 0 ? std::min<i64>(all, plan.window) : all;
  return [most](std::size_t /*layer*/, DeviceId /*device*/) { return most; };
}

const std::vector<OrderPolicyTraits>& order_policies() {
#define HM_ROW(policy, name) order_rows::name##_order(),
  static const std::vector<OrderPolicyTraits> all = {HM_ORDER_POLICIES(HM_ROW)};
#undef HM_ROW
  return all;
}

const OrderPolicyTraits& traits_of(OrderPolicy policy) {
  const OrderPolicyTraits& traits = order_policies().at(idx(static_cast<int>(policy)));
  HM_CHECK(traits.policy == policy, "order_{}.cpp has the row of another order policy", name_of(policy));
  return traits;
}

}  // namespace hetermoe
