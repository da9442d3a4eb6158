#include <gtest/gtest.h>

#include "hetermoe/cli/command.h"
#include "tests/cli/program.h"

namespace hetermoe {
namespace {

TEST(PlanCommand, WritesAPlanThatSimulateTakes) {
  const WorkFolder folder;
  const std::string plan = folder / "plan.json";
  const ProgramResult made = run_hetermoe({"plan", "--model", "demo", "--cluster", "demo", "--seq", "512",
                                           "--sequences", "8", "--json", "-o", plan});
  ASSERT_EQ(made.code, 0) << made.err;
  const Json made_json = parse_json(made.out, "output");
  EXPECT_EQ(made_json.at("tokens_per_s_range").size(), 2U);
  EXPECT_EQ(made_json.at("constants").at("A40/1000"), "assumed");
  const ProgramResult simulated =
      run_hetermoe({"simulate", "--model", "demo", "--cluster", "demo", "--plan", plan, "--json"});
  EXPECT_EQ(simulated.code, 0) << simulated.err;
  EXPECT_FALSE(parse_json(simulated.out, "output").empty());
  // What train takes by the same name, `launch --replan` reads as well.
  const ProgramResult trained =
      run_hetermoe({"train", "--model", "demo", "--cluster", "demo", "--plan", plan, "--dry-run", "--json"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(parse_json(trained.out, "output")["job"]["plan"]["file"], plan);
  EXPECT_EQ(parse_train({"--plan", plan}).overrides, (Overrides{{"plan.file", plan}}));
  EXPECT_NE(run_hetermoe({"train", "--plam", plan}).err.find("Did you mean \"--plan\"?"), std::string::npos);
}

TEST(PlanCommand, SaysWhatDoesNotFitAndWhy) {
  const ProgramResult result =
      run_hetermoe({"plan", "--model", "deepseek-v3", "--cluster", "demo", "--seq", "4096"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("[plan] no plan of deepseek-v3 on demo fits: "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("GiB are missing, more or larger devices or a smaller model help"),
            std::string::npos)
      << result.err;
  const ProgramResult as_json =
      run_hetermoe({"plan", "--model", "deepseek-v3", "--cluster", "demo", "--seq", "4096", "--json"});
  EXPECT_EQ(as_json.code, 2);
  EXPECT_NE(parse_json(as_json.out, "output").at("infeasible"), "");
}

TEST(PlanCommand, TellsTimeAndMoneyOfARun) {
  const WorkFolder folder;
  const std::string cluster = folder / "priced.yaml";
  write_text(cluster,
             "device_types:\n"
             "  - {name: A40, like: A40, price_per_hour: 0.4}\n"
             "  - {name: V100, like: V100, price_per_hour: 0.1}\n"
             "nodes: [{devices: [A40 x2, V100 x2]}]\n");
  const std::vector<std::string> ask = {"plan", "--model", "d1", "--cluster", cluster, "--run-tokens", "1e9"};
  std::vector<std::string> as_json = ask;
  as_json.emplace_back("--json");
  const Json money = parse_json(run_hetermoe(as_json).out, "output").at("time_and_money");
  EXPECT_EQ(money.at("run_tokens"), 1e9);
  const Json& best = money.at("plans").at(0);
  EXPECT_EQ(best.at("on_frontier"), true);
  EXPECT_NEAR(best.at("money").get<double>(),
              best.at("per_hour").get<double>() * best.at("seconds").get<double>() / 3600, 1e-9);
  const ProgramResult text = run_hetermoe(ask);
  EXPECT_TRUE(contains(text.out, "Days, cost and kWh are those of a run of 1.0 B tokens.")) << text.out;
  const ProgramResult unpriced =
      run_hetermoe({"plan", "--model", "d1", "--cluster", "o1", "--run-tokens", "1e9"});
  EXPECT_TRUE(contains(unpriced.out, "The cost is not known: no price_per_hour for A40")) << unpriced.out;
}

TEST(PlanCommand, BadInputIsNamed) {
  EXPECT_TRUE(contains(run_hetermoe({"plan", "--run-tokens", "0"}).err, "[--run-tokens] out of range"));
  EXPECT_NE(run_hetermoe({"plan", "--dtype", "fp12"}).err.find("[--dtype] got \"fp12\""), std::string::npos);
  EXPECT_NE(run_hetermoe({"plan", "--dtype", "fp16", "--master", "none"})
                .err.find("[master] got none, but device 0"),
            std::string::npos);
  EXPECT_NE(run_hetermoe({"plan", "--idle", "99"}).err.find("[--idle] device 99 does not exist"),
            std::string::npos);
  EXPECT_NE(run_hetermoe({"plan", "--seq", "0"}).code, 0);
}

TEST(CompareCommand, PredictsTunedStrategiesInTheShapeOfTheContract) {
  const ProgramResult result =
      run_hetermoe({"compare", "--model", "d1", "--cluster", "o1", "--seq", "4096,8192", "--strategy",
                    "zebra,ep,ep-ideal,dist-ep,best", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = parse_json(result.out, "output"), rows = json["rows"];
  EXPECT_EQ(json["rate_factors"].size(), 2U);
  EXPECT_EQ(json["constants"].dump(), R"({"A40":"calibrated","V100":"calibrated","links":"calibrated"})");
  ASSERT_EQ(rows.size(), 10U);
  for (const Json& row : rows) {
    for (const char* key : {"model", "cluster", "seq_len", "strategy", "tokens_per_s", "step_s",
                            "utilization", "experts_moved", "memory_bytes"}) {
      EXPECT_TRUE(row.contains(key)) << key;
    }
    EXPECT_EQ(row["model"], "d1");
    EXPECT_EQ(row["memory_bytes"].size(), 12U);
  }
  EXPECT_GT(rows[0]["tokens_per_s"], rows[1]["tokens_per_s"]);
  EXPECT_GE(rows[4]["tokens_per_s"], rows[0]["tokens_per_s"]);
}

TEST(PlanCommand, FollowsWhatIsTrained) {
  const auto step_of = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--model", "demo", "--cluster", "demo", "--seq", "256", "--sequences",
                               "8", "--json"});
    const ProgramResult result = run_hetermoe(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return Json::parse(result.out)["candidates"][0]["step_s"].get<double>();
  };
  const double whole = step_of({}), adapters = step_of({"--lora-rank", "4"});
  EXPECT_LT(adapters, whole);
  EXPECT_LT(step_of({"--freeze", "model.layers.0.*,model.embed_tokens*"}), whole);
  const ProgramResult none = run_hetermoe(
      {"plan", "--model", "demo", "--cluster", "demo", "--lora-rank", "4", "--lora-targets", "*.nothing"});
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(contains(none.err, "[train.lora.targets] \"*.nothing\" matches no matrix")) << none.err;
}

}  // namespace
}  // namespace hetermoe
