#include "hetermoe/data/chat_template.h"

#include <gtest/gtest.h>

#include "hetermoe/data/sampler.h"
#include "hetermoe/data/token_files.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

// Conversations: how they are written, rendered, packed and counted.
namespace hetermoe {
namespace {

const std::vector<ChatMessage> kTalk = {{ChatRole::kSystem, "Be brief."},
                                        {ChatRole::kUser, "Hi"},
                                        {ChatRole::kAssistant, "Hello"},
                                        {ChatRole::kUser, "Bye"},
                                        {ChatRole::kAssistant, "See you"}};

/// A rendered conversation; what is counted between [ and ].
std::string rendered(const std::string& name, const std::vector<ChatMessage>& talk = kTalk,
                     bool ask = false) {
  std::string out;
  bool counted = false;
  for (const ChatPart& part : render(find_chat_template(name), talk, ask)) {
    if (part.counted != counted) out += part.counted ? "[" : "]";
    counted = part.counted;
    out += part.text;
  }
  return counted ? out + "]" : out;
}

TEST(ChatTemplate, RendersAsTheModelsOwnTemplatesDo) {
  EXPECT_EQ(rendered("chatml"),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n[Hello<|im_end|>]\n<|im_start|>user\nBye<|im_end|>\n"
            "<|im_start|>assistant\n[See you<|im_end|>]\n");
  EXPECT_EQ(rendered("llama3"),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[Hello<|eot_id|>]"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[See you<|eot_id|>]");
  EXPECT_EQ(rendered("llama3.1"),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
            "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[Hello<|eot_id|>]"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[See you<|eot_id|>]");
  EXPECT_EQ(rendered("mistral"),
            "<s>[INST] Be brief.\n\nHi [/INST][Hello</s>][INST] Bye [/INST][See you</s>]");
  EXPECT_EQ(rendered("deepseek-v2"),
            "<｜begin▁of▁sentence｜>Be brief.\n\nUser: Hi\n\nAssistant:[ Hello<｜end▁of▁sentence｜>]"
            "User: Bye\n\nAssistant:[ See you<｜end▁of▁sentence｜>]");
  EXPECT_EQ(rendered("deepseek-v3"),
            "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜>[Hello<｜end▁of▁sentence｜>]"
            "<｜User｜>Bye<｜Assistant｜>[See you<｜end▁of▁sentence｜>]");
  EXPECT_EQ(rendered("plain", {{ChatRole::kUser, "Hi"}, {ChatRole::kAssistant, "Hello"}}),
            "User:\nHi\n\nAssistant:\n[Hello\n\n]");
}

/// Earlier answers are told without their thoughts and are not counted: a model does not write them so.
TEST(ChatTemplate, Qwen3ThinksAfterTheLastQuestionAlone) {
  EXPECT_EQ(rendered("qwen3"),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
            "<|im_start|>assistant\n[<think>\n\n</think>\n\nSee you<|im_end|>]\n");
  const ChatMessage inside{ChatRole::kAssistant, "<think>\nA greeting.\n</think>\n\nHello"};
  const ChatMessage apart{.role = ChatRole::kAssistant, .text = "See you", .reasoning = "\nThey go.\n"};
  EXPECT_EQ(rendered("qwen3", {{ChatRole::kUser, "Hi"}, inside, {ChatRole::kUser, "Bye"}, apart}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
            "<|im_start|>user\nBye<|im_end|>\n"
            "<|im_start|>assistant\n[<think>\nThey go.\n</think>\n\nSee you<|im_end|>]\n");
}

/// A call, what two tools say, a second call, and the answer.
std::vector<ChatMessage> talk_with_tools() {
  const Json arguments = Json::parse(R"({"city": "Málaga \"x\"", "days": [1, 2.5, true, null], "o": {}})");
  return {{ChatRole::kUser, "Rain?"},
          {.role = ChatRole::kAssistant, .text = "", .reasoning = "Ask.", .calls = {{"weather", arguments}}},
          {ChatRole::kTool, "sun\n"},
          {ChatRole::kTool, "20"},
          {ChatRole::kAssistant, "No."}};
}

TEST(ChatTemplate, ToolsAreHeardWhereTheOriginalHearsThem) {
  const std::string call =
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Málaga \\\"x\\\"\", \"days\": [1, "
      "2.5, true, null], \"o\": {}}}\n</tool_call>";
  const std::string heard =
      "<|im_start|>user\n<tool_response>\nsun\n\n</tool_response>\n<tool_response>\n20\n</tool_response>"
      "<|im_end|>\n";
  const std::string asked = "<|im_start|>user\nRain?<|im_end|>\n<|im_start|>assistant\n[";
  EXPECT_EQ(rendered("qwen3", talk_with_tools()),
            asked + "<think>\nAsk.\n</think>\n\n" + call + "<|im_end|>]\n" + heard +
                "<|im_start|>assistant\n[<think>\n\n</think>\n\nNo.<|im_end|>]\n");
  EXPECT_EQ(rendered("chatml", talk_with_tools()),
            asked + call + "<|im_end|>]\n" + heard + "<|im_start|>assistant\n[No.<|im_end|>]\n");
  std::vector<ChatMessage> twice = talk_with_tools();
  twice[1].text = "Let me see.";
  twice[1].calls.push_back({"clock", "{}"});
  EXPECT_EQ(rendered("chatml", {twice[0], twice[1]}),
            asked + "Let me see.\n" + call +
                "\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call><|im_end|>]\n");
  EXPECT_EQ(rendered("llama3.1", talk_with_tools()),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
            "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nRain?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[{\"name\": \"weather\", \"parameters\": "
            "{\"city\": \"Málaga \\\"x\\\"\", \"days\": [1, 2.5, true, null], \"o\": {}}}<|eot_id|>]"
            "<|start_header_id|>ipython<|end_header_id|>\n\n\"sun\\n\"<|eot_id|>"
            "<|start_header_id|>ipython<|end_header_id|>\n\n\"20\"<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[No.<|eot_id|>]");
}

TEST(ChatTemplate, WhatATemplateHasNoFormForIsRefusedByName) {
  const auto refused = [](const std::string& name, const std::vector<ChatMessage>& talk) {
    return error_of<InputError>([&] { check_renders(find_chat_template(name), talk, "x.jsonl line 7"); });
  };
  for (const std::string name : {"llama3", "mistral", "deepseek-v2", "deepseek-v3", "plain"})
    EXPECT_EQ(refused(name, talk_with_tools()),
              "[x.jsonl line 7] message 2 calls a tool, for which the template " + name +
                  " has no form: expected qwen3 or chatml or llama3.1");
  for (const std::string name : {"qwen3", "chatml", "llama3.1"})
    EXPECT_EQ(refused(name, talk_with_tools()), "no error");
  std::vector<ChatMessage> talk = talk_with_tools();
  talk[1].text = "Let me see.";
  EXPECT_NE(refused("llama3.1", talk).find("message 2 has 1 calls and a text, expected one call"),
            std::string::npos);
  talk[1].text = "";
  talk[1].calls[0].arguments = "{}";
  EXPECT_NE(refused("llama3.1", talk).find("an object of arguments"), std::string::npos);
  const auto tokenizer = make_tokenizer("bytes");
  const ChatEncoder qwen3("qwen3", *tokenizer, "bytes", {});
  const std::vector<ChatMessage> open = {kTalk[1], kTalk[2], kTalk[3]};
  EXPECT_EQ(error_of<InputError>([&] { qwen3.encode(open, "x.jsonl line 7"); }),
            "[x.jsonl line 7] has no answer after its last question, expected one: qwen3 counts no other");
  EXPECT_FALSE(qwen3.encode(open, "--prompt", /*ask=*/true).tokens.empty());
}

TEST(ChatTemplate, AQuestionEndsWhereTheAnswerBegins) {
  for (const std::string& name : chat_template_names()) {
    const std::string asked = rendered(name, {{ChatRole::kUser, "Hi"}}, true);
    const std::string answered = rendered(name, {{ChatRole::kUser, "Hi"}, {ChatRole::kAssistant, "Hello"}});
    EXPECT_EQ(answered.find(asked + "["), 0U) << name << ": " << asked << " | " << answered;
  }
}

TEST(ChatTemplate, ANameThatIsNotKnownIsRefusedWithThoseThatAre) {
  const auto tokenizer = make_tokenizer("bytes");
  EXPECT_NE(error_of<ConfigError>([&] {
              ChatEncoder("vicuna", *tokenizer, "bytes", {});
            }).find("got vicuna, expected qwen3, chatml, llama3.1, llama3, mistral"),
            std::string::npos);
}

std::vector<ChatMessage> conversation(const std::string& line) {
  return conversation_of(Json::parse(line), "x.jsonl line 7");
}

std::string words(const std::vector<ChatMessage>& messages) {
  std::string out;
  for (const ChatMessage& message : messages)
    out += std::string(1, "SUAT"[static_cast<int>(message.role)]) + ":" + message.text + ";";
  return out;
}

TEST(ChatLines, EveryWayToWriteAConversationIsRead) {
  const std::vector<std::string> same = {
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "id": 1})",
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})",
      R"({"instruction": "a", "input": "", "output": "b"})", R"({"prompt": "a", "completion": "b"})",
      R"({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]})"};
  for (const std::string& line : same) EXPECT_EQ(words(conversation(line)), "U:a;A:b;") << line;
  EXPECT_EQ(words(conversation(R"({"instruction": "a", "input": "x", "output": "b", "system": "s"})")),
            "S:s;U:a\n\nx;A:b;");
}

