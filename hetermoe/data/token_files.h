#pragma once
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hetermoe/data/token_array.h"
#include "hetermoe/data/token_stream.h"

// Tokens that another program made of text.
namespace hetermoe {

/// Documents one after another.
struct DocumentTokens {
  TokenArray tokens;
  std::vector<i64> starts;  ///< token with which each document begins, ascending; documents are not empty
  i64 num_empty = 0;        ///< documents without tokens, which are left out of `starts`
  std::vector<TokenSpan> answers = {};    ///< of documents that are conversations, ascending
  std::vector<TokenSpan> uncounted = {};  ///< ascending
};

/// Contents of the .idx of Megatron-LM.
struct MegatronIndex {
  TokenType type = TokenType::kU16;
  i64 num_sequences = 0, num_tokens = 0;
  std::vector<i64> starts;  ///< as in DocumentTokens
  i64 num_empty = 0;
  std::vector<TokenSpan> answers;  ///< sequences of mode 2
};
/// bytes: the whole .idx; bin_bytes: size of the .bin. Throws InputError that begins with `where` for an
/// index that is cut, damaged, or of another .bin.
MegatronIndex parse_megatron_index(std::string_view bytes, i64 bin_bytes, const std::string& where);

/// The .bin that lies beside an .idx.
DocumentTokens read_megatron(const std::filesystem::path& index);

/// Writes PREFIX.bin and PREFIX.idx. Both come under these names in finish(); before there is PREFIX.bin.part
/// alone, which goes when the writer ends without it.
class MegatronWriter {
 public:
  /// Tokens take 2 bytes where the vocabulary is below 65500, as in Megatron-LM, else 4. Throws IoError.
  MegatronWriter(std::filesystem::path prefix, i64 vocab);
  ~MegatronWriter();
  /// May be empty. answers: the tokens that are counted, where the document is a conversation; they become
  /// sequences of mode 2, which is a mark of this program and none of Megatron-LM.
  void add(std::span<const i64> document, std::span<const TokenSpan> answers = {});
  void finish();  ///< throws WriteError when the disk does not take it
  i64 num_documents() const { return static_cast<i64>(ends_.size()); }
  i64 num_tokens() const { return num_tokens_; }

 private:
  void check_written() const;
  void add_sequence(i64 length, char mode);
  std::filesystem::path prefix_, part_;
  TokenType type_;
  std::ofstream bin_;
  std::vector<std::int32_t> lengths_;  // of sequences, several in a conversation
  std::string modes_;                  // [sequences]
  std::vector<i64> ends_;              // [documents] sequences up to the end of each
  i64 num_tokens_ = 0;
};

/// Whether these are the first bytes of a token file of llm.c.
bool is_llmc(std::string_view bytes);
/// A token file of llm.c: tokens of 2 bytes, or of 4 in its variant for Llama 3. Documents begin with
/// `start_token`; without one the file is one document. Throws InputError.
DocumentTokens read_llmc(const std::filesystem::path& path, std::optional<i64> start_token);

}  // namespace hetermoe
