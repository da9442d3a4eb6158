#include <gtest/gtest.h>

#include "tests/schedule/plans.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

using test::find_op, test::make_cluster, test::make_model, test::make_zebra_plan;
using test::has_fault, test::has_text, test::no_faults;

/// The ops of one lane, as text.
std::string lane_text(const Schedule& schedule, DeviceId device, Queue queue) {
  const std::string text = to_text(schedule);
  const std::string head = fmt::format("device {} {}: ", device, name_of(queue));
  const std::size_t begin = text.find(head);
  if (begin == std::string::npos) return "";
  std::string line = text.substr(begin + head.size(), text.find('\n', begin) - begin - head.size()), out;
  for (std::size_t at = 0; at < line.size();) {  // drops the append numbers
    const std::size_t end = std::min(line.find(" | ", at), line.size());
    const std::string entry = line.substr(at, end - at);
    out += fmt::format("{}{}", out.empty() ? "" : ", ", entry.substr(entry.find(' ') + 1));
    at = end + 3;
  }
  return out;
}

TEST(OrderLayerMajor, ZebraGoesLayerByLayerOverAllMicrobatches) {
  const ModelConfig model = make_model({});
  const Schedule s = build_schedule(make_zebra_plan(model, make_cluster({1, 1}), {}), model);
  EXPECT_EQ(
      lane_text(s, 0, Queue::kCompute),
      "embed.F m0, attention.F l0 m0, embed.F m1, attention.F l0 m1, attention.F l1 m0, attention.F l1 m1, "
      "head.F m0, head.F m1, attention.B l1 m0, attention.B l1 m1, "
      "attention.B l0 m0, embed.B m0, attention.B l0 m1, embed.B m1, update s0, update s1, update s3, update "
      "s5");
  EXPECT_EQ(lane_text(s, 1, Queue::kCompute),
            "experts.F l0 m0, experts.F l0 m1, experts.F l1 m0, experts.F l1 m1, "
            "experts.B l1 m0, experts.B l1 m1, experts.B l0 m0, experts.B l0 m1, update s2, update s4");
  EXPECT_EQ(lane_text(s, 1, Queue::kToExpert),
            "dispatch.F l0 m0, dispatch.F l0 m1, dispatch.F l1 m0, dispatch.F l1 m1, "
            "combine.B l1 m0, combine.B l1 m1, combine.B l0 m0, combine.B l0 m1");
  EXPECT_EQ(lane_text(s, 0, Queue::kToAttention),
            "combine.F l0 m0, combine.F l0 m1, combine.F l1 m0, combine.F l1 m1, "
            "dispatch.B l1 m0, dispatch.B l1 m1, dispatch.B l0 m0, dispatch.B l0 m1");
}

TEST(OrderLayerMajor, MovedExpertsRunAfterTheAttentionOfAllMicrobatches) {
  const ModelConfig model = make_model({});
  const Schedule s = build_schedule(make_zebra_plan(model, make_cluster({1, 1}), {1, 1, 2, {0, 1}}), model);
  EXPECT_TRUE(has_text(
      lane_text(s, 0, Queue::kCompute),
      "attention.F l1 m0, attention.F l1 m1, experts.F l1 m0, experts.F l1 m1, head.F m0, head.F m1, "
      "experts.B l1 m0, experts.B l1 m1, attention.B l1 m0"));
}

TEST(OrderLayerMajor, WindowOfOneFinishesAMicrobatchFirst) {
  const ModelConfig model = make_model({.num_layers = 1});
  const Schedule s =
      build_schedule(make_zebra_plan(model, make_cluster({1, 1}), {.strategy = "dist-ep"}), model);
  EXPECT_TRUE(has_text(lane_text(s, 0, Queue::kCompute),
                       "embed.F m0, attention.F l0 m0, head.F m0, attention.B l0 m0, embed.B m0, embed.F m1, "
                       "attention.F l0 m1, head.F m1, attention.B l0 m1, embed.B m1, update s0"));
}

TEST(OrderLayerMajor, DenseLayersHaveNoExchange) {
  const ModelConfig model = make_model({.num_layers = 2, .dense = {0}});
  const Schedule s = build_schedule(make_zebra_plan(model, make_cluster({1, 1}), {}), model);
  for (const auto& [device, queue] : {std::pair{0, Queue::kToExpert}, std::pair{1, Queue::kCompute}}) {
    EXPECT_NE(lane_text(s, device, queue).find(" l1 "), std::string::npos);
    EXPECT_EQ(lane_text(s, device, queue).find(" l0 "), std::string::npos);
  }
}