TEST(ChatLines, CallsOfToolsAndThoughtsAreRead) {
  const std::vector<ChatMessage> talk = conversation(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "reasoning_content":
      "r", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}, {"name": "g",
      "arguments": "{}"}]}, {"role": "tool", "content": "b"}, {"role": "assistant", "content": "c"}]})");
  EXPECT_EQ(words(talk), "U:a;A:;T:b;A:c;");
  EXPECT_EQ(talk[1].reasoning, "r");
  ASSERT_EQ(talk[1].calls.size(), 2U);
  EXPECT_EQ(talk[1].calls[0].name, "f");
  EXPECT_EQ(talk[1].calls[0].arguments, Json::parse(R"({"x": 1})"));
  EXPECT_EQ(talk[1].calls[1].arguments, "{}");
}

TEST(ChatLines, WhatIsNoConversationIsRefusedWithItsPlace) {
  const auto refused = [](const std::string& line) {
    return error_of<InputError>([&] { conversation(line); });
  };
  const std::string at = "[x.jsonl line 7] ";
  EXPECT_EQ(refused(R"({"text": "a"})"),
            at + "has no conversation but the keys text, expected messages, conversations, instruction and "
                 "output, or prompt and completion; text as it is needs no data.template");
  EXPECT_EQ(refused(R"({"messages": "a"})"),
            at + "\"messages\" is string \"a\", expected a list of messages");
  EXPECT_EQ(
      refused(R"({"messages": [{"role": "critic", "content": "a"}]})"),
      "[x.jsonl line 7, message 1 of \"messages\"] \"role\" is \"critic\", expected system, user (or human), "
      "assistant (or gpt, bot, model) or tool: leave out or rename messages of other roles");
  EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "a"}]})"),
            at + "message 2 is a tool's, expected tool_calls of the assistant before it");
  EXPECT_EQ(refused(R"({"messages": [], "tools": [{"name": "f"}]})"),
            at + "has \"tools\", whose signatures are not rendered here: leave them out, or make tokens with "
                 "tools/tokenize_text.py --chat");
  EXPECT_EQ(refused(R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}]})"),
            "[x.jsonl line 7, message 1 of \"messages\", call 1] \"arguments\" is nothing, expected an "
            "object or a text");
  EXPECT_EQ(
      refused(R"({"messages": [{"role": "user"}]})"),
      "[x.jsonl line 7, message 1 of \"messages\"] has no \"content\" but the keys role, expected a text "
      "there");
  EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": [1]}]})")
                .find("[x.jsonl line 7, message 1 of \"messages\"] \"content\" is "),
            0U);
  EXPECT_EQ(refused(R"({"messages": [3]})"),
            "[x.jsonl line 7, message 1 of \"messages\"] is integer 3, expected an object");
  EXPECT_EQ(refused(R"({"prompt": "a", "completion": " \n"})"),
            at + "answer in message 2 is empty, expected a text: leave the line out");
  EXPECT_EQ(refused(R"({"prompt": "a"})"),
            at + "has no \"completion\" but the keys prompt, expected a text there");
  EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": "a"}]})"),
            at + "has 1 messages, none of the assistant, expected an answer to learn");
  EXPECT_EQ(
      refused(R"({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "a"}]})"),
      at + "message 2 is the system's, expected it to be the first");
  EXPECT_EQ(
      refused(R"({"messages": [{"role": "system", "content": "a"}, {"role": "assistant", "content": "a"}]})"),
      at + "message 2 is the assistant's, expected one of the user after the system's");
}

