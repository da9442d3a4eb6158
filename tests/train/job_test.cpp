#include "hetermoe/train/job/job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "hetermoe/base/index.h"
#include "hetermoe/model/unit.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/job/clock_choice.h"
#include "hetermoe/train/job/job_data.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

using Overrides = std::vector<std::pair<std::string, std::string>>;

std::string flag_error(const std::string& name, const std::string& value) {
  return error_of([&] { job_from_overrides({{name, value}}); });
}

Job job_with(const Overrides& overrides) { return job_from_overrides(overrides); }

TEST(LoadJob, FlagsOverrideTheFileAndTheFileTheDefaults) {
  const WorkFolder folder;
  const std::string path =
      folder.file("a.yaml", "model: tiny\ntrain: {steps: 7, seq_len: 16}\nplan: {attention: [1]}\n");
  const Job job = load_job(path, {{"train.steps", "9"}, {"plan.row_dedup", "false"}});
  EXPECT_EQ(job.model, "tiny");
  EXPECT_EQ(job.train.steps, 9);
  EXPECT_EQ(job.train.seq_len, 16);
  EXPECT_EQ(job.plan.attention, std::vector<DeviceId>{1});
  EXPECT_FALSE(job.plan.row_dedup);
  EXPECT_EQ(job.train.sequences, Job().train.sequences);
}

TEST(JobFields, TheHelpOfStrategyNamesAll) {
  const std::vector<FieldDoc>& fields = job_fields();
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [](const FieldDoc& field) { return field.name == "strategy"; });
  ASSERT_NE(found, fields.end());
  EXPECT_TRUE(
      found->help.starts_with(fmt::format("who fills the plan: {}. ", fmt::join(strategy_names(), ", "))))
      << found->help;
}

TEST(LoadJob, AFileWithoutAKeyIsNoJob) {
  const WorkFolder folder;
  for (const char* text : {"", "# nothing here\n", "{}", "null", "---\n"}) {
    const std::string path = folder.file("b.yaml", text);
    EXPECT_EQ(
        error_of<ConfigError>([&] {
          load_job(path, {{"model", "tiny"}});
        }),
        "[" + path +
            "] holds no key of a job, expected at least one such as \"model: demo\"; `hetermoe options` "
            "lists all")
        << text;
  }
}

TEST(LoadJob, EmptyNamesAreErrors) {
  for (const char* key : {"model", "cluster", "strategy", "output"}) {
    const std::string error = flag_error(key, "");
    EXPECT_TRUE(error.starts_with(fmt::format("[{}] is empty, expected ", key))) << error;
  }
  EXPECT_EQ(error_of<ConfigError>([] { parse_job("data: {paths: [a, '']}", "j", {}); }),
            "[j data.paths] is empty, expected files or folders of text");
  EXPECT_EQ(error_of<ConfigError>([] { load_job("", {}); }),
            "[job] the name of the file is empty, expected a job file (YAML)");
}

TEST(LoadJob, AbsurdSizesNameTheirKey) {
  EXPECT_EQ(flag_error("train.sequences", "1000000000000"),
            "[--train.sequences] out of range: got 1000000000000, expected 1 to 1000000");
  EXPECT_EQ(flag_error("train.microbatches", "1000000000000"),
            "[--train.microbatches] out of range: got 1000000000000, expected 1 to 1000000");
  EXPECT_EQ(flag_error("train.validation_sequences", "1000000000000"),
            "[--train.validation_sequences] out of range: got 1000000000000, expected 0 to 1000000");
  EXPECT_EQ(error_of<ConfigError>([] {
              job_from_overrides({{"train.sequences", "1000000"}, {"train.seq_len", "100000000"}});
            }),
            "[train.sequences] got 1000000 sequences of 100000000 tokens (train.seq_len), which are "
            "100000000000000 "
            "tokens in a step: expected at most 10000000000");
}

TEST(LoadJob, AMomentThatNeverForgetsIsRefused) {
  EXPECT_EQ(flag_error("train.beta1", "1"), "[--train.beta1] out of range: got 1, expected >= 0 and < 1");
  EXPECT_EQ(flag_error("train.beta2", "1"), "[--train.beta2] out of range: got 1, expected >= 0 and < 1");
  EXPECT_EQ(flag_error("train.beta1", "0.999"), "no error");
}

