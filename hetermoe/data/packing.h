#pragma once
#include <deque>

#include "hetermoe/data/chat_template.h"
#include "hetermoe/data/token_files.h"

namespace hetermoe {

/// Puts whole conversations into windows of seq_len tokens, several into one where they fit, so that no
/// answer is without its question. A window that is not full ends with padding: a document that is not
/// counted.
class ConversationPacker {
 public:
  /// answers_only: the tokens of answers alone are counted, else all but the padding.
  ConversationPacker(i64 seq_len, TokenType type, i64 padding, bool answers_only);
  /// Adds a conversation. If it is longer than a window, it is cut at the window's end, and left out when no
  /// answer remains.
  void add(const ChatTokens& conversation);
  /// Windows in a row, as far as there are conversations. Tokens of them that are not counted are named.
  DocumentTokens finish();

  i64 num_cut() const { return num_cut_; }                ///< among them those left out
  i64 num_unanswered() const { return num_unanswered_; }  ///< left out

 private:
  struct Window {
    std::vector<ChatTokens> conversations;
    i64 size = 0;
  };
  void close(const Window& window);
  void append(const ChatTokens& conversation);
  void uncount(i64 begin, i64 end);

  i64 seq_len_, padding_;
  bool answers_only_;
  TokenBuilder tokens_;
  DocumentTokens out_;
  std::deque<Window> open_;  // in the order in which they were begun
  i64 num_cut_ = 0, num_unanswered_ = 0;
};

}  // namespace hetermoe