DataOptions options_of(const std::string& path) {
  DataOptions options;
  options.paths = {path};
  options.validation_share = 0;
  options.chat_template = "plain";
  return options;
}

std::string line_of(const std::string& prompt, const std::string& completion) {
  return Json{{"prompt", prompt}, {"completion", completion}}.dump() + "\n";
}

/// The text of a source; what is counted between [ and ], padding as _.
std::string marked(const TokenStream& tokens) {
  std::vector<i64> counted(static_cast<std::size_t>(tokens.size()));
  tokens.mark_counted(0, tokens.size(), counted.data());
  const std::vector<i64> all = tokens.tokens(0, tokens.size());
  std::string out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (counted[i] != 0 && (i == 0 || counted[i - 1] == 0)) out += '[';
    out += all[i] == 0 ? '_' : static_cast<char>(all[i]);
    if (counted[i] != 0 && (i + 1 == all.size() || counted[i + 1] == 0)) out += ']';
  }
  return out;
}

TEST(Conversations, LieWholeInWindowsAndAnswersAloneAreCounted) {
  const WorkFolder folder;
  // "User:\n" and "\n\nAssistant:\n" are 19 bytes, "\n\n" 2: conversations of 24, 31 and 23 bytes.
  const std::string path =
      folder.file("x.jsonl", line_of("a", "bc") + line_of("long", "answer") + line_of("x", "y"));
  const Dataset data = load_dataset(options_of(path), 48);
  const Source& source = data.sources.at(0);
  EXPECT_TRUE(data.masked);
  EXPECT_EQ(marked(source.all), "User:\na\n\nAssistant:\n[bc\n\n]User:\nx\n\nAssistant:\n[y\n\n]_" +
                                    std::string("User:\nlong\n\nAssistant:\n[answer\n\n]") +
                                    std::string(48 - 31, '_') + "_");
  EXPECT_EQ(source.num_conversations, 3);
  const Batch batch = Sampler(data, {48, 1}).batch(0, 2, 256);
  i64 counted = 0;
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    counted += batch.targets[i] >= 0;
    const bool answers =
        std::string("bcyanswer\n").find(static_cast<char>(batch.targets[i])) != std::string::npos;
    EXPECT_TRUE(batch.targets[i] == -100 || answers) << i;
  }
  EXPECT_EQ(counted, 4 + 3 + 8);
  EXPECT_EQ(batch.target_count, counted);
  DataOptions all = options_of(path);
  all.answers_only = false;
  all.documents = Documents::kPacked;
  const Dataset whole = load_dataset(all, 48);
  EXPECT_FALSE(whole.masked);
  EXPECT_EQ(whole.sources[0].all.num_counted(0, 96), 24 + 23 + 31);
  EXPECT_NE(whole.checksum(), data.checksum());
}

