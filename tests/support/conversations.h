#pragma once
#include <string>

#include "hetermoe/base/json.h"
#include "hetermoe/data/dataset.h"
#include "tests/support/work_folder.h"

namespace hetermoe {

/// Lines of conversations of one or two questions, answers of 1 to 12 letters, some of the lines longer than
/// 48 bytes.
inline std::string conversation_lines(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    Json messages;
    for (int m = 0; m <= i % 4 / 3; ++m) {
      messages.push_back(
          {{"role", "user"}, {"content", std::string(1, static_cast<char>('a' + (i + m) % 26))}});
      messages.push_back({{"role", "assistant"},
                          {"content", std::string(1 + static_cast<std::size_t>(i * 5 % 12),
                                                  static_cast<char>('A' + (i * 3 + m) % 26))}});
    }
    out += Json{{"messages", messages}}.dump() + "\n";
  }
  return out;
}

/// Conversations in windows of seq_len bytes; some are cut.
inline Dataset conversation_data(i64 seq_len, double validation_share = 0) {
  const WorkFolder folder;
  DataOptions options;
  options.paths = {folder.file("x.jsonl", conversation_lines(60))};
  options.chat_template = "plain";
  options.validation_share = validation_share;
  return load_dataset(options, seq_len);
}

}  // namespace hetermoe