Plan two_groups(const ModelConfig& model, i64 microbatches_of_second) {
  Plan plan = make_zebra_plan(model, make_cluster({1, 3}), {});
  plan.groups.push_back(plan.groups[0]);
  Group& second = plan.groups[1];
  second.devices = {2, 3};
  second.microbatches.assign(static_cast<std::size_t>(microbatches_of_second), 1);
  second.embed = second.head = {{{2, 1}}};
  for (LayerPlacement& layer : second.layers) {
    layer.attention = {{{2, 1}}};
    for (ExpertOwners& owners : layer.experts) owners = {{3, 1}};
  }
  return plan;
}

TEST(Groups, ReduceOfALayerComesBeforeTheBackwardOfTheNext) {
  const ModelConfig model = make_model({});
  Plan plan = two_groups(model, 3);
  const Schedule s = build_schedule(plan, model);
  EXPECT_TRUE(no_faults(validate(s, plan, model)));
  const OpId reduce = find_op(s, "reduce s3");  // attention of layer 1
  ASSERT_EQ(s.states[3].part, State::Part::kAttention);
  ASSERT_EQ(s.states[3].layer, 1);
  EXPECT_EQ(s.states[3].devices, (std::vector<DeviceId>{0, 2}));
  EXPECT_GT(reduce, find_op(s, "attention.B l1 m2 g1"));
  EXPECT_LT(reduce, find_op(s, "attention.B l0 m0"));
  EXPECT_LT(reduce, find_op(s, "attention.B l0 m0 g1"));
}

/// Groups that recompute differently still go layer by layer together, each in its own order.
TEST(Groups, EachRecomputesInItsOwnWay) {
  const ModelConfig model = make_model({});
  Plan plan = make_zebra_plan(model, make_cluster({1, 1}), {});
  plan.dtype.assign(4, Dtype::kFp32);
  plan.groups.push_back(plan.groups[0]);
  Group& second = plan.groups[1];
  const auto shifted = [](Shares& shares) {
    for (ShareRow& row : shares) {
      for (Share& share : row) share.device += 2;
    }
  };
  for (DeviceId& device : second.devices) device += 2;
  shifted(second.embed), shifted(second.head);
  for (LayerPlacement& layer : second.layers) {
    shifted(layer.attention);
    for (ExpertOwners& owners : layer.experts) owners[0].device += 2;
    layer.recompute = Recompute::kResend;
  }
  const Schedule s = build_schedule(plan, model);
  EXPECT_TRUE(no_faults(validate(s, plan, model)));
  const auto without_group = [](std::string text) {
    for (std::size_t at; (at = text.find(" g1")) != std::string::npos;) text.erase(at, 3);
    return text;
  };
  for (const i32 group : {0, 1}) {
    Plan alone = plan;
    alone.groups = {plan.groups[0]};
    alone.dtype.resize(2);
    if (group == 1) alone.recompute = Recompute::kResend;
    const Schedule of_one = build_schedule(alone, model);
    for (const Queue queue : {Queue::kCompute, Queue::kToExpert, Queue::kToAttention}) {
      for (const DeviceId device : {0, 1})
        EXPECT_EQ(without_group(lane_text(s, 2 * group + device, queue)), lane_text(of_one, device, queue));
    }
  }
}

TEST(Groups, LoadBalancingSpansGroups) {
  const ModelConfig model = make_model({});
  Plan plan = two_groups(model, 2);
  StepOptions options;
  options.balance = true;
  const Schedule whole = build_schedule(plan, model, options);
  EXPECT_TRUE(no_faults(validate(whole, plan, model, options)));
  const OpId balance = find_op(whole, "balance m1 g1");
  ASSERT_GE(balance, 0);
  EXPECT_EQ(find_op(whole, "balance m1"), -1);
  EXPECT_EQ(whole.lanes_of(balance).size(), 2u);
  EXPECT_GT(balance, find_op(whole, "attention.F l1 m1 g1"));
  EXPECT_LT(balance, find_op(whole, "attention.B l1 m0"));
  options.aux_group = 1;
  const Schedule each = build_schedule(plan, model, options);
  EXPECT_TRUE(no_faults(validate(each, plan, model, options)));
  EXPECT_GE(find_op(each, "balance m0"), 0);
  EXPECT_EQ(each.lanes_of(find_op(each, "balance m0 g1")).size(), 1u);
}