TEST(Conversations, ThatAreTooLongAreCutOrLeftOutWithANote) {
  const WorkFolder folder;
  const std::string path = folder.file(
      "x.jsonl", line_of("a", std::string(40, 'b')) + line_of(std::string(40, 'c'), "d") + line_of("x", "y"));
  const Dataset data = load_dataset(options_of(path), 32);
  EXPECT_EQ(marked(data.sources[0].all),
            "User:\na\n\nAssistant:\n[bbbbbbbbbbbb]User:\nx\n\nAssistant:\n[y\n\n]" +
                std::string(32 - 23 + 1, '_'));
  EXPECT_EQ(
      conversation_notes(data),
      (std::vector<std::string>{"[data] 2 of 3 conversations are longer than train.seq_len and cut at the "
                                "end; 1 of them is left out, having no answer before the cut"}));
}

/// The window is too short for all of them: a longer one helps, more text does not.
TEST(Conversations, ThatAreAllLeftOutAskForLongerSequences) {
  const WorkFolder folder;
  const std::string path = folder.file("x.jsonl", line_of(std::string(40, 'c'), "d"));
  EXPECT_EQ(error_of<ConfigError>([&] { load_dataset(options_of(path), 32); }),
            "[train.seq_len] no conversation of 1 file has a counted answer in its first 32 tokens: got 1 "
            "conversation, 1 of them longer. Raise train.seq_len");
  EXPECT_NO_THROW(load_dataset(options_of(path), 128));
}

