#include <gtest/gtest.h>

#include <malloc.h>

#include "hetermoe/cli/routing_placements.h"
#include "hetermoe/routing/writer.h"
#include "tests/cli/routing_job.h"

namespace hetermoe {
namespace {

TEST(RoutingCommand, ClusterShowsWhatPlacingByUseSaves) {
  const WorkFolder folder;
  const std::string path = made_trace(folder, {"--domains", "2", "--domain-spread", "2"});
  const ProgramResult shown = run_hetermoe({"routing", "cluster", path, "--groups", "2", "--prefix", "8"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  for (const char* part :
       {"linear", "greedy", "exact", "capped", "by the prefix", "sent to groups by chance"})
    EXPECT_TRUE(contains(shown.out, part)) << part << "\n" << shown.out;
  const ProgramResult result =
      run_hetermoe({"routing", "cluster", path, "--groups", "2", "--by", "domain", "--json", "--output",
                    folder / "page", "-o", folder / "clusters.json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = parse_json(result.out, "output");
  EXPECT_EQ(json.at("placements").size(), 5u);
  EXPECT_LE(json.at("placements")[3].at("over_linear").get<double>(), 1);
  EXPECT_EQ(json, Json::parse(read_text(folder / "clusters.json")));
  EXPECT_TRUE(contains(read_text(folder / "page/clusters.html"), "cluster domain-0"));
  const ProgramResult nodes =
      run_with_job({"routing", "cluster", path, "--groups", "node", "--strategy", "ep"});
  EXPECT_EQ(nodes.code, 0) << nodes.err;
}

TEST(RoutingCommand, ClusterTellsDomainsBesideShuffledOnes) {
  const WorkFolder folder;
  const std::string path = folder / "made.routes";
  ASSERT_EQ(run_hetermoe({"routing", "make", "--model", "tiny", "--seq", "16", "--sequences", "40",
                          "--domains", "2", "--domain-spread", "2", "-o", path})
                .code,
            0);
  const ProgramResult shown = run_hetermoe({"routing", "cluster", path, "--groups", "2"});
  EXPECT_TRUE(contains(shown.out, "domains told by")) << shown.out << shown.err;
  EXPECT_TRUE(contains(shown.out, "logistic regression")) << shown.out;
  ASSERT_EQ(run_hetermoe({"routing", "cluster", path, "--groups", "2", "--output", folder / "told"}).code, 0);
  const std::string page = read_text(folder / "told/clusters.html");
  for (const char* part : {"domain told by nearest mean", "domain told by logistic regression"})
    EXPECT_TRUE(contains(page, part)) << part;
  const ProgramResult result = run_hetermoe({"routing", "cluster", path, "--groups", "2", "--json"});
  const Json told = parse_json(result.out, "output").at("domains").at("told");
  ASSERT_EQ(told.size(), 2u);
  for (const Json& way : told) EXPECT_GT(way.at("vote").get<double>(), 0.9) << way;
  // Too few sequences of a domain to tell by: nobody was asked, and no page says that nobody was right.
  ASSERT_EQ(run_hetermoe({"routing", "make", "--model", "tiny", "--seq", "16", "--sequences", "4",
                          "--domains", "2", "-o", path})
                .code,
            0);
  ASSERT_EQ(run_hetermoe({"routing", "cluster", path, "--groups", "2", "--output", folder / "page"}).code, 0);
  EXPECT_FALSE(contains(read_text(folder / "page/clusters.html"), "domain told by"));
}

/// Steps are read one after another: what is told of them is what is told of one step with all sequences.
TEST(RoutingCommand, ClusterOfStepsIsThatOfOneStepWithAllSequences) {
  const WorkFolder folder;
  const std::string steps = made_trace(folder, {"--domains", "2", "--domain-spread", "2"});
  const RoutingTrace trace(steps);
  const std::string joined = folder / "joined.routes";
  RoutingWriter writer(joined, trace.header());
  writer.step(read_steps(trace, 0, 1));
  writer.finish();
  for (const char* by : {"routes", "domain"}) {
    const auto clusters_of = [&](const std::string& path) {
      Json json =
          json_of({"routing", "cluster", path, "--groups", "3", "--by", by, "--prefix", "8", "--json"});
      json.erase("trace");
      return json;
    };
    const Json of_steps = clusters_of(steps);
    EXPECT_EQ(of_steps, clusters_of(joined));
    EXPECT_EQ(of_steps.at("group_of_sequence").size(), 8U);
    EXPECT_GT(of_steps.at("placements")[0].at("padded").get<double>(), 0);
  }
}

TEST(RoutingCommand, ClusterKeepsCountsOfAllStepsAndChoicesOfNone) {
  const WorkFolder folder;
  const std::string path = folder / "made.routes";
  ASSERT_EQ(run_hetermoe({"routing", "make", "--model", "tiny", "--seq", "256", "--sequences", "4", "--steps",
                          "8", "-o", path})
                .code,
            0);
  const RoutingTrace trace(path);
  RoutingClusterArguments options;
  options.prefix = 8;
  ClusterResult result;
  result.header = trace.header();
  const std::size_t before = mallinfo2().uordblks;
  read_activations(options, trace, {0, 7}, result);
  EXPECT_LT(mallinfo2().uordblks, before + static_cast<std::size_t>(result.step.num_tokens()) *
                                               result.header.layers.size() * sizeof(std::uint16_t));
  EXPECT_TRUE(result.has_choices);
  EXPECT_FALSE(result.step.has_choices());
  EXPECT_EQ(result.rows.size(), 32U);
  EXPECT_EQ(result.prefix.size(), 32U);
}

TEST(RoutingCommand, ClusterRefusesWhatItCannotDo) {
  const WorkFolder folder;
  const std::string path = made_trace(folder);
  const auto error = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"routing", "cluster", path});
    const ProgramResult result = run_hetermoe(words);
    EXPECT_EQ(result.code, 2) << result.out;
    return result.err;
  };
  EXPECT_TRUE(contains(error({"--groups", "2", "--by", "domain"}), "got sequences without domains"));
  EXPECT_TRUE(
      contains(error({"--groups", "2", "--load-cap", "0.9"}), "[--load-cap] got 0.9, expected at least 1"));
  EXPECT_TRUE(contains(error({"--groups", "1"}), "expected at least 2"));
  EXPECT_TRUE(contains(error({"--groups", "2", "--load-cap", "nan"}), "[--load-cap] got nan, expected"));
  EXPECT_TRUE(contains(error({"--groups", "1000"}), "expected at most"));
  // No machine has room for as many: refused before a list of them is made.
  EXPECT_TRUE(contains(error({"--groups", "1000000000000000"}), "[--groups] got 1000000000000000 groups"));
  EXPECT_TRUE(contains(error({"--groups", "node"}), "without a job"));
  EXPECT_TRUE(
      contains(error({"--groups", "2", "--clusters", "100"}), "[--clusters] got 100, expected 2 to 8"));
  EXPECT_TRUE(contains(error({"--groups", "2", "--prefix", "17"}), "expected at least the prefix of 17"));
  EXPECT_TRUE(contains(error({"--groups", "2", "--by", "topic"}), "expected routes or domain"));
  EXPECT_TRUE(contains(
      error({"--groups", "[[0,1],[1,2,3]]", "--cluster", "demo", "--model", "tiny", "--strategy", "ep"}),
      "device 1 is in it twice"));
  EXPECT_TRUE(
      contains(error({"--groups", "[[0,1],[2]]", "--cluster", "demo", "--model", "tiny", "--strategy", "ep"}),
               "is in no group"));
}

}  // namespace
}  // namespace hetermoe