TEST(Balance, GroupThatSpansWindowsIsRefused) {
  const ModelConfig model = make_model({});
  const Plan plan = make_zebra_plan(model, make_cluster({1, 1}), {.strategy = "dist-ep"});
  StepOptions options;
  options.balance = true;
  try {
    build_schedule(plan, model, options);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(has_text(error.what(), "Set train.aux_group to 1 or more, at most 1 (sequences"));
  }
}

TEST(Balance, GroupMustDivideTheStep) {
  const ModelConfig model = make_model({});
  const Plan plan = make_zebra_plan(model, make_cluster({1, 1}), {.microbatches = 4});
  StepOptions options;
  options.balance = true;
  options.aux_group = 3;
  try {
    build_schedule(plan, model, options);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[aux_group] got 3, expected a divisor of the step's 4 sequences");
  }
}

/// Two stages on two devices, experts on the device of their layer.
Plan pipeline(const ModelConfig& model, i64 microbatches) {
  Plan plan = make_zebra_plan(model, make_cluster({2}), {1, 1, microbatches});
  Group& group = plan.groups[0];
  plan.order = OrderPolicy::kOneFOneB;
  group.layers[0].attention = group.embed = {{{0, 1}}};
  group.layers[1].attention = group.head = {{{1, 1}}};
  for (std::size_t l = 0; l < 2; ++l) {
    for (ExpertOwners& owners : group.layers[l].experts) owners = {{static_cast<DeviceId>(l), 1}};
  }
  return plan;
}

TEST(OrderOneFOneB, FirstStageSendsAheadAndAlternates) {
  const ModelConfig model = make_model({});
  const Plan plan = pipeline(model, 3);
  const Schedule s = build_schedule(plan, model);
  EXPECT_TRUE(no_faults(validate(s, plan, model)));
  const auto forward = [](i32 m) {
    return fmt::format("embed.F m{0}, attention.F l0 m{0}, experts.F l0 m{0}, merge.F l1 m{0}, ", m);
  };
  const auto backward = [](i32 m) {
    return fmt::format("experts.B l0 m{0}, attention.B l0 m{0}, embed.B m{0}, ", m);
  };
  EXPECT_TRUE(has_text(lane_text(s, 0, Queue::kCompute),
                       fmt::format("{}{}{}{}{}{}update", forward(0), forward(1), backward(0), forward(2),
                                   backward(1), backward(2))));
  EXPECT_EQ(lane_text(s, 1, Queue::kMove),
            "move.F l1 m0, move.F l1 m1, move.B l1 m0, move.F l1 m2, move.B l1 m1, move.B l1 m2");
}

TEST(OrderOneFOneB, LastStageRunsBackwardAtOnce) {
  const ModelConfig model = make_model({});
  const Schedule s = build_schedule(pipeline(model, 2), model);
  EXPECT_TRUE(
      has_text(lane_text(s, 1, Queue::kCompute),
               "attention.F l1 m0, experts.F l1 m0, head.F m0, experts.B l1 m0, attention.B l1 m0, "
               "attention.F l1 m1, experts.F l1 m1, head.F m1, experts.B l1 m1, attention.B l1 m1, update"));
}

/// A window goes through a stage layer by layer, all of it forward before any of it backward.
TEST(OrderOneFOneB, AWindowOfMicrobatchesGoesThroughAStageTogether) {
  const ModelConfig model = make_model({});
  Plan plan = pipeline(model, 3);
  plan.window = 2;
  const Schedule s = build_schedule(plan, model);
  EXPECT_TRUE(no_faults(validate(s, plan, model)));
  EXPECT_TRUE(has_text(
      lane_text(s, 1, Queue::kCompute),
      "attention.F l1 m0, attention.F l1 m1, experts.F l1 m0, experts.F l1 m1, head.F m0, head.F m1, "
      "experts.B l1 m0, experts.B l1 m1, attention.B l1 m0, attention.B l1 m1, attention.F l1 m2"));
  EXPECT_EQ(lane_text(s, 1, Queue::kMove),
            "move.F l1 m0, move.F l1 m1, move.F l1 m2, move.B l1 m0, move.B l1 m1, move.B l1 m2");
  plan.window = 1;
  const Schedule one = build_schedule(plan, model);
  plan.window = 0;
  EXPECT_EQ(hash(build_schedule(plan, model)), hash(one));
}

