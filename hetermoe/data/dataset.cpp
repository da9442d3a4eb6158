#include "hetermoe/data/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <new>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "hetermoe/base/enum_count.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/data/json_lines.h"
#include "hetermoe/data/mapped_file.h"
#include "hetermoe/data/source_files.h"
#include "hetermoe/data/token_files.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<Documents>::names() {
  static const std::vector<std::string> all = names_of_all<Documents>({"packed", "masked"});
  return all;
}

namespace fs = std::filesystem;
namespace {

constexpr i64 kLookedAt = 1 << 24;  // tokens of a stream that are read before the first step

/// Appends at most `limit` bytes of a file. Returns false and appends nothing when the bytes hold a zero
/// byte.
bool append_file(const fs::path& path, i64 limit, std::string& out) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail<IoError>("data.paths", "cannot read {}: {}", path.string(), std::strerror(errno));
  const std::size_t before = out.size();
  std::array<char, 1 << 16> chunk;
  while (limit > 0 && in) {
    in.read(chunk.data(), std::min<std::streamsize>(limit, chunk.size()));
    const std::streamsize got = in.gcount();
    if (std::memchr(chunk.data(), 0, idx(got)) != nullptr) {
      out.resize(before);
      return false;
    }
    out.append(chunk.data(), idx(got));
    limit -= got;
  }
  if (in.bad()) fail<IoError>("data.paths", "reading {} stopped: {}", path.string(), std::strerror(errno));
  return true;
}

/// Reads the files of one source.
class SourceReader {
 public:
  SourceReader(const DataOptions& options, const Tokenizer& tokenizer)
      : options_(options),
        tokenizer_(tokenizer),
        end_(options.end_token ? options.end_token : tokenizer.end_token()),
        as_bytes_(options.tokenizer == "bytes"),
        text_(type_for(std::max(tokenizer.vocab_size(), end_.value_or(0) + 1))) {}

  void read(const SourceFile& file) {
    switch (file.kind) {
      case FileKind::kText:
        return read_text_file(file);
      case FileKind::kJsonLines:
        return read_json_lines(file);
      case FileKind::kMegatron:
        return add(read_megatron(file.path));
      case FileKind::kLlmc:
        return add(read_llmc(file.path, options_.end_token));
    }
  }

  Source finish() {
    flush();
    return std::move(out_);
  }

 private:
  i64 left() const { return options_.max_bytes - bytes_; }

  void read_text_file(const SourceFile& file) {
    if (left() <= 0) return;
    std::string text;
    if (append_file(file.path, left(), text)) {
      ++out_.num_files;
      if (!as_bytes_ && left() == static_cast<i64>(text.size())) drop_cut_character(text);
      add_document(text);
    } else if (file.found) {
      ++out_.num_skipped;
    } else {
      fail<IoError>("data.paths", "{} is no text: it has a NUL byte, expected text", file.path.string());
    }
  }

  void read_json_lines(const SourceFile& file) {
    if (left() <= 0) return;
    const MappedFile mapped(file.path);
    ++out_.num_files;
    for_each_json_text(mapped.bytes(), options_.json_field, file.path.string(), [&](const std::string& text) {
      if (static_cast<i64>(text.size()) > left()) return false;
      add_document(text);
      return true;
    });
  }

  /// The limit may have cut a character of several bytes.
  static void drop_cut_character(std::string& text) {
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0) == 0x80) text.pop_back();
    if (!text.empty() && static_cast<unsigned char>(text.back()) >= 0xC0) text.pop_back();
  }

  void add_document(const std::string& text) {
    bytes_ += static_cast<i64>(text.size());
    if (text.empty()) {
      ++out_.num_empty;
      return;
    }
    starts_.push_back(text_.size());
    if (as_bytes_ && type_for(end_.value_or(0) + 1) == TokenType::kU8) {
      text_.add_bytes(text.data(), text.size());
    } else {
      for (const i64 token : tokenizer_.encode(text)) text_.add(token);
    }
    if (end_) text_.add(*end_);
    if (text_.size() > starts_.back()) return;
    starts_.pop_back();  // a text of blanks alone may be no token
    ++out_.num_empty;
  }

  void flush() {
    out_.all.append(text_.finish(), starts_);
    starts_.clear();
  }

  void add(const DocumentTokens& read) {
    flush();
    out_.all.append(read.tokens, read.starts);
    out_.num_empty += read.num_empty;
    ++out_.num_files;
  }

  const DataOptions& options_;
  const Tokenizer& tokenizer_;
  std::optional<i64> end_;
  bool as_bytes_;
  TokenBuilder text_;
  std::vector<i64> starts_;  // in text_
  i64 bytes_ = 0;            // of text so far
  Source out_;
};

/// Checks that there are tokens for one sequence. It needs one more than it has, for the last target.
void check_length(const Source& source, const TokenStream& part, i64 seq_len, const char* use) {
  if (part.size() > seq_len) return;
  fail<ConfigError>("data.paths",
                    "too little text for {}: got {} from {}{}, expected at least {} (train.seq_len + 1). "
                    "Name more text, or lower train.seq_len{}",
                    use, counted(part.size(), "token"), counted(source.num_files, "file"),
                    source.name.empty() ? "" : fmt::format(" of {}", source.name), seq_len + 1,
                    std::strcmp(use, "validation") == 0 ? ", or set data.validation_share" : "");
}

