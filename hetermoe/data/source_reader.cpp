#include "hetermoe/data/source_reader.h"

#include <cstring>
#include <fstream>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/data/json_lines.h"
#include "hetermoe/data/parallel_encode.h"

namespace hetermoe {
namespace fs = std::filesystem;
namespace {

/// Hands on at most `limit` bytes of a file, in parts. Returns false where the bytes hold a zero byte.
bool for_each_part(const fs::path& path, i64 limit,
                   const std::function<void(const char*, std::size_t)>& take) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail<IoError>("data.paths", "cannot read {}: {}", path.string(), std::strerror(errno));
  std::vector<char> chunk(1 << 16);  // not on the stack, which may be as small
  while (limit > 0 && in) {
    in.read(chunk.data(), std::min<std::streamsize>(limit, std::ssize(chunk)));
    const std::streamsize got = in.gcount();
    if (std::memchr(chunk.data(), 0, idx(got)) != nullptr) return false;
    take(chunk.data(), idx(got));
    limit -= got;
  }
  if (in.bad()) fail<IoError>("data.paths", "reading {} stopped: {}", path.string(), std::strerror(errno));
  return true;
}

/// 0 = it is no file with a size.
i64 size_of(const fs::path& path) {
  std::error_code code;
  const std::uintmax_t size = fs::file_size(path, code);
  return code ? 0 : static_cast<i64>(size);
}

constexpr i64 kMostPending = 16 << 20;  // bytes of text that become tokens together, on all cores

/// The limit may have cut a character of several bytes.
void drop_cut_character(std::string& text) {
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0) == 0x80) text.pop_back();
  if (!text.empty() && static_cast<unsigned char>(text.back()) >= 0xC0) text.pop_back();
}

}  // namespace

SourceReader::SourceReader(const DataOptions& options, const Tokenizer* tokenizer, i64 seq_len, i64 max_bytes)
    : options_(options),
      tokenizer_(tokenizer),
      seq_len_(seq_len),
      max_bytes_(max_bytes),
      end_(options.end_token || tokenizer == nullptr ? options.end_token : tokenizer->end_token()),
      as_bytes_(options.tokenizer == "bytes"),
      type_(type_for(std::max(tokenizer == nullptr ? 1 : tokenizer->vocab_size(), end_.value_or(0) + 1))),
      text_(type_) {
  if (!options.chat_template.empty() && tokenizer != nullptr)
    encoder_.emplace(options.chat_template, *tokenizer, options.tokenizer, end_);
}

void SourceReader::read(const SourceFile& file) {
  if (is_text(file.kind)) out_.bytes_there += size_of(file.path);
  switch (file.kind) {
    case FileKind::kText:
      return read_text_file(file);
    case FileKind::kJsonLines:
      return encoder_ ? read_conversations(file) : read_json_lines(file);
    case FileKind::kMegatron:
      return add(read_megatron(file.path));
    case FileKind::kLlmc:
      return add(read_llmc(file.path, options_.end_token));
  }
}

Source SourceReader::finish() {
  flush_conversations();
  flush();
  if (progress_) progress_->finish();
  out_.bytes_there = std::max(out_.bytes_there, out_.bytes_read);  // a pipe has no size
  // For the last target of the last window.
  if (out_.num_conversations > 0 && out_.all.size() % seq_len_ == 0) pad(1);
  return std::move(out_);
}

void SourceReader::read_text_file(const SourceFile& file) {
  if (left() <= 0) return;
  const i64 before = bytes_;
  if (as_bytes_ && type_ == TokenType::kU8 ? add_file_of_bytes(file.path) : add_file_of_text(file.path)) {
    ++out_.num_files;
    out_.bytes_read += bytes_ - before;
    return;
  }
  const std::string ending = file.path.extension().string();
  if (!file.found) {
    fail<IoError>("data.paths", "{} is no text: it has a NUL byte, expected text{}", file.path.string(),
                  ending == ".parquet" ? ". tools/parquet_to_jsonl.py makes JSON lines of it"
                  : ending == ".gz"
                      ? ". Unpack it by gunzip: of packed files only JSON lines (.jsonl.gz) are read"
                      : "");
  }
  ++out_.num_skipped;
  out_.skipped.insert(ending);
  out_.bytes_there -= size_of(file.path);
}

/// One document, of which nothing but the tokens is in memory. Returns false where the file is no text.
bool SourceReader::add_file_of_bytes(const fs::path& path) {
  flush_conversations();
  const i64 begin = text_.size();
  const bool is_text =
      for_each_part(path, left(), [&](const char* data, std::size_t size) { text_.add_bytes(data, size); });
  if (!is_text) {
    text_.drop_to(begin);
    return false;
  }
  const i64 size = text_.size() - begin;
  bytes_ += size;
  if (size > 0)
    end_document(begin);
  else
    ++out_.num_empty;
  return true;
}

bool SourceReader::add_file_of_text(const fs::path& path) {
  std::string text;
  if (!for_each_part(path, left(), [&](const char* data, std::size_t size) { text.append(data, size); }))
    return false;
  if (!as_bytes_ && left() == static_cast<i64>(text.size())) drop_cut_character(text);
  add_document(std::move(text));
  return true;
}

