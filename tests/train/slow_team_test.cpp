#include "hetermoe/train/job/slow_team.h"

#include <gtest/gtest.h>

#include "hetermoe/cost/measured.h"
#include "hetermoe/planner/strategies/strategies.h"

namespace hetermoe {
namespace {

/// Two A100 on nodes of their own.
std::string note_of(double network_gbit_s, const std::string& strategy = "sp-ep") {
  const Cluster cluster = parse_cluster(
      parse_yaml(
          fmt::format("{{name: pair, nodes: [{{count: 2, network_gbit_s: {}, devices: [A100-80 x1]}}]}}",
                      network_gbit_s),
          "test"),
      "test ");
  const ModelConfig model = load_model("llama-3.1-8b");
  StrategyRequest request;
  request.seq_len = 8192, request.sequences = 2, request.dtype = Dtype::kBf16;
  if (strategy == "sp-ep") request.team = {2};
  Plan plan = find_strategy(strategy).make(model, cluster, request);
  plan.dtype.assign(cluster.devices.size(), Dtype::kBf16);
  plan.wire_forward = plan.wire_backward = Wire::kBf16;
  return slow_team_note(plan, model, cluster, *make_cost(model, cluster, plan, {}));
}

TEST(SlowTeam, IsNamedWithItsTimeAndThatOfItsFastestDevice) {
  const std::string note = note_of(1);
  EXPECT_NE(note.find("the team of A100-80#0, A100-80#1 takes "), std::string::npos) << note;
  EXPECT_NE(note.find(" for the attention part of a layer, of which its rows travel for "), std::string::npos)
      << note;
  EXPECT_NE(note.find("A100-80#0 alone would take "), std::string::npos) << note;
  EXPECT_EQ(note_of(800), "");
  EXPECT_EQ(note_of(1, "ep"), "");
}

}  // namespace
}  // namespace hetermoe
