#include "hetermoe/train/job/usual_choices.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/error_of.h"

// What a job has where nobody wrote it.
namespace hetermoe {
namespace {

using Written = std::vector<std::pair<std::string, std::string>>;

Job usual_job(const Written& overrides) { return job_from_overrides(overrides); }

TEST(UsualChoices, ADenseModelHasTheStrategyEpWhereNoneIsWritten) {
  const Job dense = usual_job({{"model", "tiny-llama"}});
  EXPECT_EQ(dense.strategy, "ep");
  EXPECT_EQ(usual_notes(dense, load_model("tiny-llama")),
            (std::vector<std::string>{
                "strategy is ep, the default for a model without experts such as tiny-llama"}));
  EXPECT_EQ(usual_job({{"model", "tiny"}}).strategy, "zebra");
  EXPECT_TRUE(usual_notes(usual_job({{"model", "tiny"}}), load_model("tiny")).empty());
  for (const char* written : {"zebra", "single", "ep"}) {
    const Job job = usual_job({{"model", "tiny-llama"}, {"strategy", written}});
    EXPECT_EQ(job.strategy, written);
    EXPECT_TRUE(usual_notes(job, load_model("tiny-llama")).empty());
    EXPECT_EQ(parse_job("model: tiny-llama\nstrategy: " + std::string(written), "job.yaml", {}).strategy,
              written);
  }
  // The resolved job has it written.
  const Job again = parse_job(to_json(dense).dump(), "job.json", {});
  EXPECT_EQ(again.strategy, "ep");
  EXPECT_FALSE(again.usual.strategy);
  EXPECT_EQ(usual_job({{"model", "nowhere"}}).strategy, "zebra");
}

TEST(UsualChoices, WeightsThatHaveLearnedHaveASmallerLearningRateUnlessOneIsWritten) {
  const auto rate = [](const Written& overrides) { return usual_job(overrides).train.learning_rate; };
  const std::pair<std::string, std::string> init = {"train.init_from", "m"}, lora = {"train.lora.rank", "8"};
  EXPECT_EQ(rate({{"model", "tiny"}}), 1e-3);
  EXPECT_EQ(rate({{"model", "tiny"}, lora}), 1e-3);
  EXPECT_EQ(rate({init}), 5e-5);
  EXPECT_EQ(rate({init, lora}), 1e-4);
  EXPECT_EQ(rate({init, {"train.learning_rate", "0.001"}}), 1e-3);
  EXPECT_EQ(rate({init, lora, {"train.learning_rate", "0"}}), 0);
  EXPECT_EQ(parse_job("train: {init_from: m, learning_rate: 0.001}", "job.yaml", {}).train.learning_rate,
            1e-3);
  EXPECT_EQ(parse_job("train: {init_from: m}", "job.yaml", {}).train.learning_rate, 5e-5);
  EXPECT_EQ(parse_job(to_json(usual_job({init})).dump(), "job.json", {lora}).train.learning_rate, 5e-5);
  const ModelConfig model = load_model("tiny");
  const auto notes = [&](const Written& overrides) { return usual_notes(usual_job(overrides), model); };
  EXPECT_EQ(
      notes({init}),
      (std::vector<std::string>{"train.learning_rate is 5e-05, the default for weights of train.init_from"}));
  EXPECT_EQ(
      notes({init, lora}),
      (std::vector<std::string>{
          "train.learning_rate is 0.0001, the default for adapters beside weights of train.init_from"}));
  EXPECT_TRUE(notes({init, {"train.learning_rate", "5e-5"}}).empty());
  EXPECT_TRUE(notes({{"model", "tiny"}}).empty());
}

TEST(UsualChoices, KeysOfWhatIsOffAreNamed) {
  const auto notes = [](const Written& overrides) { return idle_keys_notes(usual_job(overrides)); };
  using Notes = std::vector<std::string>;
  EXPECT_TRUE(notes({}).empty());
  EXPECT_EQ(notes({{"routing.every", "2"}, {"routing.weights", "true"}}),
            Notes{"routing.every 2, routing.weights true have no effect without routing.record"});
  EXPECT_TRUE(notes({{"routing.every", "2"}, {"routing.record", "a.routes"}}).empty());
  EXPECT_EQ(notes({{"train.decay", "linear"}}),
            Notes{"train.decay linear has no effect without train.schedule wsd"});
  EXPECT_TRUE(notes({{"train.decay", "linear"}, {"train.schedule", "wsd"}}).empty());
  EXPECT_EQ(notes({{"plan.head_parts", "2"}}), Notes{"plan.head_parts 2 has no effect without plan.team"});
  EXPECT_TRUE(notes({{"plan.head_parts", "2"}, {"plan.team", "2"}}).empty());
  EXPECT_TRUE(notes({{"plan.head_parts", "2"}, {"strategy", "sp-ep"}}).empty());
  EXPECT_EQ(notes({{"grow.factor", "3"}}), Notes{"grow.factor 3 has no effect without grow.at"});
  EXPECT_EQ(notes({{"balancer.every", "3"}, {"balancer.topology", "ring"}}),
            Notes{"balancer.every 3, balancer.topology ring have no effect without balancer.name"});
  EXPECT_EQ(notes({{"balancer.name", "lpt"}, {"balancer.every", "3"}, {"balancer.topology", "ring"}}),
            Notes{"balancer.topology ring has no effect without balancer.name lplb"});
  EXPECT_TRUE(notes({{"balancer.name", "none+guests"}, {"balancer.guests", "3"}}).empty());
  for (const auto& entry : std::filesystem::directory_iterator(HM_SOURCE_DIR "/configs/jobs")) {
    const std::vector<std::string> of_file = idle_keys_notes(load_job(entry.path().string(), {}));
    EXPECT_TRUE(of_file.empty()) << entry.path() << ": " << of_file[0];
  }
}

TEST(UsualChoices, ABalancerThatGoesByNoLoadsIsRefused) {
  for (const char* name : {"even", "asym-ea", "level_by_device+exact"}) {
    try {
      usual_job({{"balancer.name", name}});
      ADD_FAILURE() << name;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.what(),
                "[balancer.name] got " + std::string(name) +
                    ", which chooses the same owners whatever the loads: expected none or one of "
                    "lpt, eplb, lplb, relibra, locality");
    }
  }
  EXPECT_EQ(usual_job({{"balancer.name", "lpt+exact"}}).balancer.name, "lpt+exact");
}

/// Jobs have names as models and clusters do.
TEST(UsualChoices, AJobMayBeAKnownName) {
  EXPECT_EQ(load_job("tour", {}).output, "out/tour");
  const std::string error = error_of([&] { load_job("turo", {}); });
  EXPECT_NE(error.find("Did you mean \"tour\"?"), std::string::npos) << error;
}

}  // namespace
}  // namespace hetermoe