TEST(OrderExplicit, TextOfAScheduleGivesTheSameSchedule) {
  const ModelConfig model = make_model({});
  Plan plan = make_zebra_plan(model, make_cluster({2, 2}), {2, 2, 2, {0, 1}});
  const Schedule built = build_schedule(plan, model);
  plan.order = OrderPolicy::kExplicit;
  plan.explicit_order = to_text(built);
  const Schedule parsed = build_schedule(plan, model);
  EXPECT_EQ(hash(parsed), hash(built));
  EXPECT_EQ(to_text(parsed), plan.explicit_order);
}

class ExplicitErrors : public ::testing::Test {
 protected:
  ModelConfig model_ = make_model({.num_layers = 1});
  Plan plan_ = make_zebra_plan(model_, make_cluster({1, 1}), {.microbatches = 1});
  std::string text_ = to_text(build_schedule(plan_, model_));

  std::string error_with(const std::string& from, const std::string& to) {
    const std::size_t at = text_.find(from);
    EXPECT_NE(at, std::string::npos) << from << " in\n" << text_;
    plan_.order = OrderPolicy::kExplicit;
    plan_.explicit_order = fmt::format("{}{}{}", text_.substr(0, at), to, text_.substr(at + from.size()));
    return error_of<ConfigError>([&] { build_schedule(plan_, model_); });
  }
};

TEST_F(ExplicitErrors, NameTheLineAndTheFault) {
  EXPECT_EQ(error_with("device 0 compute:", "device 7 compute:"),
            "[explicit_order:1] device 7 does not exist: there are 2");
  EXPECT_EQ(error_with("device 0 compute:", "gpu 0 compute:"),
            "[explicit_order:1] got \"gpu 0 compute\", expected \"device <number> <queue>: ...\"");
  EXPECT_TRUE(has_text(error_with("attention.F", "atention.F"), "Did you mean \"attention\"?"));
  EXPECT_EQ(error_with("embed.F m0", "embed.F m-1"),
            "[explicit_order:1] got \"-1\", expected a number from 0");
  EXPECT_EQ(error_with("embed.F m0", "embed.F x0"),
            "[explicit_order:1] \"x0\" in \" embed.F x0 \": expected l, m, c, g, t, s or d and a number");
}

TEST_F(ExplicitErrors, OpsMustBeThoseOfThePlan) {
  EXPECT_EQ(error_with("embed.F m0", "embed.F m5"),
            "[explicit_order] does not hold the ops of this plan (2 faults):\n  embed.F m0 on device 0 is "
            "missing\n  "
            "embed.F m5 on device 0 is not part of the step, or there twice");
  EXPECT_TRUE(has_text(error_with("dispatch.F l0 m0", "dispatch.F l99 m0"), "two meanings"));
}

TEST_F(ExplicitErrors, OrderMustWriteBeforeItReads) {
  EXPECT_TRUE(has_text(
      error_with("0 embed.F m0 | 1 attention.F l0 m0", "1 attention.F l0 m0 | 5000 embed.F m0"),
      "attention.F l0 m0 on device 0 reads hidden (layer 0, microbatch 0), which no earlier op writes"));
}

TEST_F(ExplicitErrors, LanesMustBeThoseOfThePlan) {
  EXPECT_TRUE(has_text(error_with("device 1 to_expert:", "device 1 move:"), "stands on 2 lanes"));
}

TEST(ScheduleHash, TellsOrdersApart) {
  const ModelConfig model = make_model({});
  Plan plan = make_zebra_plan(model, make_cluster({1, 1}), {});
  const u64 zebra = hash(build_schedule(plan, model));
  EXPECT_EQ(hash(build_schedule(plan, model)), zebra);
  plan.window = 1;
  EXPECT_NE(hash(build_schedule(plan, model)), zebra);
  plan.window = 0;
  plan.queue_binding = QueueBinding::kName;
  EXPECT_NE(hash(build_schedule(plan, model)), zebra);
}

}  // namespace
}  // namespace hetermoe
