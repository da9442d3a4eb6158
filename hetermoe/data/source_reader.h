#pragma once
#include <optional>

#include "hetermoe/data/dataset.h"
#include "hetermoe/data/lines_file.h"
#include "hetermoe/data/packing.h"
#include "hetermoe/data/source_files.h"
#include "hetermoe/report/progress.h"

namespace hetermoe {

/// Reads the files of one source, one after another. Conversations of a file, or of several in a row, lie in
/// windows of seq_len that begin at a multiple of it.
class SourceReader {
 public:
  /// tokenizer: null where no file is text. max_bytes: of text that is taken.
  SourceReader(const DataOptions& options, const Tokenizer* tokenizer, i64 seq_len, i64 max_bytes);
  void read(const SourceFile& file);
  Source finish();

 private:
  i64 left() const { return max_bytes_ - bytes_; }
  void read_text_file(const SourceFile& file);
  bool add_file_of_bytes(const std::filesystem::path& path);
  bool add_file_of_text(const std::filesystem::path& path);
  void count(const SourceFile& file, const LinesFile& lines);
  void read_json_lines(const SourceFile& file);
  void read_conversations(const SourceFile& file);
  void add_conversations(const DocumentTokens& read);
  void add_document(std::string text);
  void encode_pending();
  void end_document(i64 begin);
  void add(const DocumentTokens& read);
  void flush();
  void flush_conversations();
  void pad(i64 count);
  ConversationPacker& packer(TokenType type);

  const DataOptions& options_;
  const Tokenizer* tokenizer_;
  i64 seq_len_, max_bytes_;
  std::optional<i64> end_;
  bool as_bytes_;
  TokenType type_;
  std::optional<ChatEncoder> encoder_;
  std::optional<ConversationPacker> packer_;
  TokenType packed_type_ = TokenType::kU8;
  std::vector<std::string> pending_;  // documents whose tokens are not in text_ yet
  i64 pending_bytes_ = 0, encoded_bytes_ = 0;
  std::optional<Progress> progress_;
  TokenBuilder text_;
  std::vector<i64> starts_;  // in text_
  i64 bytes_ = 0;            // of text so far
  Source out_;
};

}  // namespace hetermoe