void divide(Source& source, double validation_share) {
  const i64 size = source.all.size();
  const i64 validation = static_cast<i64>(validation_share * static_cast<double>(size));
  source.train = source.all.part(0, size - validation);
  source.validation = source.all.part(size - validation, validation);
}

Source read_source(const DataOptions& options, const Tokenizer& tokenizer,
                   const std::vector<SourceFile>& files) {
  SourceReader reader(options, tokenizer);
  try {
    for (const SourceFile& file : files) reader.read(file);
    return reader.finish();
  } catch (const std::bad_alloc&) {
    fail<IoError>("data.max_bytes", "there is no memory for so much text: lower it");
  }
}

std::vector<Source> read_sources(const DataOptions& options, const Tokenizer& tokenizer) {
  if (options.paths.empty()) return {read_source(options, tokenizer, find_library_files(options.extensions))};
  if (!options.weights.empty() && options.weights.size() != options.paths.size()) {
    fail<ConfigError>("data.weights", "got {}, expected one for each of {}",
                      counted(options.weights.size(), "weight"), counted(options.paths.size(), "path"));
  }
  std::vector<Source> sources;
  std::vector<SourceFile> files;
  for (std::size_t i = 0; i < options.paths.size(); ++i) {
    const std::vector<SourceFile> found = find_files(options.paths[i], options.extensions);
    files.insert(files.end(), found.begin(), found.end());
    if (options.weights.empty()) continue;
    sources.push_back(read_source(options, tokenizer, std::exchange(files, {})));
    sources.back().name = options.paths[i];
    sources.back().share = options.weights[i];
  }
  if (options.weights.empty()) sources.push_back(read_source(options, tokenizer, files));
  return sources;
}

}  // namespace

u64 Dataset::checksum() const {
  if (sources.size() == 1) return sources[0].train.checksum();
  Fnv all;
  for (const Source& source : sources) all.add(source.train.checksum());
  return all.value();
}

Dataset load_dataset(const DataOptions& options, i64 seq_len) {
  Dataset out;
  out.masked = options.documents == Documents::kMasked;
  out.tokenizer = make_tokenizer(options.tokenizer);
  out.sources = read_sources(options, *out.tokenizer);
  double sum = 0;
  for (Source& source : out.sources) {
    divide(source, options.validation_share);
    check_length(source, source.train, seq_len, "training");
    if (options.validation_share > 0) check_length(source, source.validation, seq_len, "validation");
    sum += source.share;
  }
  for (Source& source : out.sources) source.share /= sum;
  return out;
}

Dataset byte_dataset(std::vector<std::uint8_t> train, std::vector<std::uint8_t> validation) {
  Dataset out;
  Source source;
  TokenBuilder tokens(TokenType::kU8);
  for (const std::vector<std::uint8_t>* part : {&train, &validation})
    tokens.add_bytes(reinterpret_cast<const char*>(part->data()), part->size());
  const std::vector<i64> starts = {0};
  source.all.append(tokens.finish(), starts);
  source.train = source.all.part(0, static_cast<i64>(train.size()));
  source.validation = source.all.part(static_cast<i64>(train.size()), static_cast<i64>(validation.size()));
  source.num_files = 1;
  out.sources.push_back(std::move(source));
  out.tokenizer = make_tokenizer("bytes");
  return out;
}

void check_vocabulary(const Dataset& data, const ModelConfig& model) {
  i64 largest = 0;
  for (const Source& source : data.sources) {
    const i64 size = source.all.mapped() ? std::min(source.all.size(), kLookedAt) : source.all.size();
    std::vector<i64> tokens(1 << 16);
    for (i64 first = 0; first < size; first += static_cast<i64>(tokens.size())) {
      const i64 count = std::min(static_cast<i64>(tokens.size()), size - first);
      source.all.copy(first, count, tokens.data());
      largest = std::max(largest, *std::max_element(tokens.begin(), tokens.begin() + count));
    }
  }
  if (largest < model.vocab) return;
  fail<ConfigError>(
      "model",
      "{} has a vocabulary of {} tokens, but the data have tokens up to {}: expected a vocab_size "
      "of at least {} (of bytes 256 serves any text), or another data.tokenizer",
      model.name, model.vocab, largest, largest + 1);
}

double unigram_entropy(const TokenStream& tokens) {
  HM_CHECK(tokens.size() > 0, "no tokens");
  const i64 size = std::min(tokens.size(), kLookedAt);
  std::unordered_map<i64, i64> counts;
  for (i64 first = 0; first < size; first += 1 << 16) {
    for (const i64 token : tokens.tokens(first, std::min<i64>(1 << 16, size - first))) ++counts[token];
  }
  std::vector<std::pair<i64, i64>> sorted(counts.begin(), counts.end());  // so that the sum has one order
  std::sort(sorted.begin(), sorted.end());
  double entropy = 0;
  for (const auto& [token, count] : sorted) {
    const double share = real(count) / real(size);
    entropy -= share * std::log(share);
  }
  return entropy;
}

}  // namespace hetermoe
