#include "hetermoe/data/chat_lines.h"

#include "fuzz/target.h"
#include "hetermoe/base/error.h"
#include "hetermoe/data/json_lines.h"
#include "hetermoe/data/packing.h"

// Conversations: what is read is rendered by every template, packed, and counted within its windows.
namespace hetermoe::fuzz {
namespace {

constexpr i64 kWindow = 64;

void pack(const ChatEncoder& encoder, const std::vector<std::vector<ChatMessage>>& conversations) {
  ConversationPacker packer(kWindow, TokenType::kU8, 0, true);
  for (const std::vector<ChatMessage>& conversation : conversations)
    packer.add(encoder.encode(conversation, "input"));
  const DocumentTokens packed = packer.finish();
  if (packed.tokens.size() % kWindow != 0) throw std::logic_error("a window that is not full");
  i64 before = 0;
  for (const TokenSpan& span : packed.uncounted) {
    if (span.begin < before || span.end <= span.begin || span.end > packed.tokens.size())
      throw std::logic_error("spans that are not apart");
    before = span.end;
  }
}

void run(const std::string& input) {
  std::vector<std::vector<ChatMessage>> conversations;
  for_each_json_object(input, "input", [&](const Json& line, const std::string& place) {
    conversations.push_back(conversation_of(line, place));
    return true;
  });
  const auto tokenizer = make_tokenizer("bytes");
  for (const std::string& name : chat_template_names()) {
    try {
      pack(ChatEncoder(name, *tokenizer, "bytes", {}), conversations);
    } catch (const InputError&) {
      // It has no form for tools; the next one may have.
    }
  }
}

std::vector<std::string> seeds() {
  return {
      "{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": \"b\"}, "
      "{\"role\": \"assistant\", \"content\": \"c\"}]}\n",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
      "null, "
      "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1.5, true]}}}]}, {\"role\": "
      "\"tool\", \"content\": \"b\"}, {\"role\": \"assistant\", \"content\": \"<think>c</think>d\"}]}\n",
      "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": "
      "\"b\"}]}\n",
      "{\"instruction\": \"a\", \"input\": \"b\", \"output\": \"c\"}\n{\"prompt\": \"a\", \"completion\": "
      "\"b\"}\n"};
}

}  // namespace

extern const Target kChatLines{"chat_lines", run, seeds};

}  // namespace hetermoe::fuzz
