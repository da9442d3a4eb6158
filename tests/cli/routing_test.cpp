#include <gtest/gtest.h>

#include <set>

#include "hetermoe/routing/writer.h"
#include "tests/cli/routing_job.h"
#include "tests/routing/golden_trace.h"

namespace hetermoe {
namespace {

TEST(RoutingCommand, MakesTracesOfTheGiniCoefficientThatIsAskedFor) {
  const WorkFolder folder;
  const std::string path = folder / "made.routes";
  for (const auto& [gini, mock] : {std::pair{0.105, 2.35}, std::pair{0.24, 1.5}}) {
    const ProgramResult made =
        run_hetermoe({"routing", "make", "--model", "deepseek-v2-lite", "--seq", "1024", "--sequences", "2",
                      "--gini", std::to_string(gini), "--mock-ratio", std::to_string(mock), "-o", path});
    ASSERT_EQ(made.code, 0) << made.err;
    const ProgramResult shown = run_hetermoe(
        {"routing", "analyse", path, "--window", "all", "--json", "--against", folder / "made-mock.routes"});
    ASSERT_EQ(shown.code, 0) << shown.err;
    const Json json = parse_json(shown.out, "output");
    const double got = json.at("gini").at("mean").get<double>();
    EXPECT_NEAR(got / gini, 1, 0.01);
    EXPECT_NEAR(json.at("against").at("gini").at("mean").get<double>() / got / mock, 1, 0.02);
  }
}

TEST(RoutingCommand, EveryCommandBelowHasHelpWithAnExampleAndJson) {
  for (const std::string name : {"analyse", "balance", "cluster", "import", "make", "record"}) {
    const ProgramResult result = run_hetermoe({"routing", name, "--help"});
    EXPECT_EQ(result.code, 0) << name;
    EXPECT_TRUE(contains(result.out, "Example:\n  hetermoe routing " + name)) << result.out;
    EXPECT_TRUE(contains(result.out, "--json")) << name;
  }
}

TEST(RoutingCommand, AnalysesATraceWithAndWithoutAJob) {
  const WorkFolder folder;
  const std::string path = made_trace(folder, {"--zipf", "1"});
  const ProgramResult alone = run_hetermoe(
      {"routing", "analyse", path, "--ep", "1,2", "--window", "step,1,all", "--output", folder / "page"});
  ASSERT_EQ(alone.code, 0) << alone.err;
  for (const char* part : {"Gini", "noise floor", "2 ranks", "band by the Gini coefficient", "wrote "})
    EXPECT_TRUE(contains(alone.out, part)) << part << "\n" << alone.out;
  EXPECT_TRUE(contains(alone.out, "1 rank ")) << alone.out;
  EXPECT_FALSE(contains(alone.out, "1 ranks")) << alone.out;
  EXPECT_TRUE(contains(read_text(folder / "page/routing.html"), "class=\"cell\""));
  EXPECT_TRUE(read_text(folder / "page/routing.csv").starts_with("layer,expert,copies,share\n"));
  const ProgramResult drawn =
      run_with_job({"routing", "analyse", path, "--output", folder / "under"}, {"--strategy", "ep"});
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  // The page has the terminal's table and what is concluded from it.
  const std::string page = read_text(folder / "under/routing.html");
  for (const char* part : {"band by the Gini coefficient: ", "history costs: ", "rows between nodes"}) {
    EXPECT_TRUE(contains(drawn.out, part)) << part << "\n" << drawn.out;
    EXPECT_TRUE(contains(page, part)) << part;
  }
  for (const char* part :
       {"Layer by layer", "noise floor", "time ratio</th>", "time ratio: the slowest of them"})
    EXPECT_TRUE(contains(page, part)) << part;
  const ProgramResult under = run_with_job({"routing", "analyse", path, "--json"}, {"--strategy", "ep"});
  ASSERT_EQ(under.code, 0) << under.err;
  const Json json = parse_json(under.out, "output");
  EXPECT_GE(json.at("under_plan").at("time_ratio").get<double>(), 1);
  EXPECT_GT(json.at("under_plan").at("history_cost").get<double>(), 0);
}

TEST(RoutingCommand, SimulateTakesATrace) {
  const WorkFolder folder;
  const std::string path = made_trace(folder, {"--zipf", "2"});
  const auto step = [&](const std::string& routing) {
    const ProgramResult result = run_with_job({"simulate", "--routing", routing, "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return parse_json(result.out, "output").at("step_s").get<double>();
  };
  EXPECT_EQ(step(path), step(path + ":1"));
  EXPECT_NE(step(path), step("uniform"));
  EXPECT_GT(step(path + ":0..1"), 0);
}

TEST(RoutingCommand, BalanceShowsARowForEachBalancer) {
  const WorkFolder folder;
  const std::string path = made_trace(folder, {"--zipf", "1"});
  const ProgramResult result =
      run_with_job({"routing", "balance", path, "--balancers", "none,lpt,eplb", "--replicas", "2", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json rows = parse_json(result.out, "output").at("rows");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].at("over_first"), 1.0);
  EXPECT_EQ(rows[2].at("balancer"), "eplb");
}

TEST(RoutingCommand, TrainRecordsWhatAnalyseReads) {
  const WorkFolder folder;
  const std::string path = folder / "run.routes";
  const ProgramResult trained =
      run_hetermoe(train_words(folder, {"--routing.record", path, "--routing.every", "2"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(contains(trained.out, "time ratio"));
  const Json line = Json::parse(
      read_text(folder / "run/metrics.jsonl").substr(0, read_text(folder / "run/metrics.jsonl").find('\n')));
  EXPECT_GT(line.at("expert_gini").get<double>(), 0);
  EXPECT_GE(line.at("time_ratio").get<double>(), 1);
  EXPECT_GE(line.at("rank_max_over_mean").get<double>(), 1);
  EXPECT_TRUE(contains(read_text(folder / "run/report.html"), "Load of the experts"));
  const ProgramResult shown = run_hetermoe({"routing", "analyse", path, "--json"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(parse_json(shown.out, "output").at("steps"), 3);
}

TEST(RoutingCommand, WhatIsRecordedAheadIsReplayed) {
  const WorkFolder folder;
  const std::string path = folder / "ahead.routes";
  const auto record = [&](const std::string& max_bytes) {
    const ProgramResult recorded = run_with_job({"routing", "record", "--steps", "2", "-o", path, "--json"},
                                                {"--output", folder / "none", "--data.max_bytes", max_bytes});
    EXPECT_EQ(recorded.code, 0) << recorded.err;
    EXPECT_EQ(parse_json(recorded.out, "output").at("steps"), 2);
    return run_hetermoe(train_words(folder, {"--routing.replay", path, "--train.steps", "2"}));
  };
  const ProgramResult of_other_text = record("100000");
  EXPECT_EQ(of_other_text.code, 2);
  EXPECT_TRUE(contains(of_other_text.err, "was recorded on other text: got checksum ")) << of_other_text.err;
  const ProgramResult trained = record("200000");
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string metrics = read_text(folder / "run/metrics.jsonl");
  EXPECT_EQ(Json::parse(metrics.substr(0, metrics.find('\n'))).at("replayed_choices"), 1.0);
  const ProgramResult longer =
      run_hetermoe(train_words(folder, {"--routing.replay", path, "--train.steps", "3"}));
  EXPECT_EQ(longer.code, 2);
  EXPECT_TRUE(contains(longer.err, "sequence 8 of the data is not in the trace")) << longer.err;
  // A job that replays and balances is recorded as it is: nothing is replayed, so nothing is foreseen.
  const ProgramResult again =
      run_with_job({"routing", "record", "--steps", "2", "-o", folder / "again.routes"},
                   {"--output", folder / "none", "--data.max_bytes", "200000", "--routing.replay", path,
                    "--balancer.name", "lpt", "--balancer.knows", "foresight"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(read_text(folder / "again.routes"), read_text(path));
}

class BadRouting : public ::testing::Test {
 protected:
  void expect_refused(const std::vector<std::string>& words, const std::vector<std::string>& parts) {
    const ProgramResult result = run_hetermoe(words);
    SCOPED_TRACE(result.err);
    EXPECT_EQ(result.code, 2);
    EXPECT_TRUE(result.err.starts_with("["));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
    for (const std::string& part : parts) EXPECT_TRUE(contains(result.err, part)) << part;
    // A run says what it learns from, and whose times follow, before it begins.
    EXPECT_TRUE(result.out.empty() || result.out.starts_with("learns from ")) << result.out;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), result.out.empty() ? 0 : 2);
  }
  std::vector<std::string> with_job(std::vector<std::string> words) {
    words.insert(words.end(), kJob.begin(), kJob.end());
    return words;
  }
  WorkFolder folder;
};

TEST_F(BadRouting, Commands) {
  expect_refused({"routing"}, {"[routing] got no command, expected one. Known: ", "analyse", "make"});
  expect_refused({"routing", "mak"}, {"[routing mak] unknown command. Known: ", "Did you mean \"make\"?"});
  expect_refused({"routing", "make", "--ginny", "1"},
                 {"[--ginny] unknown option of routing make. Did you mean \"--gini\"?"});
}

TEST_F(BadRouting, Make) {
  const std::string out = folder / "x.routes";
  expect_refused({"routing", "make", "--model", "tiny", "--gini", "0.99", "-o", out},
                 {"[gini] got 0.99, expected "});
  expect_refused({"routing", "make", "--model", "tiny", "--sequences", "2", "--microbatches", "3", "-o", out},
                 {"[--microbatches] got 3, expected at most --sequences (2)"});
  expect_refused({"routing", "make", "--mock-ratio", "2", "-o", out},
                 {"[--mock-ratio] got 2 without --gini"});
  expect_refused({"routing", "make", "--gini", "0.2", "--zipf", "1", "-o", out},
                 {"[--gini] got 0.2 and --zipf 1"});
  expect_refused({"routing", "make", "--domain-spread", "1", "-o", out},
                 {"[--domain-spread] got 1 without --domains"});
  EXPECT_TRUE(folder.contents().empty());
}

TEST_F(BadRouting, Files) {
  expect_refused({"routing", "analyse", folder / "none.routes"}, {"none.routes]", "No such file"});
  expect_refused({"routing", "analyse", folder.file("text.routes", "this is no trace at all, but text")},
                 {"text.routes at byte 0] is no routing trace: got \"this is \""});
  const std::string made = made_trace(folder);
  std::string bytes = read_text(made);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  expect_refused({"routing", "analyse", folder.file("damaged.routes", bytes)},
                 {"damaged.routes at byte ", "the frame is damaged: got checksum "});
  const std::string cut = folder.file("cut.routes", read_text(made).substr(0, 300));
  const ProgramResult result = run_hetermoe({"routing", "analyse", cut});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "cut.routes is cut: its last "));
  EXPECT_TRUE(contains(result.err, "has no whole step"));
}

TEST_F(BadRouting, Arguments) {
  const std::string made = made_trace(folder);
  expect_refused({"routing", "analyse", made, "--window", "day"},
                 {"[--window] got \"day\", expected microbatch, step, all or"});
  expect_refused({"routing", "analyse", made, "--ep", "99"}, {"[--ep] got 99, expected 1 to "});
  expect_refused({"routing", "analyse", made, "--steps", "2..1"}, {"[--steps] got \"2..1\""});
  expect_refused({"routing", "analyse", made, "--steps", "7"}, {"no window of \"step\" has a token"});
  const std::string other = folder / "other.routes";
  ASSERT_EQ(run_hetermoe(
                {"routing", "make", "--model", "tiny-qwen3", "--seq", "16", "--sequences", "4", "-o", other})
                .code,
            0);
  expect_refused({"routing", "analyse", made, "--against", other}, {"[--against] "});
  expect_refused(
      with_job({"routing", "balance", made, "--balancers", "none+guests", "--plan.recompute", "resend"}),
      {"[balancer none+guests] makes a plan that cannot run: ", "resend"});
  expect_refused(with_job({"routing", "balance", made, "--balancers", "lbt"}),
                 {"unknown balancer \"lbt\".", "Did you mean \"lpt\"?"});
  expect_refused(with_job({"routing", "balance", made, "--balancers", "lplb", "--topology", "cuba"}),
                 {"[topology] got \"cuba\"", "Did you mean \"cube\"?"});
  expect_refused(with_job({"routing", "balance", made, "--balancers", "eplb+exakt"}), {"exakt", "\"exact\""});
  expect_refused(with_job({"routing", "balance", made, "--balancers", "locality", "--load-cap", "0.9"}),
                 {"[--load-cap] got 0.9, expected 0 (none) or at least 1"});
  expect_refused(with_job({"routing", "balance", made, "--knows", "all"}),
                 {"[--knows] unknown value \"all\". Known: history, foresight"});
  expect_refused(with_job({"routing", "balance", made, "--steps", "0"}),
                 {"got 1 whole steps, expected at least 2"});
  expect_refused(with_job({"routing", "balance", made, "--balancers", "oracle+exact"}),
                 {"got oracle+exact, expected oracle alone"});
  expect_refused({"routing", "balance", made}, {"[job] got none, expected the job under whose plan"});
  expect_refused(with_job({"compare", "--balancers", "none", "--routing", "zipf:1.2"}),
                 {"[--routing] got zipf:1.2 with --balancers, expected a routing trace that is there"});
}

TEST_F(BadRouting, Clusters) {
  const std::string made = made_trace(folder);
  expect_refused({"routing", "cluster", made, "--model", "demo", "--strategy", "ep", "--groups", "node"},
                 {"made.routes] ", " as model demo has"});
  expect_refused({"routing", "cluster", made, "--groups", "2", "--prefix", "16"},
                 {"[--prefix] got 16, which is all of every sequence"});
  expect_refused(with_job({"routing", "cluster", made, "--groups", "node"}),
                 {"[--groups] got node, which is one group of the ", " zebra plan", "--strategy ep"});
}

TEST_F(BadRouting, WhatARunRefusesADryRunRefuses) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--dry-run"}}) {
    const auto refused = [&](const std::vector<std::pair<std::string, std::string>>& settings,
                             const std::vector<std::string>& parts) {
      std::vector<std::string> words = with_job({"train", "--output", folder / "run"});
      words.insert(words.end(), more.begin(), more.end());
      for (const auto& [key, value] : settings) words.insert(words.end(), {"--" + key, value});
      expect_refused(words, parts);
    };
    refused({{"balancer.knows", "foresight"}},
            {"[balancer.name] got none, expected the balancer that balancer.knows"});
    refused({{"balancer.name", "locality"}, {"strategy", "ep"}},
            {"[balancer.knows] got history, expected foresight"});
    refused({{"routing.replay", folder / "none.routes"}}, {"none.routes", "No such file"});
  }
}

TEST(RoutingCommand, AStepWithMoreSequencesThanThePlansIsSaidSo) {
  const WorkFolder folder;
  const std::string made = made_trace(folder, {"--zipf", "1"});
  for (const std::vector<std::string>& words : {std::vector<std::string>{"simulate", "--routing", made},
                                                {"routing", "balance", made},
                                                {"routing", "analyse", made}}) {
    const ProgramResult result = run_with_job(words, {"--train.sequences", "2"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(contains(result.err,
                         "a step of the trace has 4 sequences; of them the plan's step takes the first 2"))
        << result.err;
  }
}

TEST_F(BadRouting, AnotherModelOrStep) {
  const std::string made = made_trace(folder);
  expect_refused({"simulate", "--model", "demo", "--routing", made}, {"made.routes] ", " as model demo has"});
  expect_refused({"simulate", "--model", "tiny", "--train.seq_len", "16", "--train.sequences", "8",
                  "--train.microbatches", "2", "--routing", made},
                 {"made.routes] got 4 sequences, expected 8 as the plan's step has. Give the job that "});
  expect_refused({"simulate", "--model", "tiny", "--train.seq_len", "8", "--train.sequences", "4",
                  "--train.microbatches", "2", "--routing", made},
                 {"made.routes] sequence 0: got 16 tokens, expected 8 as the plan has (seq_len)"});
  expect_refused({"simulate", "--routing", folder / "none.routes"},
                 {"[--routing] got \"", "a routing trace that is there"});
  expect_refused(with_job({"simulate", "--routing", made + ":5"}),
                 {"has no whole step from 5 to 5: got steps 0 to 1"});
}

TEST_F(BadRouting, Recording) {
  expect_refused(train_words(folder, {"--routing.every", "0"}),
                 {"[--routing.every] ", "got 0, expected >= 1"});
  expect_refused(train_words(folder, {"--routing.detail", "all"}),
                 {"[--routing.detail] unknown value \"all\". Known: choices, counts"});
  expect_refused(
      {"compare", "--model", "tiny", "--strategies", "zebra,ep", "--routing.record", folder / "x.routes"},
      {"[routing.record] got ", "with 2 strategies, expected none: all would write the same trace"});
}

TEST(RoutingCommand, CompareShowsBalancersOnATraceAndWritesAPage) {
  const WorkFolder folder;
  const std::string path = made_trace(folder, {"--zipf", "1"});
  const std::vector<std::string> words = {"compare",   "--balancers", "none,lpt,eplb,relibra,locality,oracle",
                                          "--routing", path,          "--strategy",
                                          "ep",        "--replicas",  "2"};
  std::vector<std::string> as_json = words;
  as_json.insert(as_json.end(), {"--json", "--output", folder / "page"});
  const ProgramResult result = run_with_job(as_json);
  ASSERT_EQ(result.code, 0) << result.err;
  const Json rows = parse_json(result.out, "output").at("rows");
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[0].at("over_first"), 1.0);
  const double first = rows[0].at("step_s").get<double>(), first_moves = rows[0].at("move_s").get<double>();
  for (const Json& row : rows) {
    const double step = row.at("step_s").get<double>(), moves = row.at("move_s").get<double>();
    EXPECT_LE(step, 1.005 * first) << row.dump();
    EXPECT_DOUBLE_EQ(row.at("step_and_moves_s").get<double>(), step + moves);
    EXPECT_DOUBLE_EQ(row.at("over_first").get<double>(), (step + moves) / (first + first_moves))
        << row.dump();
  }
  for (const char* key :
       {"time_ratio", "rank_max_over_mean", "moved_bytes", "move_s", "step_s", "kept_steps", "lent_bytes"})
    EXPECT_TRUE(rows[1].contains(key)) << key;
  for (const Json& row : rows) {  // a node cannot be later than its devices
    EXPECT_GE(row.at("bound_of_nodes").get<double>(), 1 - 1e-9) << row.dump();
    EXPECT_LE(row.at("bound_of_nodes").get<double>(), row.at("time_ratio").get<double>() + 1e-9)
        << row.dump();
  }
  const std::string page = read_text(folder / "page/balance.html");
  for (const char* part : {"Device by expert, before and after", "Time ratio of each step", "class=\"cell\"",
                           "V100/1000#", "<li>step and moves: the last step", "<li>node rows: "})
    EXPECT_TRUE(contains(page, part)) << part;
  const ProgramResult table = run_with_job(words);
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_TRUE(contains(table.out, "moved a step")) << table.out;
  const ProgramResult one = run_with_job({"compare", "--balancers", "none,lpt", "--routing", path + ":1"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_TRUE(contains(one.out, "the step's own choices")) << one.out;
}

TEST(RoutingCommand, APlanThatFitsUnderNoBalancerEndsWithThatLine) {
  const WorkFolder folder;
  const std::string path = folder / "large.routes";
  ASSERT_EQ(run_hetermoe({"routing", "make", "--model", "qwen3-30b-a3b", "--seq", "64", "--sequences", "8",
                          "-o", path})
                .code,
            0);
  std::vector<std::string> words = {"compare",
                                    "--balancers",
                                    "none,lpt",
                                    "--routing",
                                    path,
                                    "--model",
                                    "qwen3-30b-a3b",
                                    "--cluster",
                                    "rtx4090x8",
                                    "--strategy",
                                    "ep",
                                    "--train.seq_len",
                                    "64",
                                    "--train.sequences",
                                    "8",
                                    "--train.microbatches",
                                    "1"};
  const ProgramResult table = run_hetermoe(words);
  EXPECT_EQ(table.code, 1) << table.err;
  const std::size_t last = table.out.rfind("\n\n");
  ASSERT_NE(last, std::string::npos) << table.out;
  EXPECT_TRUE(table.out.substr(last).starts_with("\n\nthe plan does not fit: device RTX4090#")) << table.out;
  words.emplace_back("--json");
  const ProgramResult json = run_hetermoe(words);
  EXPECT_EQ(json.code, 1) << json.err;
  for (const Json& row : parse_json(json.out, "output").at("rows")) EXPECT_EQ(row.at("fits"), false);
}

TEST(RoutingCommand, CompareRefusesWhatItCannotDo) {
  const WorkFolder folder;
  const std::string path = made_trace(folder);
  const auto error = [&](const std::vector<std::string>& words) {
    const ProgramResult result = run_with_job(words);
    EXPECT_EQ(result.code, 2) << result.out;
    return result.err;
  };
  EXPECT_TRUE(contains(error({"compare", "--balancers", "none,elpb", "--routing", path}), "eplb"));
  EXPECT_TRUE(contains(error({"compare", "--balancers", "none,orakle", "--routing", path}), "oracle"));
  EXPECT_TRUE(
      contains(error({"compare", "--balancers", "none"}), "[--routing] got nothing with --balancers"));
  EXPECT_TRUE(
      contains(error({"compare", "--balancers", "none", "--routing", path, "--strategies", "ep,zebra"}),
               "expected one, under whose plan all are"));
  EXPECT_TRUE(contains(error({"compare", "--balancers", "none", "--routing", path + ":7"}), "has no step 7"));
}

TEST(RoutingCommand, ABalancerThatCannotRunIsLeftOutByName) {
  const WorkFolder folder;
  const std::string path = made_trace(folder);
  const auto compared = [&](const std::string& balancers) {
    return run_with_job({"compare", "--balancers", balancers, "--routing", path, "--strategy", "ep",
                         "--plan.recompute", "resend"});
  };
  const ProgramResult some = compared("none+guests,none,lpt");
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_TRUE(some.err.starts_with("none+guests does not run: [balancer none+guests] makes a plan"))
      << some.err;
  EXPECT_FALSE(contains(some.out, "none+guests")) << some.out;
  EXPECT_TRUE(contains(some.out, "\nnone ") && contains(some.out, "\nlpt ")) << some.out;
  EXPECT_TRUE(contains(some.out, "over none")) << some.out;
  const ProgramResult no = compared("none+guests,relibra");
  EXPECT_EQ(no.code, 2);
  EXPECT_TRUE(no.err.starts_with("[balancer none+guests] makes a plan that cannot run")) << no.err;
}

TEST(RoutingCommand, RecordTakesSixConditions) {
  const WorkFolder folder;
  const auto record = [&](const std::string& condition) {
    return run_with_job(
        {"routing", "record", "--condition", condition, "-o", folder / (condition + ".routes"), "--json"},
        {"--train.validation_sequences", "4", "--data.max_bytes", "200000", "--output", folder / "run"});
  };
  std::set<std::string> traces;
  for (const std::string condition : {"text", "heldout", "shuffled", "unigram", "mock", "constant"}) {
    const ProgramResult result = record(condition);
    ASSERT_EQ(result.code, 0) << condition << result.err;
    traces.insert(read_text(folder / (condition + ".routes")));
    const ProgramResult shown =
        run_hetermoe({"routing", "analyse", folder / (condition + ".routes"), "--json"});
    EXPECT_EQ(shown.code, 0) << shown.err;
  }
  EXPECT_EQ(traces.size(), 6u);
  EXPECT_TRUE(contains(record("noise").err, "--condition"));
}

}  // namespace
}  // namespace hetermoe