/// A file of lines that is read; of a packed one not its size counts but that of its text.
void SourceReader::count(const SourceFile& file, const LinesFile& lines) {
  ++out_.num_files;
  if (is_gzip(file.path)) out_.bytes_there += static_cast<i64>(lines.bytes().size()) - size_of(file.path);
}

void SourceReader::read_json_lines(const SourceFile& file) {
  if (left() <= 0) return;
  const LinesFile lines(file.path);
  count(file, lines);
  out_.bytes_read += for_each_json_text(lines.bytes(), options_.json_field, file.path.string(),
                                        [&](const std::string& text) {
                                          if (static_cast<i64>(text.size()) > left()) return false;
                                          add_document(text);
                                          return true;
                                        });
}

void SourceReader::read_conversations(const SourceFile& file) {
  if (left() <= 0) return;
  const LinesFile lines(file.path);
  count(file, lines);
  const auto take = [&](const Json& line, const std::string& place) {
    const std::vector<ChatMessage> conversation = conversation_of(line, place);
    i64 size = 0;
    for (const ChatMessage& message : conversation) size += static_cast<i64>(message.text.size());
    if (size > left()) return false;
    bytes_ += size;
    ++out_.num_conversations;
    const ChatTokens tokens = encoder_->encode(conversation, place);
    out_.num_told_otherwise += tokens.told_otherwise;
    packer(type_).add(tokens);
    return true;
  };
  out_.bytes_read += for_each_json_object(lines.bytes(), file.path.string(), take);
}

/// Conversations that were made tokens before.
void SourceReader::add_conversations(const DocumentTokens& read) {
  auto answer = read.answers.begin();
  for (std::size_t d = 0; d < read.starts.size(); ++d) {
    const i64 begin = read.starts[d];
    const i64 end = d + 1 < read.starts.size() ? read.starts[d + 1] : read.tokens.size();
    ChatTokens conversation;
    conversation.tokens.resize(idx(end - begin));
    read.tokens.copy(begin, end - begin, conversation.tokens.data());
    for (; answer != read.answers.end() && answer->begin < end; ++answer)
      conversation.counted.push_back({answer->begin - begin, answer->end - begin});
    ++out_.num_conversations;
    packer(read.tokens.type()).add(conversation);
  }
}

void SourceReader::add_document(std::string text) {
  flush_conversations();
  bytes_ += static_cast<i64>(text.size());
  if (text.empty()) {
    ++out_.num_empty;
  } else if (as_bytes_ && type_ == TokenType::kU8) {
    const i64 begin = text_.size();
    text_.add_bytes(text.data(), text.size());
    end_document(begin);
  } else {
    pending_bytes_ += static_cast<i64>(text.size());
    pending_.push_back(std::move(text));
    if (pending_bytes_ >= kMostPending) encode_pending();
  }
}

void SourceReader::encode_pending() {
  // Little text needs no line. One large file becomes tokens at one go, so the line comes before.
  if (encoded_bytes_ + pending_bytes_ >= kMostPending && !progress_) {
    progress_.emplace("text made tokens, MiB", 0);
    progress_->update(encoded_bytes_ >> 20,
                      fmt::format("of {} read", (encoded_bytes_ + pending_bytes_) >> 20));
  }
  for (const std::vector<i64>& tokens : encode_each(*tokenizer_, std::exchange(pending_, {}))) {
    const i64 begin = text_.size();
    for (const i64 token : tokens) text_.add(token);
    end_document(begin);
  }
  encoded_bytes_ += std::exchange(pending_bytes_, 0);
  if (progress_) progress_->update(encoded_bytes_ >> 20);
}

/// A text of blanks alone may be no token.
void SourceReader::end_document(i64 begin) {
  if (end_) text_.add(*end_);
  if (text_.size() > begin)
    starts_.push_back(begin);
  else
    ++out_.num_empty;
}

void SourceReader::add(const DocumentTokens& read) {
  out_.num_empty += read.num_empty;
  ++out_.num_files;
  if (!read.answers.empty()) return add_conversations(read);
  flush_conversations();
  flush();
  out_.all.append(read.tokens, read.starts);
}

void SourceReader::flush() {
  if (!pending_.empty()) encode_pending();
  out_.all.append(text_.finish(), starts_);
  starts_.clear();
}

ConversationPacker& SourceReader::packer(TokenType type) {
  if (packer_ && packed_type_ != type) flush_conversations();
  if (!packer_) packer_.emplace(seq_len_, type, end_.value_or(0), options_.answers_only);
  packed_type_ = type;
  return *packer_;
}

void SourceReader::flush_conversations() {
  if (!packer_) return;
  flush();
  if (out_.all.size() % seq_len_ != 0) pad(seq_len_ - out_.all.size() % seq_len_);
  const DocumentTokens packed = packer_->finish();
  out_.all.append(packed.tokens, packed.starts, packed.uncounted);
  out_.num_cut += packer_->num_cut();
  out_.num_unanswered += packer_->num_unanswered();
  packer_.reset();
}

/// A document of tokens that are not counted.
void SourceReader::pad(i64 count) {
  TokenBuilder padding(type_);
  for (i64 i = 0; i < count; ++i) padding.add(end_.value_or(0));
  out_.all.append(padding.finish(), std::vector<i64>{0}, std::vector<TokenSpan>{{0, count}});
}

}  // namespace hetermoe