TEST(LoadJob, TheResolvedConfigurationReadsBackTheSame) {
  const Job job =
      job_with({{"plan.attention", "0,1"}, {"plan.wire_dtype", "bf16"}, {"train.learning_rate", "0.1"}});
  const WorkFolder folder;
  const std::string path = folder.file("c.yaml", write_fields(job).dump(2));  // JSON is YAML
  EXPECT_EQ(write_fields(load_job(path, {})).dump(), write_fields(job).dump());
}

TEST(LoadJob, WhereACpuStandsForGpusTheClockIsVirtual) {
  const WorkFolder folder;
  const auto clock = [](const Overrides& overrides) { return *job_with(overrides).clock.kind; };
  EXPECT_EQ(clock({}), ClockKind::kVirtual);
  EXPECT_EQ(clock({{"cluster", "demo3"}}), ClockKind::kVirtual);
  EXPECT_EQ(clock({{"clock.kind", "real"}}), ClockKind::kReal);
  EXPECT_EQ(clock({{"run.device", "cuda:0"}}), ClockKind::kReal);
  const std::string cpus = folder.file("c.yaml", "name: c\nnodes:\n  - {name: n, devices: [CPU x2]}\n");
  EXPECT_EQ(clock({{"cluster", cpus}}), ClockKind::kReal);
  EXPECT_EQ(clock({{"cluster", folder / "none.yaml"}}), ClockKind::kReal);  // told where it is needed
  const Job real = job_with({{"clock.kind", "real"}, {"cluster", "demo3"}});
  EXPECT_EQ(foreign_times(real, load_cluster("demo3")), "measured on this CPU, not on A40, V100, T4");
  EXPECT_EQ(clock_note(real, load_cluster("demo3")),
            "times are measured on this CPU, not on A40, V100, T4 (clock.kind real)");
  EXPECT_EQ(clock_note(job_with({}), load_cluster("demo")),
            "times are emulated, those of A40/1000, V100/1000 by the cost model: this CPU computes "
            "(clock.kind virtual)");
  EXPECT_EQ(clock_note(job_with({{"cluster", cpus}}), load_cluster(cpus)), "");
  EXPECT_EQ(foreign_times(job_with({}), load_cluster("demo")), "");
}

TEST(LoadJob, TheTokenizerOfAFolderIsTheDefaultOfItsModel) {
  const WorkFolder folder;
  const auto tokenizer = [](const Overrides& overrides) { return job_with(overrides).data.tokenizer; };
  EXPECT_EQ(tokenizer({}), "bytes");
  folder.file("m/config.json", R"({"vocab_size": 40})");
  folder.file("t/tokenizer.model", "");
  folder.file("t/tokenizer_config.json", "{}");
  const std::string model = folder / "m", other = folder / "t/tokenizer.model";
  EXPECT_EQ(tokenizer({{"train.init_from", model}}), model);  // which make_tokenizer() refuses
  EXPECT_EQ(tokenizer({{"train.init_from", model}, {"data.tokenizer", "bytes"}}), "bytes");
  for (const std::string& name : {folder / "t", folder / "t/tokenizer_config.json"}) {
    EXPECT_EQ(tokenizer({{"train.init_from", model}, {"data.template", name}}), other);
    EXPECT_EQ(tokenizer({{"data.template", name}}), other);
  }
  folder.file("m/tokenizer.json", "{}");
  for (const std::string key : {"train.init_from", "model"})
    EXPECT_EQ(tokenizer({{key, model}}), folder / "m/tokenizer.json");
  EXPECT_EQ(tokenizer({{"model", folder / "m/config.json"}}), folder / "m/tokenizer.json");
}

/// The name then means the model of the catalogue, whose tokens are bytes.
TEST(LoadJob, AFolderThatHappensToHaveTheNameOfTheModelIsNoModel) {
  const WorkFolder folder;
  folder.file("tiny/notes.txt", "");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const std::string tokenizer = job_with({{"model", "tiny"}}).data.tokenizer;
  std::filesystem::current_path(before);
  EXPECT_EQ(tokenizer, "bytes");
}

