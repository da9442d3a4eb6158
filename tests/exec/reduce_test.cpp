#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "hetermoe/cluster/cluster.h"
#include "hetermoe/cost/cost_model.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe::testing {
namespace {

/// Bytes that each device sends to others in reduces of one step, and what their price counts.
struct Sent {
  std::map<DeviceId, double> counted, priced;
};

Sent run_reduces() {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  Sent sent;
  std::mutex mutex;
  RigOptions options;
  options.on_send = [&](const ExchangeCall& call, std::vector<Message>& out) {
    if (!call.name.starts_with("reduce")) return;
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (call.participants[i] == call.self) continue;
      for (const at::Tensor& tensor : out[i].tensors)
        sent.counted[call.self] += static_cast<double>(tensor.nbytes());
    }
  };
  Rig rig(model, cluster, find_strategy("ep").make(model, cluster, small_step()), options);
  rig.load(lively_values(model));
  rig.executor().run(random_input(rig.plan(), model));
  const WorkModel work(rig.placement(), model, cluster);
  for (OpId id = 0; id < rig.schedule().num_ops(); ++id) {
    const Op& op = rig.schedule().ops[static_cast<std::size_t>(id)];
    if (op.kind != OpKind::kReduce) continue;
    std::vector<DeviceId> participants;
    for (const LaneId lane : rig.schedule().lanes_of(id)) participants.push_back(device_of(lane));
    const std::vector<PortBytes> bytes = work.port_bytes(op, participants, nullptr);
    for (std::size_t i = 0; i < participants.size(); ++i)
      sent.priced[participants[i]] += bytes[i].net_out + bytes[i].local_out;
  }
  return sent;
}

/// Parts are whole numbers of elements, which the price does not round.
TEST(Reduce, SendsWhatItIsPricedAt) {
  const Sent sent = run_reduces();
  EXPECT_EQ(sent.counted.size(), 4U);
  ASSERT_EQ(sent.priced.size(), sent.counted.size());
  for (const auto& [device, bytes] : sent.counted)
    EXPECT_NEAR(bytes / sent.priced.at(device), 1, 0.01) << "device " << device;
}

}  // namespace
}  // namespace hetermoe::testing
