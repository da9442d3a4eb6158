#include "hetermoe/train/job/router_training.h"

#include <fstream>

#include "hetermoe/report/metrics.h"
#include "hetermoe/routing/trace_routing.h"
#include "hetermoe/routing/writer.h"
#include "hetermoe/train/run/results.h"
#include "tests/support/error_of.h"
#include "tests/train/resumed_run.h"

namespace hetermoe {
namespace {

/// A trace in which every token of layer 1 chooses the first experts, and those of other layers all in turn.
void write_collapsed_trace(const std::string& path, const ModelConfig& model, i64 sequences) {
  TraceHeader header;
  header.layers = layers_with_experts(model);
  header.num_experts = model.num_experts;
  header.top_k = model.top_k;
  RoutingWriter writer(path, header);
  TraceStep step;
  step.step = 1;
  for (i64 s = 0; s < sequences; ++s) step.sequences.push_back({.index = s, .tokens = 8});
  index_tokens(step);
  for (const i64 layer : header.layers) {
    std::vector<std::uint16_t>& ids = step.choices.emplace_back();
    for (i64 t = 0; t < step.num_tokens(); ++t) {
      for (i64 k = 0; k < header.top_k; ++k)
        ids.push_back(
            static_cast<std::uint16_t>(layer == 1 ? k : (t * header.top_k + k) % header.num_experts));
    }
  }
  step.weights.resize(header.layers.size());
  count_choices(step, header);
  writer.step(step, TraceDetail::kChoices);
  writer.finish();
}

TEST(RouterTrainingRun, ACollapsedLayerIsToldWithinTwentySteps) {
  const WorkFolder folder;
  const ModelConfig model = load_model("tiny");
  write_collapsed_trace(folder / "collapsed.routes", model, 80);
  TinyRun run(folder / "run", {{"routing.replay", folder / "collapsed.routes"}, {"train.steps", "20"}});
  const TrainOutcome out = run.run(Checkpoints::kOff).outcome;
  i64 told = 0;
  for (const std::string& warning : out.warnings) {
    if (warning.find("routing collapses") == std::string::npos) continue;
    ++told;
    EXPECT_NE(warning.find("layer 1 has sent its tokens to about 2.0 of its"), std::string::npos) << warning;
    EXPECT_NE(warning.find("Set train.aux_per_layer, raise"), std::string::npos) << warning;
  }
  EXPECT_EQ(told, 1);
  TinyRun per_layer(folder / "per_layer", {{"routing.replay", folder / "collapsed.routes"},
                                           {"train.steps", "20"},
                                           {"train.aux_per_layer", "true"}});
  const TrainOutcome apart = per_layer.run(Checkpoints::kOff).outcome;
  for (const std::string& warning : apart.warnings)
    EXPECT_EQ(warning.find("aux_per_layer"), std::string::npos) << warning;
  EXPECT_NE(apart.records.front().aux_loss, out.records.front().aux_loss)
      << "a layer that is uneven has another loss than all of them together";
  // While the learning rate rises, and where routers are frozen, nothing is told.
  for (const auto& [key, value] : {std::pair("train.warmup_steps", "11"), {"train.lora.rank", "2"}}) {
    TinyRun silent(folder / key,
                   {{"routing.replay", folder / "collapsed.routes"}, {"train.steps", "20"}, {key, value}});
    for (const std::string& warning : silent.run(Checkpoints::kOff).outcome.warnings)
      EXPECT_EQ(warning.find("routing collapses"), std::string::npos) << key << ": " << warning;
  }
  for (const LayerLoad& load : out.records.back().loads) {
    EXPECT_EQ(load.dead, load.layer == 1 ? model.num_experts - model.top_k : 0);
    EXPECT_NEAR(load.max_over_mean, load.layer == 1 ? real(model.num_experts) / real(model.top_k) : 1, 1e-12);
  }
}

TEST(RouterTrainingRun, ForcedBalanceGivesEveryExpertAsMany) {
  const WorkFolder folder;
  for (const char* strategy : {"single", "zebra"}) {
    TinyRun run(folder / strategy, {{"train.forced_balance", "true"}, {"strategy", strategy}});
    const TrainOutcome out = run.run(Checkpoints::kOff).outcome;
    ASSERT_EQ(out.records.size(), 6u);
    for (const StepRecord& record : out.records) {
      ASSERT_FALSE(record.loads.empty());
      for (const LayerLoad& load : record.loads) {
        EXPECT_EQ(load.max_over_mean, 1);
        EXPECT_EQ(load.cv, 0);
        EXPECT_EQ(load.dead, 0);
        EXPECT_EQ(load.dropped, 0);
      }
    }
  }
}

TEST(RouterTrainingRun, WhatIsDroppedIsInTheMetrics) {
  const WorkFolder folder;
  TinyRun run(folder / "run", {{"train.capacity_factor", "0.5"}});
  const TrainOutcome out = run.run(Checkpoints::kOff).outcome;
  const Json json = metrics_json(out.records.back());
  ASSERT_EQ(json.at("layers").size(), layers_with_experts(run.model).size());
  for (const Json& layer : json.at("layers")) {
    // Experts take at most half of all copies.
    EXPECT_GE(layer.at("dropped_share").get<double>(), 0.5);
    EXPECT_LT(layer.at("dropped_share").get<double>(), 1);
    EXPECT_GE(layer.at("cv").get<double>(), 0);
  }
  EXPECT_GE(json.at("dropped_share").get<double>(), 0.5);
  EXPECT_TRUE(json.contains("dead_experts"));
}

Settings constant_rate(Settings more) {
  more.insert(more.end(), {{"train.warmup_steps", "0"}, {"train.final_share", "1"}});
  return more;
}

TEST(RouterTrainingRun, JitterAndDroppingAreResumedToTheBit) {
  const Settings settings = constant_rate(
      {{"train.router_jitter", "0.1"}, {"train.router_z_loss", "0.001"}, {"train.capacity_factor", "1"}});
  const TinyRun::End expected = expect_resumed_to_the_bit(settings);
  const WorkFolder plain_folder;
  const TinyRun::End plain = TinyRun(plain_folder.path(), constant_rate({})).run();
  EXPECT_NE(plain.outcome.records.back().loss, expected.outcome.records.back().loss);
}

TEST(RouterTrainingRun, TwoPlansTrainAlike) {
  const WorkFolder folder;
  std::vector<double> losses;
  for (const char* strategy : {"single", "ep", "zebra"}) {
    TinyRun run(folder / strategy, in_fp64({{"strategy", strategy},
                                            {"train.router_jitter", "0.1"},
                                            {"train.router_z_loss", "0.001"},
                                            {"train.capacity_factor", "1.25"}}));
    losses.push_back(run.run(Checkpoints::kOff).outcome.records.back().loss);
    EXPECT_NEAR(losses.back(), losses.front(), 1e-10) << strategy;
  }
}

std::string router_refusal(const Settings& settings) {
  const WorkFolder folder;
  return error_of<ConfigError>([&] { TinyRun(folder / "run", settings); });
}

TEST(RouterTrainingRun, ContradictionsAreRefusedByName) {
  EXPECT_EQ(
      router_refusal({{"train.router_jitter", "0.1"}, {"routing.replay", "x.routes"}}),
      "[train.router_jitter] cannot go with routing.replay, whose choices no noise changes: leave one of "
      "both out");
  EXPECT_EQ(
      router_refusal({{"train.forced_balance", "true"}, {"routing.replay", "x.routes"}}),
      "[train.forced_balance] cannot go with routing.replay, which gives other choices: leave one of both "
      "out");
  EXPECT_EQ(router_refusal({{"train.forced_balance", "true"},
                            {"train.router_bias_rate", "0.001"},
                            {"model", "tiny-deepseek-v3"}}),
            "[train.forced_balance] cannot go with train.router_bias_rate, whose biases no choice hangs on: "
            "leave one of both out");
}

TEST(RouterTrainingRun, AnIgnoredAuxLossAlphaIsTold) {
  const WorkFolder folder;
  const auto note = [&](const std::string& name, double alpha, const Json& more = Json::object(),
                        const Settings& settings = {}) {
    Json config = read_json(HM_SOURCE_DIR "/configs/models/" + name + ".json");
    config["aux_loss_alpha"] = alpha;
    config.update(more);
    Settings all = {{"model", folder.file("m/config.json", config.dump())}};
    all.insert(all.end(), settings.begin(), settings.end());
    const Job job = job_from_overrides(all);
    return balance_note(job, load_model(job.model));
  };
  EXPECT_EQ(note("tiny-deepseek-v3", 0.001),
            "aux_loss_alpha 0.001 in the config of m is ignored, as in transformers, so nothing balances the "
            "experts. "
            "To balance them, give the config router_aux_loss_coef (with train.aux_group 1: of each "
            "sequence), or set "
            "train.router_bias_rate 0.001");
  const std::string of_v2 = note("tiny-deepseek-v2", 0.003);
  EXPECT_TRUE(of_v2.starts_with("aux_loss_alpha 0.003 in the config of m is ignored")) << of_v2;
  EXPECT_TRUE(of_v2.ends_with("of each sequence)")) << of_v2;  // it has no bias to move
  EXPECT_EQ(note("tiny-deepseek-v3", 0), "");
  EXPECT_EQ(note("tiny-deepseek-v3", 0.001, {{"router_aux_loss_coef", 0.01}}), "");
  EXPECT_EQ(note("tiny-deepseek-v3", 0.001, Json::object(), {{"train.router_bias_rate", "0.001"}}), "");
  EXPECT_EQ(note("tiny-llama", 0.001), "");
}

TEST(RouterTrainingRun, WhatTheAuxiliaryLossIsComputedOverIsToldWhereItIsNotTransformers) {
  const std::string folder = HM_SOURCE_DIR "/tests/data/parity/mixtral";
  const auto note = [&](Settings settings) {
    settings.insert(
        settings.begin(),
        {{"data.paths", HM_SOURCE_DIR "/README.md"}, {"data.tokenizer", "bytes"}, {"train.sequences", "8"}});
    const Job job = job_from_overrides(settings);
    return balance_note(job, load_model(folder));
  };
  EXPECT_TRUE(note({{"train.init_from", folder}})
                  .starts_with("the load-balancing loss is computed over each sequence, where transformers"));
  EXPECT_EQ(note({{"train.init_from", folder}, {"train.aux_group", "0"}}), "");
  EXPECT_EQ(note({{"train.init_from", folder}, {"train.aux_group", "8"}}), "");
  EXPECT_EQ(note({{"model", folder}}), "");
}

TEST(CollapseWatch, CountsStepsInARowAndTellsOnce) {
  ModelConfig model;
  model.num_experts = 8, model.top_k = 2;
  CollapseWatch watch(model);
  const std::vector<double> even(8, 8), bad = {30, 30, 4, 0, 0, 0, 0, 0};
  EXPECT_EQ(effective_experts(even), 8);
  EXPECT_EQ(effective_experts({32, 32, 0, 0, 0, 0, 0, 0}), 2);
  const auto steps = [&](const std::vector<double>& second, i64 count) {
    i64 found = 0;
    for (i64 i = 0; i < count; ++i) {
      for (const Collapse& collapse : watch.add({even, second})) {
        EXPECT_EQ(collapse.layer, 1);
        ++found;
      }
    }
    return found;
  };
  EXPECT_EQ(steps(bad, CollapseWatch::kSteps - 1), 0);
  EXPECT_EQ(steps(even, 1), 0);
  EXPECT_EQ(steps(bad, CollapseWatch::kSteps - 1), 0);
  EXPECT_EQ(steps(bad, 1), 1);
  EXPECT_EQ(steps(bad, 30), 0);
  EXPECT_EQ(steps({3, 0, 0, 0, 0, 0, 0, 0}, 30), 0) << "too few copies to tell";
}

TEST(LayerLoads, SmallCountsByHand) {
  ModelConfig model;
  model.num_layers = 2, model.num_experts = 4, model.top_k = 1;
  model.dense_layer = {true, false};
  const std::vector<LayerLoad> loads = layer_loads(model, {{0, 0, 0, 0}, {6, 2, 0, 0}}, {0, 2});
  ASSERT_EQ(loads.size(), 1u);
  EXPECT_EQ(loads[0].layer, 1);
  EXPECT_EQ(loads[0].max_over_mean, 3);
  EXPECT_DOUBLE_EQ(loads[0].cv, std::sqrt((16 + 0 + 4 + 4) / 4.0) / 2);
  EXPECT_EQ(loads[0].dead, 2);
  EXPECT_EQ(loads[0].dropped, 0.25);
}

}  // namespace
}  // namespace hetermoe
