#include "hetermoe/data/dataset.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "hetermoe/base/enum_count.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/data/source_reader.h"
#include "hetermoe/data/token_cache.h"
#include "hetermoe/report/table.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<Documents>::names() {
  static const std::vector<std::string> all = names_of_all<Documents>({"packed", "masked"});
  return all;
}

namespace {

/// " of NAME" where there are several sources.
std::string of_source(const Source& source) { return source.name.empty() ? "" : " of " + source.name; }

constexpr i64 kLookedAt = 1 << 24;  // tokens of a stream that are read before the first step

/// Checks that there are tokens for one sequence. It needs one more than it has, for the last target.
void check_length(const Source& source, const TokenStream& part, i64 seq_len, const char* use) {
  if (part.size() > seq_len) return;
  if (source.num_conversations > 0 && source.num_unanswered == source.num_conversations) {
    fail<ConfigError>(
        "train.seq_len",
        "no conversation of {}{} has a counted answer in its first {}: got {}, {} of them longer. "
        "Raise train.seq_len",
        counted(source.num_files, "file"), of_source(source), counted(seq_len, "token"),
        counted(source.num_conversations, "conversation"), source.num_cut);
  }
  fail<ConfigError>("data.paths",
                    "too little text for {}: got {} from {}{}, expected at least {} (train.seq_len + 1). "
                    "Name more text, or lower train.seq_len{}{}",
                    use, counted(part.size(), "token"), counted(source.num_files, "file"), of_source(source),
                    seq_len + 1, std::strcmp(use, "validation") == 0 ? ", or set data.validation_share" : "",
                    source.num_skipped > 0 ? ". " + skipped_text(source.num_skipped, source.skipped) : "");
}

/// Conversations are divided where a window ends, and both parts have the token at the cut: it is the last
/// target of the one and the first token of the other.
void divide_conversations(Source& source, double validation_share, i64 seq_len) {
  const i64 windows = (source.all.size() - 1) / seq_len;
  const i64 validation =
      validation_share > 0 ? std::max<i64>(1, std::llround(validation_share * real(windows))) : 0;
  const i64 cut = std::max<i64>(0, windows - validation) * seq_len;
  source.train = validation == 0 ? source.all : source.all.part(0, cut + 1);
  source.validation = validation == 0 ? TokenStream() : source.all.part(cut, source.all.size() - cut);
}

void divide(Source& source, double validation_share, i64 seq_len) {
  const i64 size = source.all.size();
  if (source.num_conversations > 0 && size > 0)
    return divide_conversations(source, validation_share, seq_len);
  const i64 validation = static_cast<i64>(validation_share * static_cast<double>(size));
  source.train = source.all.part(0, size - validation);
  source.validation = source.all.part(size - validation, validation);
}

/// Of the library as much as a small model learns from in a while; of what a user names all.
constexpr i64 kMostOfLibrary = 8 << 20;

Source make_source(const DataOptions& options, const Tokenizer* tokenizer, i64 seq_len,
                   const std::vector<SourceFile>& files) {
  const i64 all = options.paths.empty() ? kMostOfLibrary : std::numeric_limits<i64>::max();
  SourceReader reader(options, tokenizer, seq_len, options.max_bytes.value_or(all));
  try {
    for (const SourceFile& file : files) reader.read(file);
    return reader.finish();
  } catch (const std::bad_alloc&) {
    fail<IoError>("data.max_bytes", "there is no memory for so much text: say how much of it to read");
  }
}

Source read_source(const DataOptions& options, const Tokenizer* tokenizer, i64 seq_len,
                   const std::vector<SourceFile>& files) {
  const auto make = [&] { return make_source(options, tokenizer, seq_len, files); };
  const Json identity = options.paths.empty() ? Json() : cache_identity(options, tokenizer, files);
  return identity.is_null() ? make() : cached_source(token_cache_folder(options), identity, make);
}

/// The name that data.domains gives a path, else its last part.
std::string domain_of(const DataOptions& options, std::size_t i) {
  if (!options.domains.empty()) return options.domains[i];
  const std::filesystem::path path(options.paths[i]);
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

/// Throws where a list has not one entry for each path.
void check_per_path(const DataOptions& options, const char* key, std::size_t count, const char* what) {
  if (count > 0 && count != options.paths.size())
    fail<ConfigError>(key, "got {}, expected one for each of {}", counted(count, what),
                      counted(options.paths.size(), "path"));
}

void check_domains(const DataOptions& options) {
  if (options.domains.empty()) return;
  if (options.weights.empty())
    fail<ConfigError>("data.domains",
                      "got {}, expected none where all paths are one source. Give data.weights, one for each "
                      "of data.paths",
                      counted(options.domains.size(), "domain"));
  check_per_path(options, "data.domains", options.domains.size(), "domain");
}

/// Files of each source; without data.weights of all paths together.
std::vector<std::vector<SourceFile>> find_sources(const DataOptions& options) {
  check_domains(options);
  check_per_path(options, "data.weights", options.weights.size(), "weight");
  if (options.paths.empty()) return {find_library_files(options.extensions)};
  std::vector<std::vector<SourceFile>> out;
  for (const std::string& path : options.paths) {
    const std::vector<SourceFile> found = find_files(path, options.extensions);
    if (out.empty() || !options.weights.empty()) out.emplace_back();
    out.back().insert(out.back().end(), found.begin(), found.end());
    if (found.empty() && !options.extensions.empty())
      fail<ConfigError>("data.extensions",
                        "no file below {} ends in {}: expected endings of the files to read there", path,
                        fmt::join(options.extensions, " or "));
  }
  return out;
}

/// Prose that is meant for conversations would be learned as prose.
void check_conversation_file(const DataOptions& options, const SourceFile& file) {
  if (options.chat_template.empty() || file.kind != FileKind::kText) return;
  if (options.paths.empty())
    fail<ConfigError>("data.paths", "is empty, expected files of conversations for data.template {}",
                      options.chat_template);
  const std::string extension = file.path.extension().string();
  fail<ConfigError>(
      "data.template",
      "{} is neither JSON lines (.jsonl) nor an array of objects (.json), from which alone conversations are "
      "read. {}",
      file.path.string(),
      file.found             ? "Say which files of the folder are meant: data.extensions .jsonl"
      : extension == ".json" ? "Expected [{...}, {...}], with a conversation in each object"
                             : "Write each conversation as a line, or leave out data.template for a text");
}

/// Null where all files are tokens and the job names no file of a tokenizer that the program reads.
std::shared_ptr<const Tokenizer> tokenizer_of(const DataOptions& options,
                                              const std::vector<std::vector<SourceFile>>& sources) {
  bool has_text = false;
  for (const std::vector<SourceFile>& files : sources) {
    for (const SourceFile& file : files) {
      check_conversation_file(options, file);
      has_text = has_text || is_text(file.kind);
    }
  }
  if (has_text) return make_tokenizer(options.tokenizer);
  std::error_code ignored;
  const std::string& name = options.tokenizer;
  const std::string found = std::filesystem::is_directory(name, ignored) ? find_tokenizer(name) : name;
  // Tokens of a file are none of bytes, whatever makes tokens where nothing is said.
  return found == "bytes" ? nullptr : try_tokenizer(name);
}

std::vector<Source> read_sources(const DataOptions& options, const Tokenizer* tokenizer, i64 seq_len,
                                 const std::vector<std::vector<SourceFile>>& files) {
  std::vector<Source> sources;
  for (std::size_t i = 0; i < files.size(); ++i) {
    sources.push_back(read_source(options, tokenizer, seq_len, files[i]));
    if (options.weights.empty()) continue;
    sources.back().name = options.paths[i];
    sources.back().domain = domain_of(options, i);
    sources.back().share = options.weights[i];
  }
  return sources;
}

}  // namespace

u64 Dataset::checksum() const {
  if (sources.size() == 1) return sources[0].train.checksum();
  Fnv all;
  for (const Source& source : sources) all.add(source.train.checksum());
  return all.value();
}

std::vector<std::string> Dataset::domains() const {
  std::vector<std::string> out;
  if (sources.size() < 2) return out;
  for (const Source& source : sources) {
    if (std::find(out.begin(), out.end(), source.domain) == out.end()) out.push_back(source.domain);
  }
  return out;
}

Dataset load_dataset(const DataOptions& options, i64 seq_len) {
  Dataset out;
  const std::vector<std::vector<SourceFile>> files = find_sources(options);
  out.tokenizer = tokenizer_of(options, files);
  out.sources = read_sources(options, out.tokenizer.get(), seq_len, files);
  const bool talks = std::any_of(out.sources.begin(), out.sources.end(),
                                 [](const Source& source) { return source.num_conversations > 0; });
  out.masked =
      options.documents.value_or(talks ? Documents::kMasked : Documents::kPacked) == Documents::kMasked;
  double sum = 0;
  for (Source& source : out.sources) {
    divide(source, options.validation_share, seq_len);
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

const char* token_word(const DataOptions& options) {
  if (options.tokenizer != "bytes") return "token";
  try {
    for (const std::vector<SourceFile>& files : find_sources(options)) {
      const auto is_tokens = [](const SourceFile& file) { return !is_text(file.kind); };
      if (std::any_of(files.begin(), files.end(), is_tokens)) return "token";
    }
  } catch (const Error&) {
    return "token";  // files that are gone say nothing
  }
  return "byte";
}

std::string skipped_text(i64 num_skipped, const std::set<std::string>& endings) {
  if (num_skipped == 0) return "";
  constexpr std::size_t kNamed = 5;
  std::vector<std::string> named;
  for (const std::string& ending : endings) {
    if (named.size() == kNamed) break;
    named.push_back(ending.empty() ? "no ending" : ending);
  }
  if (endings.size() > kNamed) named.push_back(counted(endings.size() - kNamed, "more ending"));
  return fmt::format(
      "{} skipped, which {} NUL bytes: {}{}", counted(num_skipped, "file"),
      agree(num_skipped, "holds", "hold"), fmt::join(named, ", "),
      endings.contains(".parquet") ? " (tools/parquet_to_jsonl.py makes JSON lines of Parquet)" : "");
}

std::string data_line(const Dataset& data, const DataOptions& options) {
  constexpr std::size_t kNamed = 3;
  i64 files = 0, tokens = 0, read = 0, there = 0, skipped = 0;
  std::set<std::string> endings;
  for (const Source& source : data.sources) {
    skipped += source.num_skipped;
    endings.insert(source.skipped.begin(), source.skipped.end());
    files += source.num_files, tokens += source.all.size();
    read += source.bytes_read, there += source.bytes_there;
  }
  std::vector<std::string> paths = options.paths;
  if (paths.size() > kNamed) {
    paths.resize(kNamed);
    paths.push_back(counted(options.paths.size() - kNamed, "more path"));
  }
  const std::string where =
      paths.empty() ? fmt::format("this machine's Python standard library, {}", python_library().string())
                    : fmt::format("{}", fmt::join(paths, ", "));
  const std::string of_all = read < there ? fmt::format("from {} of {} of text: data.max_bytes",
                                                        format_bytes(real(read)), format_bytes(real(there)))
                                          : "all there are";
  return fmt::format("{} ({}{}{}): {} tokens, {}; tokenizer {}", where, counted(files, "file"),
                     skipped > 0 ? "; " : "", skipped_text(skipped, endings), format_count(real(tokens)),
                     of_all, there == 0 ? "that of the files" : options.tokenizer);
}

std::vector<std::string> conversation_notes(const Dataset& data) {
  std::vector<std::string> out;
  for (const Source& source : data.sources) {
    if (source.num_told_otherwise > 0) {
      out.push_back(fmt::format(
          "[data] {}{} {} not counted: the chat template tells {} otherwise than the model writes {} when "
          "more "
          "follows. Give a line for each answer to learn all",
          counted(source.num_told_otherwise, "answer"), source.name.empty() ? "" : " of " + source.name,
          agree(source.num_told_otherwise, "is", "are"), source.num_told_otherwise == 1 ? "it" : "them",
          source.num_told_otherwise == 1 ? "it" : "them"));
    }
    if (source.num_cut == 0) continue;
    out.push_back(
        fmt::format("[data] {} of {}{} {} longer than train.seq_len and cut at the end; {} of them {} left "
                    "out, having no "
                    "answer before the cut",
                    source.num_cut, counted(source.num_conversations, "conversation"),
                    source.name.empty() ? "" : " of " + source.name, agree(source.num_cut, "is", "are"),
                    source.num_unanswered, agree(source.num_unanswered, "is", "are")));
  }
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
  const i64 size = std::min(tokens.size(), kLookedAt), sum = tokens.num_counted(0, size);
  std::unordered_map<i64, i64> counts;
  std::vector<i64> counted(1 << 16);
  for (i64 first = 0; first < size; first += 1 << 16) {
    const std::vector<i64> part = tokens.tokens(first, std::min<i64>(1 << 16, size - first));
    tokens.mark_counted(first, static_cast<i64>(part.size()), counted.data());
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (counted[i] != 0) ++counts[part[i]];
    }
  }
  std::vector<std::pair<i64, i64>> sorted(counts.begin(), counts.end());  // so that the sum has one order
  std::sort(sorted.begin(), sorted.end());
  double entropy = 0;
  for (const auto& [token, count] : sorted) {
    const double share = real(count) / real(sum);
    entropy -= share * std::log(share);
  }
  return entropy;
}

}  // namespace hetermoe