TEST(JobData, TheTemplateModelIsThatOfTheModelsFolder) {
  const WorkFolder folder;
  folder.file("m/config.json", R"({"vocab_size": 256})");
  const auto found = [&](const std::string& key) {
    return job_with({{key, folder / "m"}, {"data.template", "model"}, {"data.tokenizer", "bytes"}})
        .data.chat_template;
  };
  EXPECT_EQ(
      error_of<ConfigError>([&] {
        found("train.init_from");
      }).find("[data.template] got model, but no folder of train.init_from, model or data.tokenizer has"),
      0U);
  folder.file("m/chat_template.jinja", "{{ messages }}");
  for (const std::string key : {"train.init_from", "model"}) EXPECT_EQ(found(key), folder / "m");
}

TEST(JobData, AModelOfTheUsersNeedsTextOfTheUsers) {
  const WorkFolder folder;
  folder.file("m/config.json", R"({"vocab_size": 256})");
  EXPECT_EQ(error_of<ConfigError>([&] {
              load_job_data(job_with({{"train.init_from", folder / "m"}}));
            }),
            "[data.paths] is empty, but the model comes from " + (folder / "m") +
                ": name what it shall learn from, as --data.paths my_texts/");
}

TEST(JobData, OneLineSaysWhatIsLearnedAndHowMuchOfTheModel) {
  const WorkFolder folder;
  const std::string text = folder.file("a.txt", std::string(2000, 'x'));
  const ModelConfig model = load_model("tiny");
  const auto line = [&](Overrides more) {
    more.insert(more.begin(), {{"model", "tiny"}, {"data.paths", text}, {"data.validation_share", "0"}});
    const Job job = job_with(more);
    return training_line(job, model, load_job_data(job, model));
  };
  const std::string all = format_count(real(count_parameters(model).total));
  EXPECT_EQ(line({}), "learns from " + text +
                          " (1 file): 2.0 K tokens, all there are; tokenizer bytes; trains all " + all +
                          " parameters in 100 steps (107 epochs)");
  const i64 embed = num_parameters(model, Unit{});
  EXPECT_NE(line({{"train.freeze", "model.embed_tokens.weight"}})
                .find(fmt::format("; trains {} of {} parameters, the others are frozen",
                                  format_count(real(count_parameters(model).total - embed)), all)),
            std::string::npos);
  EXPECT_NE(line({{"train.lora.rank", "2"}}).find("; trains adapters of rank 2 ("), std::string::npos);
  EXPECT_NE(line({{"train.lora.rank", "2"}}).find(fmt::format("the {} of the model are frozen", all)),
            std::string::npos);
  EXPECT_NE(line({{"data.max_bytes", "1024"}}).find("from 1.00 KiB of 1.95 KiB of text: data.max_bytes"),
            std::string::npos);
}

TEST(LoadJob, FlagValuesFollowTheTypeOfTheOption) {
  const Job job = job_with({{"output", "2024"},
                            {"data.paths", "a b.txt,true"},
                            {"data.extensions", "[.py, \"1\"]"},
                            {"plan.attention", "[0, 1]"},
                            {"plan.experts", "2,3"},
                            {"plan.expert_weights", "1.5,2"},
                            {"plan.queue-binding", "name"},
                            {"plan.attention_dtype", "bf16"},
                            {"train.learning-rate", "3e-4"}});
  EXPECT_EQ(job.output, "2024");
  EXPECT_EQ(job.data.paths, (std::vector<std::string>{"a b.txt", "true"}));
  EXPECT_EQ(job.data.extensions, (std::vector<std::string>{".py", "1"}));
  EXPECT_EQ(job.plan.attention, (std::vector<DeviceId>{0, 1}));
  EXPECT_EQ(job.plan.experts, (std::vector<DeviceId>{2, 3}));
  EXPECT_EQ(job.plan.expert_weights, (std::vector<double>{1.5, 2}));
  EXPECT_EQ(job.plan.queue_binding, QueueBinding::kName);
  EXPECT_EQ(job.plan.attention_dtype, Dtype::kBf16);
  EXPECT_EQ(job.train.learning_rate, 3e-4);
  EXPECT_TRUE(job_with({{"plan.attention", "1"}, {"plan.attention", ""}}).plan.attention.empty());
  EXPECT_FALSE(job_with({{"plan.wire_dtype", "null"}}).plan.wire_dtype);
}

