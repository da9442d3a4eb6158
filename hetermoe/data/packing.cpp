#include "hetermoe/data/packing.h"

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// So many windows wait for conversations that fit. More fill windows better and mix the order of a file
/// more.
constexpr std::size_t kMostOpen = 32;

}  // namespace

ConversationPacker::ConversationPacker(i64 seq_len, TokenType type, i64 padding, bool answers_only)
    : seq_len_(seq_len), padding_(padding), answers_only_(answers_only), tokens_(type) {}

void ConversationPacker::add(const ChatTokens& given) {
  ChatTokens conversation = given;
  i64 size = static_cast<i64>(conversation.tokens.size());
  if (size > seq_len_) {
    ++num_cut_;
    size = seq_len_;
    conversation.tokens.resize(idx(size));
    std::erase_if(conversation.counted, [&](const TokenSpan& span) { return span.begin >= size; });
    if (!conversation.counted.empty())
      conversation.counted.back().end = std::min(conversation.counted.back().end, size);
  }
  if (conversation.counted.empty()) {
    ++num_unanswered_;
    return;
  }
  for (Window& window : open_) {
    if (window.size + size > seq_len_) continue;
    window.size += size;
    window.conversations.push_back(std::move(conversation));
    return;
  }
  if (open_.size() == kMostOpen) {
    close(open_.front());
    open_.pop_front();
  }
  open_.push_back({{std::move(conversation)}, size});
}

void ConversationPacker::uncount(i64 begin, i64 end) {
  if (begin == end) return;
  if (!out_.uncounted.empty() && out_.uncounted.back().end == begin)
    out_.uncounted.back().end = end;
  else
    out_.uncounted.push_back({begin, end});
}

void ConversationPacker::append(const ChatTokens& conversation) {
  const i64 first = tokens_.size();
  out_.starts.push_back(first);
  for (const i64 token : conversation.tokens) tokens_.add(token);
  if (!answers_only_) return;
  i64 at = first;
  for (const TokenSpan& span : conversation.counted) {
    uncount(at, first + span.begin);
    at = first + span.end;
  }
  uncount(at, tokens_.size());
}

void ConversationPacker::close(const Window& window) {
  for (const ChatTokens& conversation : window.conversations) append(conversation);
  const i64 padding = seq_len_ - window.size;
  if (padding == 0) return;
  out_.starts.push_back(tokens_.size());
  uncount(tokens_.size(), tokens_.size() + padding);
  for (i64 i = 0; i < padding; ++i) tokens_.add(padding_);
}

DocumentTokens ConversationPacker::finish() {
  for (const Window& window : open_) close(window);
  open_.clear();
  out_.tokens = tokens_.finish();
  return std::exchange(out_, {});
}

}  // namespace hetermoe
