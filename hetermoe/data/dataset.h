#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "hetermoe/data/options.h"
#include "hetermoe/data/token_stream.h"
#include "hetermoe/data/tokenizer.h"
#include "hetermoe/model/model_config.h"

// The training data of a run: the tokens of its sources.
namespace hetermoe {

struct Source {
  std::string name;    ///< as data.paths has it
  std::string domain;  ///< kind of text, see data.domains
  double share = 1;    ///< of the sequences; those of all sources sum to 1
  TokenStream all;
  TokenStream train, validation;  ///< parts of it: the validation text is the end
  i64 num_files = 0;
  i64 num_skipped = 0;                  ///< files of folders that hold NUL bytes and so are no text
  std::set<std::string> skipped;        ///< their endings, as .parquet
  i64 num_empty = 0;                    ///< documents without tokens
  i64 bytes_read = 0, bytes_there = 0;  ///< of its files of text: data.max_bytes may leave out some
  /// Conversations in windows of train.seq_len: how many, longer ones, and of these those left out because no
  /// answer was in their beginning.
  i64 num_conversations = 0, num_cut = 0, num_unanswered = 0;
  i64 num_told_otherwise = 0;  ///< answers that are not counted, see ModelTemplate
};

struct Dataset {
  std::vector<Source> sources;
  bool masked = false;                         ///< tokens see their own document alone
  std::shared_ptr<const Tokenizer> tokenizer;  ///< of text; null = none, nor text
  /// Checksum of the training tokens of all sources, see TokenStream::checksum().
  u64 checksum() const;
  /// Names of the kinds of text, in the order of the sources; none where there is one source.
  std::vector<std::string> domains() const;
};

/// Reads the files that data.paths names: one source, or with data.weights one for each path. Throws
/// * IoError that names the file that cannot be read;
/// * InputError for a damaged file;
/// * ConfigError when there are fewer tokens than a sequence needs, or when there is text without a
///   tokenizer;
/// * ConfigError when a file that is named itself (not found in a folder) is no text;
/// * ConfigError when data.template is given for text that is neither JSON lines nor an array of objects.
Dataset load_dataset(const DataOptions& options, i64 seq_len);

/// One source of tokens in memory, each a byte.
Dataset byte_dataset(std::vector<std::uint8_t> train, std::vector<std::uint8_t> validation);

/// In what losses are counted: "byte", or "token" where a file of tokens or another tokenizer makes them.
const char* token_word(const DataOptions& options);

/// "2 files skipped, which hold NUL bytes: .gz, .parquet", and what makes text of them where that is known;
/// empty = no file was skipped.
std::string skipped_text(i64 num_skipped, const std::set<std::string>& endings);

/// Where the data come from, what makes their tokens, and how much of them was read: one line.
std::string data_line(const Dataset& data, const DataOptions& options);

/// Notes for the user on the conversations before a run: those that were cut.
std::vector<std::string> conversation_notes(const Dataset& data);

/// Throws ConfigError when there is a token that the model does not have. For mapped files only the beginning
/// is checked; the rest is checked as it is read.
void check_vocabulary(const Dataset& data, const ModelConfig& model);

/// Entropy of single counted tokens in nats: the loss of a model that knows frequencies only. For long
/// streams that of the first 2^24 tokens.
double unigram_entropy(const TokenStream& tokens);

}  // namespace hetermoe