TEST(LoadJob, FlagErrorsNameTheFlag) {
  EXPECT_EQ(flag_error("train.step", "1"),
            "[--train.step] unknown option. Did you mean \"--train.steps\"? `hetermoe options` lists all.");
  EXPECT_EQ(flag_error("xyzzyplugh", "1"), "[--xyzzyplugh] unknown option. `hetermoe options` lists all.");
  EXPECT_EQ(flag_error("train", "1").substr(0, 26), "[--train] unknown option. ");
  EXPECT_EQ(flag_error("train.steps", "many"),
            "[--train.steps] wrong type: got string \"many\", expected an integer");
  EXPECT_EQ(flag_error("train.steps", "-1"), "[--train.steps] out of range: got -1, expected >= 0");
  EXPECT_EQ(flag_error("plan.attention", "0,x"),
            "[--plan.attention[1]] wrong type: got string \"x\", expected an integer");
  EXPECT_EQ(flag_error("plan.attention", "[0,").substr(0, 40), "[--plan.attention:1] not valid YAML: end");
  EXPECT_EQ(flag_error("run.silence_s", "0.5"),
            "[--run.silence_s] out of range: got 0.5, expected 1 to 3600");
  EXPECT_EQ(flag_error("run.silence_s", "3601"),
            "[--run.silence_s] out of range: got 3601, expected 1 to 3600");
  EXPECT_EQ(flag_error("run.gather_limit_s", "0"),
            "[--run.gather_limit_s] out of range: got 0, expected 1 to 1000000");
  EXPECT_NE(flag_error("plan.recompute", "locl").find("[--plan.recompute] unknown value \"locl\""),
            std::string::npos);
}

TEST(LoadJob, FileErrorsNameFileAndKey) {
  const WorkFolder folder;
  const std::string path = folder.file("d.yaml", "train: {step: 7}");
  EXPECT_EQ(error_of([&] { load_job(path, {}); }).substr(0, path.size() + 28),
            "[" + path + " train] unknown key \"step\".");
  write_text(path, "- a\n- b\n");
  EXPECT_EQ(error_of([&] { load_job(path, {}); }),
            "[" + path + "] wrong type: got array [\"a\",\"b\"], expected a mapping");
  std::filesystem::remove(path);
  EXPECT_EQ(error_of([&] { load_job(path, {}); }),
            "[" + path + "] cannot read file: No such file or directory");
  const std::string near = folder.file("day.yaml", "model: demo");
  EXPECT_EQ(
      error_of([&] { load_job(path, {}); }),
      fmt::format("[{}] cannot read file: No such file or directory. Did you mean \"{}\"?", path, near));
}

class JobPlan : public ::testing::Test {
 protected:
  Plan plan_with(Overrides overrides) {
    overrides.insert(overrides.begin(),
                     {{"train.seq_len", "8"}, {"train.sequences", "6"}, {"train.microbatches", "3"}});
    return make_job_plan(job_with(overrides), model, cluster);
  }
  std::string plan_error(const Overrides& overrides) {
    return error_of([&] { plan_with(overrides); });
  }
  ModelConfig model = load_model("tiny");
  Cluster cluster = load_cluster("demo");
};

TEST_F(JobPlan, OptionsReachThePlan) {
  const Plan plan = plan_with({{"strategy", "zebra"},
                               {"plan.window", "2"},
                               {"plan.chunks", "3"},
                               {"plan.queue_binding", "name"},
                               {"plan.recompute", "off"},
                               {"plan.row_dedup", "false"},
                               {"plan.attention", "0"},
                               {"plan.experts", "1"},
                               {"plan.attention_dtype", "fp64"},
                               {"plan.expert_dtype", "bf16"},
                               {"plan.wire_dtype", "fp16"}});
  EXPECT_EQ(plan.strategy, "zebra");
  EXPECT_EQ(plan.seq_len, 8);
  EXPECT_EQ(plan.groups.at(0).microbatches, (std::vector<i64>{2, 2, 2}));
  EXPECT_EQ(plan.window, 2);
  EXPECT_EQ(plan.chunks, 3);
  EXPECT_EQ(plan.queue_binding, QueueBinding::kName);
  EXPECT_EQ(plan.recompute, Recompute::kOff);
  EXPECT_FALSE(plan.row_dedup);
  EXPECT_EQ(plan.dtype.at(0), Dtype::kFp64);
  EXPECT_EQ(plan.dtype.at(1), Dtype::kBf16);
  EXPECT_EQ(plan.wire_forward, Wire::kFp16);
  EXPECT_EQ(plan.wire_backward, Wire::kFp16);
}