TEST(Conversations, AreDividedForValidationWhereAWindowEnds) {
  const WorkFolder folder;
  std::string lines;
  for (int i = 0; i < 10; ++i) lines += line_of("a", std::string(1, static_cast<char>('0' + i)));
  DataOptions options = options_of(folder.file("x.jsonl", lines));
  options.validation_share = 0.2;
  const Source source = load_dataset(options, 24).sources.at(0);
  EXPECT_EQ(source.all.size(), 241);
  EXPECT_EQ(source.train.size(), 8 * 24 + 1);
  EXPECT_EQ(source.validation.size(), 2 * 24 + 1);
  EXPECT_EQ(marked(source.validation).substr(0, 25), "User:\na\n\nAssistant:\n[8\n\n]");
  EXPECT_EQ(source.train.num_counted(192, 1), 0);  // the token that both have
}

TEST(Conversations, AfterTokensOfTextBeginAtAWindow) {
  const WorkFolder folder;
  DataOptions options = options_of("");
  for (const std::string text : {"text", "more"}) {
    MegatronWriter writer(folder / text, 256);
    writer.add(std::vector<i64>(text.begin(), text.end()));
    writer.finish();
  }
  options.paths = {folder / "text", folder.file("b.jsonl", line_of("x", "y")), folder / "more"};
  const Source source = load_dataset(options, 24).sources.at(0);
  EXPECT_EQ(marked(source.all), "[text]" + std::string(20, '_') + "User:\nx\n\nAssistant:\n[y\n\n]_[more]");
}

