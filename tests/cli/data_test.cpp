#include <gtest/gtest.h>

#include "tests/cli/program.h"

// What a run learns from, and what it says in the end.
namespace hetermoe {
namespace {

/// `hetermoe data` of lines of JSON, with more words.
ProgramResult data_of(const WorkFolder& folder, const std::string& lines,
                      std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"data", "--data.paths", folder.file("x.jsonl", lines), "--train.seq_len", "4",
                             "--data.validation_share", "0"});
  return run_hetermoe(more);
}

const std::string kTwoLines = "{\"text\": \"first text\"}\n{\"text\": \"second\"}\n";

TEST(Data, ShowsCountsLengthsAndASequence) {
  const WorkFolder folder;
  const ProgramResult result = data_of(folder, kTwoLines, {"--json", "--data.documents", "masked"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = Json::parse(result.out), source = json["sources"][0];
  EXPECT_EQ(source["documents"], 2);
  EXPECT_EQ(source["tokens"], 16);
  EXPECT_EQ(source["windows"], 3);
  EXPECT_EQ(source["document_tokens"]["longest"], 10);
  const std::string all = "first textsecond";
  const i64 window = json["sequence"]["window"];
  EXPECT_EQ(json["sequence"]["text"], all.substr(static_cast<std::size_t>(4 * window), 4));
  EXPECT_EQ(json["sequence"]["document_starts"].size(), 4U);
  const ProgramResult text = data_of(folder, kTwoLines);
  EXPECT_TRUE(contains(text.out, "sequence 0 of the run is window " + std::to_string(window))) << text.out;
}

/// Windows of 48 bytes of conversations by the plain template.
ProgramResult chats_of(const WorkFolder& folder, const std::string& lines,
                       std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--data.template", "plain", "--train.seq_len", "48"});
  return data_of(folder, lines, more);
}

const std::string kTwoChats =
    "{\"prompt\": \"a\", \"completion\": \"bc\"}\n{\"prompt\": \"long\", \"completion\": \"answer\"}\n";

TEST(Data, ShowsConversationsWithTheirAnswersMarked) {
  const WorkFolder folder;
  const ProgramResult text = chats_of(folder, kTwoChats);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(contains(text.out,
                       "all paths: 2 conversations in windows, of whose tokens 12.4 % are counted "
                       "(answers) and 43.3 % are padding\n"))
      << text.out;
  EXPECT_TRUE(contains(text.out, "\ndocuments are masked")) << text.out;
  EXPECT_TRUE(contains(text.out, "Assistant:\n«answer\n\n»") || contains(text.out, "Assistant:\n«bc\n\n»"))
      << text.out;
  const Json json = Json::parse(chats_of(folder, kTwoChats, {"--json"}).out), source = json["sources"][0];
  EXPECT_EQ(source["documents"], 2);
  EXPECT_EQ(source["tokens_counted"], 12);
  EXPECT_EQ(source["document_tokens"]["longest"], 31);
  // As tokens in files they are what they were.
  ASSERT_EQ(chats_of(folder, kTwoChats, {"--write", folder / "out/chat"}).code, 0);
  const ProgramResult again = run_hetermoe({"data", "--data.paths", folder / "out/chat", "--train.seq_len",
                                            "48", "--data.validation_share", "0", "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(Json::parse(again.out)["sources"], json["sources"]);
  Json sequence = Json::parse(again.out)["sequence"];
  EXPECT_EQ(sequence["text"].get<std::string>().substr(0, 1), "<")
      << "ids: a file does not say what they stand for";
  sequence["text"] = json["sequence"]["text"];
  EXPECT_EQ(sequence, json["sequence"]);
}

TEST(Generate, AnswersAQuestionAsARunLearned) {
  const WorkFolder folder;
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += kTwoChats;
  const std::string path = folder.file("x.jsonl", lines);
  const ProgramResult run = run_hetermoe(train_words(
      folder, {"--data.paths", path, "--data.extensions", "[]", "--data.template", "plain", "--train.seq_len",
               "48", "--train.lora.rank", "2", "--train.save_hf", folder / "saved"}));
  ASSERT_EQ(run.code, 0) << run.err;
  const auto generated_by = [&](const std::string& model, std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", model, "--tokens", "2", "--json"});
    return run_hetermoe(more);
  };
  const auto generated = [&](const std::vector<std::string>& more) {
    return generated_by(folder / "run", more);
  };
  const ProgramResult asked = generated({"--chat", "--prompt", "a"});
  ASSERT_EQ(asked.code, 0) << asked.err;
  const ProgramResult spelled = generated({"--prompt", "User:\na\n\nAssistant:\n"});
  EXPECT_EQ(Json::parse(asked.out), Json::parse(spelled.out));
  // Logits of all tokens come from one forward pass over the prompt, whose last bits may differ.
  const ProgramResult scored =
      generated({"--chat", "--prompt", "a", "--logits", folder / "logits.safetensors"});
  EXPECT_NEAR(Json::parse(scored.out)["loss"].get<double>(), Json::parse(asked.out)["loss"].get<double>(),
              1e-5);
  EXPECT_TRUE(std::filesystem::exists(folder / "logits.safetensors"));
  // hetermoe.json of the saved folder names the template, too.
  const ProgramResult of_saved = generated_by(folder / "saved", {"--chat", "--prompt", "a"});
  ASSERT_EQ(of_saved.code, 0) << of_saved.err;
  EXPECT_EQ(Json::parse(of_saved.out)["prompt_tokens"], Json::parse(asked.out)["prompt_tokens"]);
  const ProgramResult none = run_hetermoe({"generate", HM_SOURCE_DIR "/tests/data/parity/olmoe", "--chat",
                                           "--prompt", "x", "--tokenizer", "bytes"});
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(contains(none.err, "give --template, one of qwen3, chatml, llama3")) << none.err;
}

/// A folder with the config of a small Qwen3-MoE and a tokenizer.json of the shape of Qwen3.
std::string qwen_folder(const WorkFolder& folder) {
  Json config = read_json(HM_SOURCE_DIR "/configs/models/tiny-qwen3.json");
  config["vocab_size"] = 768;
  folder.file("m/config.json", config.dump());
  folder.file("m/tokenizer.json", read_text(HM_SOURCE_DIR "/tests/data/hf/qwen3.json"));
  folder.file("m/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  return folder / "m";
}

TEST(Train, LearnsTextAndAnswersByATokenizerJson) {
  const WorkFolder folder;
  const std::string model = qwen_folder(folder);
  std::string lines;
  for (int i = 0; i < 200; ++i)
    lines += R"({"text": "The router sends each token to two of eight experts."})"
             "\n";
  const std::string path = folder.file("x.jsonl", lines);
  const ProgramResult run = run_hetermoe(train_words(
      folder, {"--model", model, "--data.paths", path, "--data.extensions", "[]", "--train.seq_len", "32"}));
  ASSERT_EQ(run.code, 0) << run.err;
  const auto generated = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", folder / "run", "--tokens", "2", "--json", "--tokenizer", model});
    const ProgramResult result = run_hetermoe(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return Json::parse(result.out);
  };
  const Json prompted = generated({"--prompt", "The router"});
  EXPECT_EQ(prompted["tokens"].size(), 2U) << prompted;
  const Json asked = generated({"--chat", "--template", "chatml", "--prompt", "The router"});
  // As text the special tokens of the template are the same tokens.
  const Json spelled =
      generated({"--prompt", "<|im_start|>user\nThe router<|im_end|>\n<|im_start|>assistant\n"});
  EXPECT_EQ(asked["tokens"], spelled["tokens"]);
}

TEST(Data, WritesTokensThatReadBackAsTheSameDocuments) {
  const WorkFolder folder;
  ASSERT_EQ(data_of(folder, kTwoLines, {"--write", folder / "out/tokens"}).code, 0);
  const ProgramResult result = run_hetermoe({"data", "--data.paths", folder / "out/tokens", "--train.seq_len",
                                             "4", "--data.validation_share", "0", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["sources"],
            Json::parse(data_of(folder, kTwoLines, {"--json"}).out)["sources"]);
}

TEST(Data, WrongInputIsRefusedInOneSentence) {
  const WorkFolder folder;
  const auto refused = [&](const ProgramResult& result, const std::string& words) {
    EXPECT_EQ(result.code, 2) << result.out;
    EXPECT_TRUE(contains(result.err, words)) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  refused(data_of(folder, "{\"text\": \"long enough\"}\n{\"content\": \"x\"}\n"),
          "x.jsonl line 2] has no \"text\" but the keys content");
  refused(data_of(folder, ""), "too little text for training: got 0 tokens");
  refused(chats_of(folder, "{\"messages\": [{\"role\": \"critic\", \"content\": \"x\"}]}\n"),
          "x.jsonl line 1, message 1 of \"messages\"] \"role\" is \"critic\", expected system, user");
  refused(data_of(folder, kTwoChats),
          "has no \"text\" but the keys prompt, completion. Name the key of the text "
          "by data.json_field, or for conversations a data.template");
  refused(data_of(folder, kTwoChats, {"--data.template", "alpaca"}),
          "got alpaca, expected qwen3, chatml, llama3");
  folder.file("m/tokenizer.json", "{}");
  const std::string text = folder.file("x.txt", "some text");
  for (const std::string key : {"--train.init_from", "--model"})
    refused(run_hetermoe({"data", key, folder / "m", "--data.paths", text}),
            "m/tokenizer.json] has no \"model\". tools/tokenize_text.py makes tokens");
  refused(run_hetermoe({"data", "--train.init_from", folder / "m"}),
          "[data.paths] is empty, but the model comes");
  folder.file("cut.bin", "xx");
  const std::string cut = folder.file("cut.idx", std::string("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x8\x9", 19));
  refused(run_hetermoe({"data", "--data.paths", cut}), "cut.idx] is no index");
  const std::string model = HM_SOURCE_DIR "/tests/data/sentencepiece/bpe.model";
  refused(run_hetermoe(train_words(folder, {"--data.paths", folder.file("t.txt", std::string(900, 'x')),
                                            "--data.tokenizer", model, "--data.validation_share", "0"})),
          "but the data have tokens up to");
}

TEST(Train, TheFirstLineNamesDataTokenizerAndWhatIsTrained) {
  const WorkFolder folder;
  const ProgramResult library = run_hetermoe(train_words(folder, {"--train.steps", "1"}));
  ASSERT_EQ(library.code, 0) << library.err;
  EXPECT_TRUE(library.out.starts_with("learns from this machine's Python standard library, /usr/lib"))
      << library.out;
  const std::string first = library.out.substr(0, library.out.find('\n'));
  EXPECT_TRUE(contains(first, " of text: data.max_bytes; tokenizer bytes; trains all ")) << first;
  EXPECT_TRUE(contains(first, " parameters in 1 step (")) << first;
  EXPECT_TRUE(contains(library.out, "\ntimes are emulated, those of A40/1000, V100/1000 by the cost model"))
      << library.out;
  const ProgramResult dry = run_hetermoe(train_words(folder, {"--train.steps", "1", "--dry-run"}));
  EXPECT_TRUE(contains(dry.out, first)) << dry.out;
  const ProgramResult data = run_hetermoe({"data", "--data.max_bytes", "200000"});
  EXPECT_TRUE(contains(data.out, "this machine's Python standard library")) << data.out;
  EXPECT_TRUE(contains(data.out, "from 195 KiB of ")) << data.out;
}

/// Emulated speed and the time that is left on this machine stand side by side: each says whose it is.
TEST(Train, EmulatedAndRealFiguresAreToldApart) {
  const WorkFolder folder;
  const ProgramResult emulated = run_hetermoe(train_words(folder, {"--train.steps", "3"}));
  ASSERT_EQ(emulated.code, 0) << emulated.err;
  EXPECT_TRUE(contains(emulated.out, " tokens/s emulated  expert max/mean ")) << emulated.out;
  EXPECT_TRUE(contains(emulated.err, " of this machine's time left")) << emulated.err;
  EXPECT_TRUE(contains(emulated.out, "\nstep lines: aux: load-balancing loss")) << emulated.out;
  const ProgramResult real =
      run_hetermoe(train_words(folder, {"--train.steps", "3", "--clock.kind", "real"}));
  ASSERT_EQ(real.code, 0) << real.err;
  EXPECT_FALSE(contains(real.out, "emulated")) << real.out;
  EXPECT_FALSE(contains(real.err, "this machine's time")) << real.err;
}

TEST(Data, IdsOfAFileOfTokensAreNoBytes) {
  const WorkFolder folder;
  ASSERT_EQ(data_of(folder, kTwoLines, {"--write", folder / "out/tokens"}).code, 0);
  const ProgramResult data = run_hetermoe({"data", "--data.paths", folder / "out/tokens.idx",
                                           "--train.seq_len", "4", "--data.validation_share", "0"});
  ASSERT_EQ(data.code, 0) << data.err;
  EXPECT_TRUE(contains(data.out, "tokenizer that of the files")) << data.out;
  EXPECT_FALSE(contains(data.out, "tokenizer bytes")) << data.out;
  EXPECT_TRUE(contains(data.out, "><")) << data.out;
}

TEST(Train, LossOfTokensIsNotPerByte) {
  const WorkFolder folder;
  ASSERT_EQ(data_of(folder, kTwoLines, {"--write", folder / "out/tokens"}).code, 0);
  const ProgramResult run = run_hetermoe(
      train_words(folder, {"--train.steps", "1", "--data.paths", folder / "out/tokens.idx", "--train.seq_len",
                           "4", "--data.validation_share", "0.5", "--train.validation_sequences", "1"}));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(contains(run.out, " nats per token, ")) << run.out;
  EXPECT_TRUE(contains(read_text(folder / "run/report.html"), "Loss (nats per token)"));
}

TEST(Simulate, ItsFolderHasAPageWithPlanAndMemory) {
  const WorkFolder folder;
  ASSERT_EQ(
      run_hetermoe({"simulate", "--model", "tiny", "--train.seq_len", "16", "--output", folder / "a"}).code,
      0);
  const ProgramResult result = run_hetermoe({"report", folder / "a", "-o", folder / "page.html"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string page = read_text(folder / "page.html");
  for (const char* part : {"<h2>The plan</h2>", "<h2>Memory of each device</h2>", "<canvas id=\"canvas\"",
                           "simulated only: nothing was trained"})
    EXPECT_TRUE(contains(page, part)) << part;
}

TEST(Simulate, DevicesThatGetNoSequencesAreTold) {
  const auto simulated = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"simulate", "--model", "tiny", "--cluster", "o1", "--train.seq_len", "16"});
    const ProgramResult result = run_hetermoe(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const std::string few = simulated({"--train.sequences", "16", "--train.microbatches", "4"});
  EXPECT_TRUE(
      contains(few,
               "\nnote: A40#4, A40#5 get no sequences: a microbatch of 4 sequences is divided among 6 "
               "devices. Raise train.sequences, lower train.microbatches, or leave them out of "
               "plan.attention\n"))
      << few;
  EXPECT_FALSE(contains(simulated({"--train.sequences", "24", "--train.microbatches", "4"}), "note: "));
  EXPECT_FALSE(contains(simulated({"--train.sequences", "16", "--train.microbatches", "2"}), "note: "));
  const std::string slow =
      simulated({"--plan.attention", "0,1", "--plan.experts", "6,7", "--plan.attention_weights", "1000,1"});
  EXPECT_TRUE(
      contains(slow,
               "note: A40#1 gets no sequences: by the weights of the devices, less than one of a "
               "microbatch is left. Raise train.sequences, lower train.microbatches, or leave it out"))
      << slow;
}

TEST(Train, TimesOfThisCpuAreNeverThoseOfAGpu) {
  const WorkFolder folder;
  const ProgramResult run = run_hetermoe(train_words(folder, {"--train.steps", "1", "--clock.kind", "real"}));
  ASSERT_EQ(run.code, 0) << run.err;
  const std::string words = "measured on this CPU, not on A40/1000, V100/1000";
  EXPECT_TRUE(contains(run.out, "\ntimes are " + words + " (clock.kind real)\n")) << run.out;
  EXPECT_TRUE(contains(run.out, "\nSteps are executed (" + words + ").\n")) << run.out;
  const Json row = Json::parse(read_text(folder / "run/summary.json")).at("rows").at(0);
  EXPECT_EQ(row["executed"]["clock"], "executed (" + words + ")");
  const std::string page = read_text(folder / "run/report.html");
  EXPECT_TRUE(contains(page, "<span class=\"label\">executed times are " + words + "</span>"));
  EXPECT_TRUE(contains(page, "\"elsewhere\":true"));
}

TEST(DryRun, SaysWhatWouldBeDoneAndDoesNothing) {
  const WorkFolder folder;
  const ProgramResult text = run_hetermoe(train_words(folder, {"--dry-run"}));
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(contains(text.out, "the whole run, 6 steps: ")) << text.out;
  const Json json = Json::parse(run_hetermoe(train_words(folder, {"--dry-run", "--json"})).out);
  EXPECT_EQ(json["tokens"], 6 * 4 * 16);
  EXPECT_DOUBLE_EQ(json["run_s"].get<double>(), 6 * json["step"]["step_s"].get<double>());
  EXPECT_EQ(json["job"]["train"]["steps"], 6);
  // Steps after growth take longer.
  const auto run_s = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--dry-run", "--json"});
    return Json::parse(run_hetermoe(train_words(folder, more)).out)["run_s"].get<double>();
  };
  const double wide = run_s({"--grow.at", "2", "--grow.mode", "wide_k"});
  const double narrower =
      run_s({"--grow.at", "2", "--grow.mode", "wide_k", "--grow.narrow_to", "2", "--grow.narrow_every", "1"});
  EXPECT_GT(narrower, 1.001 * run_s({}));
  EXPECT_GT(wide, 1.001 * narrower);
  EXPECT_TRUE(folder.contents().empty());
  EXPECT_EQ(run_hetermoe(train_words(folder, {"--dry-run", "--data.paths", folder / "none"})).code, 2);
}

TEST(Generate, GoesOnFromTheNewestCheckpointOfARun) {
  const WorkFolder folder;
  ASSERT_EQ(run_hetermoe(train_words(folder)).code, 0);
  const auto generated = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", folder / "run", "--prompt", "def ", "--tokens", "12", "--json"});
    const ProgramResult result = run_hetermoe(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return Json::parse(result.out);
  };
  const Json greedy = generated({});
  EXPECT_TRUE(contains(greedy["weights"], "checkpoints/step-00000006"));
  EXPECT_EQ(greedy["prompt_tokens"], Json({100, 101, 102, 32}));
  EXPECT_EQ(greedy["tokens"].size(), 12U);
  EXPECT_EQ(generated({}), greedy);
  EXPECT_DOUBLE_EQ(greedy["loss_per_byte"], greedy["loss"]);  // a token is a byte here
  const Json drawn = generated({"--temperature", "1"});
  EXPECT_NE(drawn["tokens"], greedy["tokens"]);
  EXPECT_NE(generated({"--temperature", "1", "--seed", "2"})["tokens"], drawn["tokens"]);
  EXPECT_LT(greedy["loss"].get<double>(), drawn["loss"].get<double>());
  // The folder that TensorBoard reads is there.
  EXPECT_TRUE(std::filesystem::exists(folder / "run/tensorboard/events.out.tfevents.1.hetermoe"));
}

TEST(Generate, AHuggingFaceFolderTakesAPromptOfTokens) {
  const std::string model = HM_SOURCE_DIR "/tests/data/parity/olmoe";
  const ProgramResult result =
      run_hetermoe({"generate", model, "--prompt-tokens", "1,2,3", "--tokens", "5", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["tokens"].size(), 5U);
  const ProgramResult text = run_hetermoe({"generate", model, "--prompt", "x"});
  EXPECT_EQ(text.code, 2);
  EXPECT_TRUE(contains(text.err, "--tokenizer")) << text.err;
  const ProgramResult wrong = run_hetermoe({"generate", model, "--prompt", "x", "--tokenizer", "bytes"});
  EXPECT_TRUE(contains(wrong.err, "has token 120, but olmoe has tokens 0 to")) << wrong.err;
  const ProgramResult none = run_hetermoe({"generate", HM_SOURCE_DIR "/tests"});
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(contains(none.err, "has neither weights")) << none.err;
}

TEST(Generate, TakesTheWordsOfTrainForItsDevice) {
  const auto generated = [](const std::string& device) {
    return run_hetermoe({"generate", HM_SOURCE_DIR "/tests/data/parity/olmoe", "--prompt-tokens", "1,2,3",
                         "--tokens", "5", "--json", "--device", device});
  };
  const ProgramResult cpu = generated("cpu");
  ASSERT_EQ(cpu.code, 0) << cpu.err;
  EXPECT_EQ(Json::parse(cpu.out)["device"], "cpu");
  const ProgramResult other = generated("gpu");
  EXPECT_EQ(other.code, 2);
  EXPECT_EQ(other.err, "[--device] no such device: got \"gpu\", expected cpu, cuda or cuda:N\n");
  const ProgramResult many = generated("cuda:99");
  EXPECT_EQ(many.code, 2);
  EXPECT_TRUE(many.err.starts_with("[--device] got \"cuda:99\", but ")) << many.err;
  EXPECT_EQ(many.out, "");
}

TEST(Generate, MoreTokensThanTheModelHasPositionsAreRefused) {
  const auto generated = [&](const std::string& prompt, const std::string& tokens) {
    return run_hetermoe({"generate", HM_SOURCE_DIR "/tests/data/parity/olmoe", "--prompt-tokens", prompt,
                         "--tokens", tokens, "--json"});
  };
  const ProgramResult most = generated("1,2,3", "61");
  ASSERT_EQ(most.code, 0) << most.err;
  const ProgramResult more = generated("1,2,3", "62");
  EXPECT_EQ(more.code, 2);
  EXPECT_EQ(more.out, "");
  EXPECT_EQ(
      more.err,
      "[--tokens] got 62 after a prompt of 3 tokens, but model olmoe has 64 positions: expected at most "
      "61, or a shorter prompt\n");
  std::string prompt = "1";
  for (int i = 1; i < 64; ++i) prompt += ",1";
  const ProgramResult full = generated(prompt, "1");
  EXPECT_EQ(full.code, 2);
  EXPECT_TRUE(contains(full.err, "after a prompt of 64 tokens")) << full.err;
  EXPECT_TRUE(contains(full.err, "expected a prompt of at most 63 tokens")) << full.err;
}

}  // namespace
}  // namespace hetermoe