TEST_F(JobPlan, LayersMayRecomputeDifferently) {
  const Plan plan = plan_with({{"plan.recompute", "resend"}, {"plan.recompute_layers", "1:off"}});
  EXPECT_EQ(recompute_of(plan, 0, 0), Recompute::kResend);
  EXPECT_EQ(recompute_of(plan, 0, 1), Recompute::kOff);
  EXPECT_EQ(plan_error({{"plan.recompute_layers", "1-off"}}),
            "[plan.recompute_layers] got \"1-off\", expected ranges of layers such as \"0-3:off,4-7:local\"");
}

TEST_F(JobPlan, SpeedsThatAreWorldsApartAreNamed) {
  EXPECT_EQ(plan_error({{"plan.expert_weights", "1e300,1e-300"}}),
            "[--plan.expert_weights[0]] out of range: got 1e+300, expected 1e-30 to 1e+30");
  EXPECT_EQ(plan_error({{"plan.attention_weights", "1,1e7"}}),
            "[plan.attention_weights] got 1 beside 10000000, expected speeds of devices, of which none is "
            "1000000 times "
            "another");
  EXPECT_EQ(plan_error({{"plan.expert_weights", "1e14,3e14"}}), "no error");
}

TEST_F(JobPlan, ImpossibleShapesAreNamed) {
  EXPECT_EQ(plan_error({{"train.microbatches", "7"}}),
            "[train.microbatches] got 7, expected at most train.sequences (6)");
  EXPECT_EQ(plan_error({{"train.save_hf_every", "5"}}),
            "[train.save_hf_every] got 5 without train.save_hf, expected the folder to write to");
  EXPECT_EQ(plan_error({{"plan.experts_moved", "1"}}),
            fmt::format("[plan.experts_moved] got 1 entries, expected one per layer of model tiny ({})",
                        model.num_layers));
  EXPECT_EQ(plan_error({{"plan.attention", "0,77"}}),
            fmt::format("[plan.attention] device 77 does not exist: cluster {} has devices 0 to {}",
                        cluster.name, cluster.num_devices() - 1));
  EXPECT_NE(plan_error({{"plan.attention", "0,0"}}).find("device 0 is listed twice"), std::string::npos);
  EXPECT_NE(plan_error({{"strategy", "zerba"}}).find("Did you mean \"zebra\"?"), std::string::npos);
  EXPECT_NE(plan_error({{"train.seq_len", "99999999"}}).find("positions"), std::string::npos);
}

TEST_F(JobPlan, WhatAStrategyHasNoUseForIsRefused) {
  for (const char* strategy : {"ep", "ep-overlap"}) {
    const std::string message =
        plan_error({{"strategy", strategy}, {"plan.attention", "0,1"}, {"plan.experts", "2,3"}});
    EXPECT_TRUE(message.starts_with("[plan.experts] got devices 2, 3, but strategy ep")) << message;
  }
  EXPECT_EQ(plan_error({{"strategy", "single"}, {"plan.attention", "0,1"}}),
            "[plan.attention] got devices 0, 1, expected one: strategy single runs on one device");
  std::string moved = "1";
  for (i64 l = 1; l < model.num_layers; ++l) moved += ",0";
  EXPECT_TRUE(plan_error({{"strategy", "ep"}, {"plan.experts_moved", moved}})
                  .starts_with("[plan.experts_moved] strategy ep has no devices with experts alone"));
  EXPECT_NO_THROW(plan_with({{"strategy", "ep"}, {"plan.attention", "0,1"}, {"plan.experts", "0,1"}}));
}

