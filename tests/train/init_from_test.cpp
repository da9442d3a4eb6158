#include <cstring>

#include "tests/support/counting_data.h"
#include "tests/train/tiny_run.h"
#include "tests/weights/folders.h"

// Runs that start from a Hugging Face folder and end with one.
namespace hetermoe {
namespace {

/// The families' folders have a vocabulary of 40: a text of few bytes.
Dataset small_text() { return counting_data(39); }

struct EndedRun {
  Job job;
  TrainOutcome outcome;
  TensorsByName values;
};

EndedRun run(std::vector<std::pair<std::string, std::string>> overrides,
             Checkpoints checkpoints = Checkpoints::kOn) {
  const std::vector<std::pair<std::string, std::string>> base = {{"cluster", "demo3"},
                                                                 {"strategy", "zebra"},
                                                                 {"train.seq_len", "8"},
                                                                 {"train.sequences", "4"},
                                                                 {"train.microbatches", "2"},
                                                                 {"train.warmup_steps", "0"},
                                                                 {"train.validation_sequences", "0"},
                                                                 {"clock.threads", "1"}};
  overrides.insert(overrides.begin(), base.begin(), base.end());
  EndedRun out{job_from_overrides(overrides), {}, {}};
  const ModelConfig model = load_model(out.job.model);
  const Cluster cluster = load_cluster(out.job.cluster);
  const Processes processes;
  Trainer trainer(out.job, model, cluster, make_job_plan(out.job, model, cluster), small_text(), processes,
                  checkpoints);
  out.outcome = trainer.run();
  out.values = trainer.session().values();
  return out;
}

TEST(InitFrom, ThereAndBackWithoutAStepIsTheSameToTheBit) {
  std::vector<std::string> families = all_families();
  families.insert(families.end(), {"gpt_oss", "gpt_oss_other"});
  for (const std::string& family : families) {
    const WorkFolder out;
    const std::string source = parity_folder(family).string();
    const EndedRun done = run({{"train.init_from", source},
                               {"train.save_hf", out / "back/"},
                               {"train.steps", "0"},
                               {"strategy", load_model(source).num_experts > 0 ? "zebra" : "pp-ep"},
                               {"output", out / "run"}});
    EXPECT_EQ(done.job.model, source);
    expect_same_tensors(tensors_of(out / "back/model.safetensors"),
                        tensors_of(parity_folder(family) / "model.safetensors"));
    EXPECT_EQ(read_json(out / "back/config.json"), read_json(fs::path(source) / "config.json"));
    expect_same_tensors({done.values.begin(), done.values.end()}, read_all(source));
  }
}

TEST(InitFrom, ACheckpointWhoseConfigurationWasChangedIsRefused) {
  const WorkFolder out;
  TinyRun first(out / "run");
  first.run();
  const fs::path checkpoint = first.checkpoints() / "step-00000006";
  EXPECT_EQ(error_of([&] { HfFolder{checkpoint}; }), "no error");
  Json config = read_json(checkpoint / "config.json");
  config["rope_theta"] = 4321.0;
  write_text(checkpoint / "config.json", config.dump());
  EXPECT_NE(
      error_of<IoError>([&] { HfFolder{checkpoint}; }).find("config.json] is not what checkpoint.json has"),
      std::string::npos);
}

TEST(InitFrom, MastersHaveThePrecisionOfTheFile) {
  // bf16 devices round the value; the master, and what is saved, is the fp32 number of the file.
  for (const char* sharded : {"", "plan.shard_optimizer", "plan.shard_weights"}) {
    const WorkFolder out;
    const std::string source = parity_folder("mixtral").string();
    const EndedRun done = run({{"train.init_from", source},
                               {"train.save_hf", out / "back"},
                               {"train.steps", "0"},
                               {"strategy", "ep"},
                               {"plan.attention_dtype", "bf16"},
                               {*sharded ? sharded : "plan.row_dedup", "true"},
                               {"output", out / "run"}});
    EXPECT_EQ(done.values.at("lm_head.weight").scalar_type(), at::kBFloat16);
    expect_same_tensors(read_all(out / "back"), read_all(source));
  }
}

TEST(InitFrom, SavedInAnotherDtypeOnDemand) {
  const WorkFolder out;
  const std::string source = parity_folder("deepseek_v3").string();
  run({{"train.init_from", source},
       {"train.save_hf", out / "bf16"},
       {"train.save_dtype", "bf16"},
       {"train.steps", "0"},
       {"output", out / "run"}});
  for (const auto& [name, tensor] : read_all(out / "bf16")) {
    const bool bias = has_part(name, "e_score_correction_bias");
    EXPECT_EQ(tensor.scalar_type(), bias ? at::kFloat : at::kBFloat16) << name;
    EXPECT_TRUE(at::equal(tensor, read_all(source).at(name).to(tensor.scalar_type()))) << name;
  }
  EXPECT_EQ(read_json(out / "bf16/config.json").at("dtype"), "bfloat16");
}

TEST(InitFrom, AnyPlanGivesTheLossOfOneDevice) {
  const std::string source = parity_folder("qwen3_moe").string();
  const auto losses = [&](const char* strategy) {
    const WorkFolder out;
    std::vector<double> all;
    for (const StepRecord& record : run({{"train.init_from", source},
                                         {"strategy", strategy},
                                         {"plan.attention_dtype", "fp64"},
                                         {"plan.expert_dtype", "fp64"},
                                         {"plan.wire_dtype", "fp64"},
                                         {"train.steps", "3"},
                                         {"output", out / "run"}},
                                        Checkpoints::kOff)
                                        .outcome.records)
      all.push_back(record.loss);
    return all;
  };
  const std::vector<double> single = losses("single");
  for (const char* strategy : {"zebra", "ep", "dist-ep"}) {
    const std::vector<double> other = losses(strategy);
    for (std::size_t i = 0; i < single.size(); ++i) EXPECT_NEAR(other[i], single[i], 1e-10) << strategy;
  }
  EXPECT_NE(single[0], single[2]);
}

TEST(InitFrom, AResumedRunGoesOnFromItsCheckpointAndNotFromTheFolder) {
  const WorkFolder out;
  const std::string source = parity_folder("olmoe").string();
  const auto words = [&](const char* folder, const char* steps) {
    return std::vector<std::pair<std::string, std::string>>{
        {"train.init_from", source},
        {"train.steps", steps},
        {"train.final_share", "1"},
        {"checkpoint.every", "2"},
        {"train.save_hf", out / (std::string(folder) + "-hf")},
        {"output", out / folder}};
  };
  run(words("two", "2"));
  const EndedRun rest = run(words("two", "4")), whole = run(words("one", "4"));
  EXPECT_EQ(rest.outcome.first_step, 2);
  expect_equal(rest.values, whole.values);
  expect_same_tensors(read_all(out / "two-hf"), read_all(out / "one-hf"));
}

TEST(InitFrom, FoldersUnderWayAreThoseOfRunsThatEndThere) {
  const WorkFolder out;
  const std::string source = parity_folder("qwen3_moe").string();
  const auto save = [&](const std::string& folder, const char* steps, const char* every) {
    run({{"train.init_from", source},
         {"train.steps", steps},
         {"train.final_share", "1"},
         {"train.save_hf", out / folder},
         {"train.save_hf_every", every},
         {"checkpoint.every", "0"},
         {"output", out / (folder + "-run")}});
  };
  const auto folders = [&] {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(out / "hf")) {
      if (entry.is_directory()) names.insert(entry.path().filename().string());
    }
    return names;
  };
  for (const char* steps : {"2", "4"}) save(std::string("of") + steps, steps, "0");
  save("hf", "4", "1");
  EXPECT_EQ(folders(), (std::set<std::string>{"checkpoint-1", "checkpoint-2", "checkpoint-3"}));
  const Tensors two = read_all(out / "of2"), four = read_all(out / "of4");
  EXPECT_FALSE(at::equal(two.at("model.norm.weight"), four.at("model.norm.weight")));
  expect_same_tensors(read_all(out / "hf/checkpoint-2"), two);
  expect_same_tensors(read_all(out / "hf"), four);
  EXPECT_EQ(read_json(out / "hf/checkpoint-2/config.json"), read_json(out / "of2/config.json"));
  // A run that was cut leaves a part of a folder: the next one writes it anew, and the others stay.
  out.file("hf/.checkpoint-2.unfinished/rank-00000", "x");
  fs::create_directories(out / ".hf.old");
  fs::rename(out / "hf/checkpoint-1", out / ".hf.old/checkpoint-1");
  save("hf", "2", "2");
  EXPECT_EQ(folders(), (std::set<std::string>{"checkpoint-1", "checkpoint-2", "checkpoint-3"}));
  expect_same_tensors(read_all(out / "hf"), two);
  out.file("hf/checkpoint-7/mine.txt", "x");
  EXPECT_TRUE(has_part(error_of<ConfigError>([&] { save("hf", "2", "1"); }), "holds checkpoint-7"));
}

TEST(InitFrom, AJobMayNameAModelOfTheSameArithmeticAlone) {
  const WorkFolder out;
  const std::string source = parity_folder("mixtral").string();
  Json config = read_json(fs::path(source) / "config.json");
  config["router_aux_loss_coef"] = 0.5;
  write_text(out / "coefficient.json", config.dump());
  const std::vector<std::pair<std::string, std::string>> words = {{"train.init_from", source},
                                                                  {"train.steps", "0"},
                                                                  {"output", out / "run"},
                                                                  {"train.save_hf", out / "hf"}};
  auto with_model = [&](const char* name) {
    auto all = words;
    all.emplace_back("model", out / name);
    return all;
  };
  run(with_model("coefficient.json"));
  EXPECT_EQ(read_json(out / "hf/config.json").at("router_aux_loss_coef"), 0.5);
  config["rope_parameters"]["rope_theta"] = 1234.0;
  write_text(out / "theta.json", config.dump());
  const std::string error = error_of<ConfigError>([&] { run(with_model("theta.json")); });
  EXPECT_TRUE(has_part(error, "rope_theta is 1000000.0, expected 1234.0")) << error;
}

TEST(InitFrom, FoldersThatCannotBeWrittenAreToldBeforeTheFirstStep) {
  const WorkFolder out;
  const std::string source = parity_folder("mixtral").string();
  const auto error = [&](const std::string& target) {
    std::string text;
    text = error_of<ConfigError>([&] {
      run({{"train.init_from", source},
           {"train.save_hf", target},
           {"train.steps", "1"},
           {"output", out / "run"}});
    });
    EXPECT_FALSE(fs::exists(out / "run/metrics.jsonl"));
    return text;
  };
  EXPECT_TRUE(has_part(error(source), "is the folder that the weights are read from"));
  out.file("other/thesis.tex", "x");
  EXPECT_TRUE(has_part(error(out / "other"), "holds other files"));
}

TEST(InitFrom, ACheckpointIsAFolderToStartFrom) {
  const WorkFolder out;
  const std::string source = parity_folder("mixtral").string();
  const EndedRun first = run({{"train.init_from", source},
                              {"train.steps", "2"},
                              {"checkpoint.every", "2"},
                              {"output", out / "run"}});
  const EndedRun second = run({{"train.init_from", out / "run/checkpoints/step-00000002"},
                               {"train.steps", "0"},
                               {"output", out / "second"}});
  expect_equal(second.values, first.values);
}

}  // namespace
}  // namespace hetermoe
