#include "hetermoe/train/job/usual_choices.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace hetermoe