TEST_F(JobPlan, MoreMovedExpertsThanADeviceHasAreRefused) {
  const i64 devices = 2, most = model.num_experts / devices;
  std::string zeros;
  for (i64 l = 1; l < model.num_layers; ++l) zeros += ",0";
  const Overrides roles = {{"plan.attention", "0,1"}, {"plan.experts", "2,3"}};
  Overrides good = roles, bad = roles;
  good.emplace_back("plan.experts_moved", std::to_string(most) + zeros);
  bad.emplace_back("plan.experts_moved", std::to_string(most + 1) + zeros);
  EXPECT_EQ(roles_of(plan_with(good))[0], "both");
  EXPECT_EQ(
      plan_error(bad),
      fmt::format("[plan.experts_moved[0]] got {}, expected at most {}: device 2 has no more experts of "
                  "this layer",
                  most + 1, most));
}

TEST_F(JobPlan, WeightsNeedOneEntryPerDevice) {
  for (const char* strategy : {"single", "ep", "ep-overlap", "dist-ep", "zebra"}) {
    for (const char* key : {"plan.attention_weights", "plan.expert_weights"}) {
      const std::string message = plan_error({{"strategy", strategy}, {key, "1,2,3,4,5,6,7,8,9"}});
      EXPECT_NE(message.find("has 9 entries, expected one per"), std::string::npos)
          << strategy << key << message;
    }
  }
}

TEST_F(JobPlan, AFileGivesItsShapeToTheJob) {
  const Plan made = plan_with({{"strategy", "ep"}, {"plan.chunks", "2"}});
  const WorkFolder folder;
  const std::string path = folder.file("plan.json", to_json(made).dump());
  const Job job = job_with({{"plan.file", path}});
  EXPECT_EQ(job.train.seq_len, 8);
  EXPECT_EQ(job.train.sequences, 6);
  EXPECT_EQ(job.train.microbatches, 3);
  EXPECT_EQ(to_json(make_job_plan(job, model, cluster)), to_json(made));

  const std::string mismatch = error_of([&] {
    make_job_plan(job_with({{"plan.file", path}, {"train.seq_len", "9"}}), model, cluster);
  });
  EXPECT_EQ(mismatch, fmt::format("[{}] the plan does not fit model tiny on cluster {}:\n"
                                  "  [seq_len] got 8, but train.seq_len is 9",
                                  path, cluster.name));
  EXPECT_EQ(
      error_of([&] {
        make_job_plan(job_with({{"plan.file", path}, {"plan.chunks", "4"}}), model, cluster);
      }),
      fmt::format("[plan.chunks] got integer 4, but the plan comes from {}: change it there, or leave out "
                  "plan.file",
                  path));
}

TEST_F(JobPlan, AFileForAnotherModelIsOneErrorWithAllFaults) {
  Plan made = plan_with({{"strategy", "ep"}});
  made.model = "other";
  made.groups[0].layers[0].experts.pop_back();
  const WorkFolder folder;
  const std::string path = folder.file("plan2.json", to_json(made).dump());
  const std::string message = error_of([&] {
    make_job_plan(job_with({{"plan.file", path}}), model, cluster);
  });
  EXPECT_NE(message.find("[" + path + "] the plan was made for model"), std::string::npos);
  EXPECT_NE(message.find("made for model other, not for tiny"), std::string::npos);
  EXPECT_NE(message.find("[groups[0].layers[0].experts]"), std::string::npos);
}

TEST(PlanDtypes, ReplicasOfOneStateOnDevicesOfTwoDtypesAreRefusedInOneSentence) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  Plan plan = make_job_plan(job_from_overrides({{"model", "tiny"}, {"strategy", "ep"}}), model, cluster);
  plan.dtype[1] = Dtype::kBf16;
  plan.dtype[3] = Dtype::kFp16;
  const std::vector<std::string> faults = validate(plan, model, cluster);
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_EQ(faults[0],
            "[dtype] device 0 (fp32) and device 1 (bf16) both hold the embedding: their gradients would be "
            "rounded differently and the copies drift apart. Give both the same dtype");
}

TEST(PlanDtypes, DevicesThatShareNoStateMayDiffer) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  Plan plan = make_job_plan(job_from_overrides({{"model", "tiny"}, {"strategy", "zebra"}}), model, cluster);
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    if (roles_of(plan)[static_cast<std::size_t>(d)] == "expert")
      plan.dtype[static_cast<std::size_t>(d)] = Dtype::kFp16;
  }
  EXPECT_TRUE(validate(plan, model, cluster).empty());
}

}  // namespace
}  // namespace hetermoe
