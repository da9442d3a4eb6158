#include "hetermoe/train/job/lora.h"

#include "hetermoe/train/run/verify.h"
#include "hetermoe/weights/safetensors.h"
#include "tests/support/error_of.h"
#include "tests/train/resumed_run.h"

namespace hetermoe {
namespace {

Settings adapted(Settings more) {
  more.insert(more.begin(), {{"train.lora.rank", "4"},
                             {"train.warmup_steps", "0"},
                             {"train.final_share", "1"},
                             {"train.learning_rate", "0.01"}});
  return more;
}

/// What LLaMA-Factory's users type first.
TEST(LoraRun, ADenseModelNeedsARankAlone) {
  const WorkFolder folder;
  TinyRun run(folder.path(), {{"model", "tiny-llama"}, {"strategy", "ep"}, {"train.lora.rank", "2"}});
  EXPECT_FALSE(run.run(Checkpoints::kOff).outcome.records.empty());
}

TEST(LoraRun, LearnsAndLeavesTheMatricesAsTheyAre) {
  const WorkFolder folder;
  TinyRun begin(folder / "begin", adapted({{"train.steps", "0"}}));
  const TensorsByName before = begin.run(Checkpoints::kOff).values;
  TinyRun run(folder / "run", adapted({{"train.steps", "100"}, {"model", "tiny"}}));
  const TinyRun::End end = run.run(Checkpoints::kOff);
  // Little, for embedding and head are those of a model that has learned nothing.
  EXPECT_LT(end.outcome.records.back().loss, 0.99 * end.outcome.records.front().loss);
  i64 adapters = 0;
  for (const auto& [name, value] : end.values) {
    EXPECT_EQ(at::equal(value, before.at(name)), !is_adapter(name)) << name;
    adapters += is_adapter(name) ? 1 : 0;
  }
  EXPECT_EQ(adapters, 2 * static_cast<i64>(lora_of(run.job.train, run.model)->targets.size()));
}

TEST(LoraRun, IsResumedToTheBit) { expect_resumed_to_the_bit(adapted({})); }

/// By way of files: a first run's weights, adapters on them, the merged folder, and a run that starts there.
TEST(LoraRun, ExportsMergedWeightsAndAdaptersOfTheirOwn) {
  const WorkFolder folder;
  TinyRun(folder / "base", {{"train.save_hf", folder / "hf"}}).run();
  TinyRun tuned(folder / "tuned",
                adapted({{"train.init_from", folder / "hf"}, {"train.save_hf", folder / "merged"}}));
  const TinyRun::End end = tuned.run();
  const std::shared_ptr<const Lora> lora = lora_of(tuned.job.train, tuned.model);
  const TensorsByName expected = with_merged(end.values, lora.get());
  const SafetensorsReader base(folder / "hf/model.safetensors"), merged(folder / "merged/model.safetensors"),
      adapters(folder / "merged/adapter/adapter_model.safetensors");
  ASSERT_EQ(merged.names().size(), expected.size());
  for (const auto& [name, value] : expected) {
    EXPECT_TRUE(at::allclose(merged.read(name), value, 1e-6, 1e-7)) << name;
    EXPECT_EQ(at::equal(merged.read(name), base.read(name)), !lora->adapts(name)) << name;
  }
  ASSERT_EQ(adapters.names().size(), 2 * lora->targets.size());
  for (const std::string& name : lora->targets) {
    for (const std::string& adapter : {lora_a_name(name), lora_b_name(name)})
      EXPECT_TRUE(at::equal(adapters.read("base_model.model." + adapter), end.values.at(adapter))) << adapter;
  }
  const Json config = read_json(folder / "merged/adapter/adapter_config.json");
  EXPECT_EQ(config.at("peft_type"), "LORA");
  EXPECT_EQ(config.at("r"), 4);
  EXPECT_EQ(config.at("lora_alpha"), 16);
  EXPECT_EQ(config.at("base_model_name_or_path"), folder / "hf");
  EXPECT_EQ(config.at("target_modules").size(), lora->targets.size());
  // The merged model computes what the adapted one does.
  const at::Tensor tokens = at::arange(16, at::kLong).view({2, 8});
  TensorsByName written;
  for (const std::string& name : merged.names()) written[name] = merged.read(name);
  EXPECT_TRUE(at::allclose(reference_logits(tuned.model, written, tokens),
                           reference_logits(tuned.model, expected, tokens), 1e-5, 1e-5));
  TinyRun next(folder / "next", {{"train.init_from", folder / "merged"}, {"train.steps", "0"}});
  const TensorsByName read = next.run().values;
  for (const auto& [name, value] : read) EXPECT_TRUE(at::equal(value, written.at(name))) << name;
}

/// Frozen weights on hosts: a run, its checkpoints and what it exports are those of a run without.
TEST(LoraRun, WhereFrozenWeightsLiveIsNoMatter) {
  const WorkFolder folder;
  TinyRun(folder / "base", {{"train.save_hf", folder / "hf"}}).run();
  for (const char* strategy : {"ep", "zebra"}) {
    for (const char* dtype : {"fp32", "bf16"}) {
      const fs::path place = folder.path() / fmt::format("{}-{}", strategy, dtype);
      const auto run = [&](const std::string& name, const char* offload, const char* steps) {
        return TinyRun((place / name).string(), adapted({{"train.init_from", folder / "hf"},
                                                         {"train.save_hf", (place / (name + "-hf")).string()},
                                                         {"train.steps", steps},
                                                         {"strategy", strategy},
                                                         {"cluster", "demo-hosts"},
                                                         {"plan.offload", offload},
                                                         {"plan.attention_dtype", dtype},
                                                         {"plan.expert_dtype", dtype}}))
            .run();
      };
      const TinyRun::End whole = run("whole", "none", "6");
      run("first", "weights", "4");
      run("last", "none", "4");
      for (const auto& [name, then] : {std::pair{"first", "none"}, {"last", "experts.weights"}}) {
        const TinyRun::End resumed = run(name, then, "6");
        EXPECT_EQ(resumed.outcome.first_step, 4) << name;
        expect_equal(resumed.values, whole.values);
      }
      expect_equal(run("all", "all", "6").values, whole.values);
      for (const char* file : {"model.safetensors", "adapter/adapter_model.safetensors"}) {
        const SafetensorsReader expected(place / "whole-hf" / file);
        for (const char* name : {"last-hf", "all-hf"}) {
          const SafetensorsReader written(place / name / file);
          ASSERT_EQ(written.names(), expected.names());
          for (const std::string& tensor : expected.names())
            EXPECT_TRUE(at::equal(written.read(tensor), expected.read(tensor))) << name << " " << tensor;
        }
      }
    }
  }
}

/// From a folder of adapters: what they compute is what the merged model does, and they are what is trained.
TEST(LoraRun, GoesOnWithAdaptersOfAFolder) {
  const WorkFolder folder;
  TinyRun(folder / "base", {{"train.save_hf", folder / "hf"}}).run();
  const TinyRun::End first =
      TinyRun(folder / "tuned", adapted({{"train.init_from", folder / "hf"},
                                         {"train.lora.alpha", "6"},
                                         {"train.lora.targets", "[\"*.self_attn.*_proj*\"]"},
                                         {"train.save_hf", folder / "merged"}}))
          .run();
  const Settings next = {{"train.init_from", folder / "hf"},
                         {"train.lora.from", folder / "merged/adapter"},
                         {"train.steps", "0"}};
  TinyRun again(folder / "again", next);
  EXPECT_EQ(again.job.train.lora.rank, 4);
  EXPECT_EQ(again.job.train.lora.alpha, 6);
  const TensorsByName values = again.run().values;
  ASSERT_EQ(values.size(), first.values.size());
  i64 adapters = 0;
  for (const auto& [name, value] : values) {
    EXPECT_TRUE(at::equal(value, first.values.at(name))) << name;
    adapters += is_adapter(name) ? 1 : 0;
  }
  EXPECT_GT(adapters, 0);
  const auto error_with = [&](Settings more) {
    more.insert(more.begin(), next.begin(), next.end());
    return error_of<ConfigError>([&] { TinyRun(folder / "wrong", more); });
  };
  EXPECT_NE(error_with({{"train.lora.rank", "8"}}).find("[train.lora.rank] got 8, expected 4"),
            std::string::npos);
  EXPECT_NE(error_with({{"train.lora.targets", "[\"*\"]"}}).find("leave it out"), std::string::npos);
  EXPECT_NE(error_with({{"train.init_from", ""}}).find("without train.init_from"), std::string::npos);
  EXPECT_NE(error_with({{"train.lora.from", folder / "hf"}}).find("expected adapter_config.json"),
            std::string::npos);
  EXPECT_NE(error_of<ConfigError>([&] {
              load_model(folder / "merged/adapter");
            }).find("their base is the model, and they are train.lora.from"),
            std::string::npos);
  Json config = read_json(folder / "merged/adapter/adapter_config.json");
  config["use_dora"] = true;
  write_text(folder / "merged/adapter/adapter_config.json", config.dump());
  EXPECT_NE(error_with({}).find("use_dora: got true, expected false"), std::string::npos);
}

/// What PEFT would lose is said at the writing, once.
TEST(LoraRun, SaysWhatPeftDrops) {
  const WorkFolder folder;
  const auto told = [&](const std::string& name, const std::string& targets,
                        const char* model = "tiny-deepseek-v2") {
    TinyRun run(folder / name, adapted({{"model", model},
                                        {"train.steps", "1"},
                                        {"train.lora.targets", targets},
                                        {"train.save_hf", folder / (name + "-hf")}}));
    std::vector<std::string> notes = run.run().outcome.notes;
    std::erase_if(notes, [](const std::string& note) { return !note.starts_with("PEFT drops"); });
    return notes;
  };
  const std::vector<std::string> lost = told("shared", "*.shared_experts.*");
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_NE(lost[0].find(", such as model.layers.1.mlp.shared_experts."), std::string::npos) << lost[0];
  EXPECT_NE(lost[0].find("use the merged folder, "), std::string::npos);
  EXPECT_TRUE(told("attention", "*.self_attn.*_proj*").empty());
  EXPECT_EQ(told("experts", "*.experts.*", "tiny-gpt-oss").size(), 1U);  // one module in transformers
}

TEST(LoraRun, VerifiesAgainstTheReference) {
  const WorkFolder folder;
  for (const char* strategy : {"single", "ep", "zebra"}) {
    TinyRun run(folder / strategy, adapted(in_fp64({{"strategy", strategy}})));
    const Sampler sampler(counting_data(), {run.job.train.seq_len, run.job.train.seed});
    const VerifyResult result = verify_plan(run.job, run.model, run.cluster, run.plan,
                                            sampler.batch(0, run.job.train.sequences, run.model.vocab));
    EXPECT_TRUE(result.passed()) << strategy;
    EXPECT_EQ(result.gradients.size(), 2 * lora_of(run.job.train, run.model)->targets.size());
  }
}

TEST(LoraRun, GoesOnWithTheSameTargetsAlone) {
  const WorkFolder folder;
  TinyRun(folder.path(), adapted({{"train.lora.targets", "*.experts.*"}})).run();
  const auto refused = [&](const Settings& other) {
    TinyRun run(folder.path(), other);
    return error_of<ConfigError>([&] { run.run(); });
  };
  const std::string more = refused(adapted({{"train.steps", "8"}})),
                    fewer = refused(
                        adapted({{"train.steps", "8"}, {"train.lora.targets", "model.layers.0.*experts.*"}})),
                    none = refused({{"train.steps", "8"}}),
                    rank = refused(adapted({{"train.steps", "8"},
                                            {"train.lora.targets", "*.experts.*"},
                                            {"train.lora.rank", "8"}}));
  EXPECT_TRUE(rank.starts_with("[train.lora.rank] got 8, but the adapters of the checkpoint have rank 4"))
      << rank;
  EXPECT_TRUE(more.starts_with("[train.lora] gives an adapter to model.layers.")) << more;
  EXPECT_TRUE(fewer.starts_with("[train.lora] gives no adapter to model.layers.")) << fewer;
  EXPECT_TRUE(none.starts_with("[train.lora] gives no adapter to model.layers.")) << none;
}

std::string lora_refusal(const Settings& settings) {
  const WorkFolder folder;
  return error_of<ConfigError>([&] { TinyRun(folder / "run", adapted(settings)); });
}

TEST(LoraRun, WhatCannotBeIsRefusedByName) {
  EXPECT_EQ(lora_refusal({{"train.lora.targets", "*.self_attn.*_proj*,*.nothing.*"}}),
            "[train.lora.targets] \"*.nothing.*\" matches no matrix of model tiny that can have an adapter: "
            "expected names such as model.layers.0.self_attn.o_proj.weight, in which * stands for any text; "
            "embeddings, the head, norms and routers have none");
  EXPECT_NE(lora_refusal({{"train.lora.targets", "model.embed_tokens*"}}).find("matches no matrix"),
            std::string::npos);
  const std::string some = lora_refusal({{"train.lora.targets", "*.experts.1.*"}});
  EXPECT_TRUE(some.starts_with("[train.lora.targets] match 1 of 4 experts of layer")) << some;
  EXPECT_EQ(lora_refusal({{"train.freeze", "model.embed_tokens*"}}),
            "[train.freeze] cannot go with train.lora, which freezes all but adapters: leave it out");
  const std::string divided = lora_refusal({{"plan.shard_weights", "true"}, {"strategy", "ep"}});
  EXPECT_TRUE(divided.starts_with("[train.lora] cannot go with a plan whose weights are divided")) << divided;
  const std::string optimizer = lora_refusal({{"plan.offload", "optimizer"}, {"cluster", "demo-hosts"}});
  EXPECT_TRUE(optimizer.starts_with("[plan.offload] got optimizer with train.lora, expected weights, all or"))
      << optimizer;
  const WorkFolder folder;
  TinyRun late(folder / "late",
               adapted({{"plan.offload", "all"}, {"cluster", "demo-hosts"}, {"train.staleness", "1"}}));
  const std::string stale = error_of<ConfigError>([&] { late.run(); });
  EXPECT_TRUE(stale.starts_with("[train.staleness] got 1, expected 0 with train.lora")) << stale;
}

}  // namespace
}  // namespace hetermoe