TEST(Conversations, KeepTheirAnswersInFilesOfTokens) {
  const WorkFolder folder;
  const std::vector<i64> tokens = {1, 2, 3, 4, 5, 6, 7};
  {
    MegatronWriter writer(folder / "m", 256);
    writer.add(tokens, std::vector<TokenSpan>{{2, 4}, {5, 7}});
    writer.add(std::vector<i64>{8, 9}, std::vector<TokenSpan>{{1, 2}});
    writer.finish();
    EXPECT_EQ(writer.num_documents(), 2);
  }
  const DocumentTokens read = read_megatron(folder / "m.idx");
  EXPECT_EQ(read.starts, (std::vector<i64>{0, 7}));
  EXPECT_EQ(read.answers, (std::vector<TokenSpan>{{2, 4}, {5, 7}, {8, 9}}));
  DataOptions options = options_of(folder / "m.idx");
  options.chat_template = "";
  const Source source = load_dataset(options, 8).sources.at(0);
  EXPECT_EQ(source.num_conversations, 2);
  std::vector<i64> counted(16);
  source.all.mark_counted(0, 16, counted.data());
  EXPECT_EQ(counted, (std::vector<i64>{0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}));
}

TEST(Conversations, AreReadFromJsonLinesAlone) {
  const WorkFolder folder;
  const auto refused = [&](const std::string& path) {
    return error_of<ConfigError>([&] { load_dataset(options_of(path), 24); });
  };
  for (const char* text :
       {R"({"instruction": "a", "output": "b"})", "[]", R"([1, {"instruction": "a"}])", ""}) {
    const std::string object = folder.file("in/object.json", text);
    EXPECT_EQ(refused(object),
              "[data.template] " + object +
                  " is neither JSON lines (.jsonl) nor an array of objects (.json), from which alone "
                  "conversations are read. Expected [{...}, {...}], with a conversation in each object");
    EXPECT_NE(refused(folder / "in").find("object.json is neither"), std::string::npos);
  }
  const std::string prose = folder.file("a.txt", "prose");
  EXPECT_NE(refused(prose).find("a.txt is neither JSON lines (.jsonl) nor"), std::string::npos);
  EXPECT_NE(refused(folder.path().string()).find("data.extensions .jsonl"), std::string::npos);
  DataOptions nothing = options_of("");
  nothing.paths = {};
  EXPECT_NE(error_of<ConfigError>([&] { load_dataset(nothing, 24); }).find("[data.paths] is empty"),
            std::string::npos);
}

TEST(Conversations, NeedTheTokensOfTheirTemplate) {
  const WorkFolder folder;
  DataOptions options = options_of(folder.file("x.jsonl", line_of("a layer", "an expert")));
  options.tokenizer = HM_SOURCE_DIR "/tests/data/sentencepiece/unigram.model";
  options.chat_template = "mistral";
  if (error_of<ConfigError>([&] { make_tokenizer(options.tokenizer); }) != "no error")
    GTEST_SKIP() << "built without libsentencepiece";
  const TokenStream mistral = load_dataset(options, 64).sources.at(0).all;
  EXPECT_EQ(mistral.tokens(0, 1), (std::vector<i64>{1}));  // <s>
  const std::vector<i64> answer = make_tokenizer(options.tokenizer)->encode("an expert");
  const i64 counted_tokens = static_cast<i64>(answer.size()) + 1;  // and </s>
  EXPECT_EQ(mistral.num_counted(0, 64), counted_tokens);
  options.chat_template = "chatml";
  EXPECT_EQ(error_of<ConfigError>([&] { load_dataset(options, 64); }),
            "[data.template] chatml needs the token <|im_start|>, which the tokenizer " + options.tokenizer +
                " lacks: expected the tokenizer of a model with this template, or data.template plain");
  options.chat_template = "plain";
  const TokenStream plain = load_dataset(options, 64).sources.at(0).all;
  const std::vector<i64> tokens = plain.tokens(0, 64);
  std::vector<i64> counted(64);
  plain.mark_counted(0, 64, counted.data());
  const auto end = std::find(tokens.begin(), tokens.end(), 2) - tokens.begin();  // </s> ends an answer
  ASSERT_LT(end, 64);
  EXPECT_EQ(counted[static_cast<std::size_t>(end)], 1);
}

}  // namespace
}  // namespace hetermoe
