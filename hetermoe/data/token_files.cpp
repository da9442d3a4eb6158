#include "hetermoe/data/token_files.h"

#include <array>
#include <cstring>
#include <limits>
#include <memory>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/json.h"
#include "hetermoe/data/mapped_file.h"

namespace hetermoe {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr i64 kHead = 34;
constexpr i64 kLlmcHead = 1024;
constexpr char kAnswer = 2;  // mode of a sequence

/// Megatron-LM's number of a type; the others of its list are no integers.
constexpr std::array<std::pair<int, TokenType>, 6> kCodes = {{{1, TokenType::kU8},
                                                              {2, TokenType::kI8},
                                                              {3, TokenType::kI16},
                                                              {4, TokenType::kI32},
                                                              {5, TokenType::kI64},
                                                              {8, TokenType::kU16}}};

template <class T>
T read_at(std::string_view bytes, i64 at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

/// An .idx part by part, each with what may be wrong with it.
class IndexReader {
 public:
  IndexReader(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  MegatronIndex read(i64 bin_bytes) {
    head();
    tokens(bin_bytes);
    documents();
    answers();
    return std::move(out_);
  }

 private:
  i64 size() const { return static_cast<i64>(bytes_.size()); }

  void head() {
    if (size() < kHead || bytes_.substr(0, kMagic.size()) != kMagic)
      fail<InputError>(where_, "is no index of Megatron-LM: it does not begin with MMIDIDX");
    const u64 version = read_at<u64>(bytes_, 9);
    if (version != 1) fail<InputError>(where_, "got version {}, expected 1", version);
    const int code = static_cast<unsigned char>(bytes_[17]);
    const auto* found = kCodes.begin();
    while (found != kCodes.end() && found->first != code) ++found;
    if (found == kCodes.end())
      fail<InputError>(where_, "got token type {}, expected 1, 2, 3, 4, 5 or 8: an integer", code);
    out_.type = found->second;
    const u64 sequences = read_at<u64>(bytes_, 18), documents = read_at<u64>(bytes_, 26);
    const u64 left = static_cast<u64>(size() - kHead);
    // Compared by division: the products could be beyond 64 bits.
    if (sequences > left / 12 || documents > (left - 12 * sequences) / 8) {
      fail<InputError>(where_, "is cut: got {} bytes, expected more for {} sequences and {} document ends",
                       size(), sequences, documents);
    }
    const u64 rest = left - 12 * sequences - 8 * documents;
    if (rest != 0 && rest != sequences) {
      fail<InputError>(where_, "got {} bytes, expected {} for {} sequences and {} document ends", size(),
                       static_cast<u64>(size()) - rest, sequences, documents);
    }
    out_.num_sequences = static_cast<i64>(sequences);
    num_ends_ = static_cast<i64>(documents);
    has_modes_ = rest != 0;
  }

  void tokens(i64 bin_bytes) {
    const i64 lengths = kHead, offsets = kHead + 4 * out_.num_sequences, each = bytes_of(out_.type);
    first_.reserve(idx(out_.num_sequences + 1));
    for (i64 s = 0; s < out_.num_sequences; ++s) {
      const auto length = read_at<std::int32_t>(bytes_, lengths + 4 * s);
      const i64 offset = read_at<i64>(bytes_, offsets + 8 * s);
      if (length < 0) fail<InputError>(where_, "sequence {} has a length of {} tokens", s, length);
      if (offset != out_.num_tokens * each) {
        fail<InputError>(
            where_, "sequence {} begins at byte {} of the .bin, expected {}: sequences one after another", s,
            offset, out_.num_tokens * each);
      }
      first_.push_back(out_.num_tokens);
      out_.num_tokens += length;  // at most 2^31 times the sequences of a file: fits
    }
    first_.push_back(out_.num_tokens);
    if (out_.num_tokens * each != bin_bytes) {
      fail<InputError>(where_, "names {} tokens of {} bytes, but its .bin has {} bytes, expected {}",
                       out_.num_tokens, each, bin_bytes, out_.num_tokens * each);
    }
  }

  void documents() {
    const i64 ends = kHead + 12 * out_.num_sequences;
    i64 before = 0;
    for (i64 d = 0; d < num_ends_; ++d) {
      const i64 sequence = read_at<i64>(bytes_, ends + 8 * d);
      const bool fits = d == 0 ? sequence == 0 : sequence >= before && sequence <= out_.num_sequences;
      if (!fits) {
        fail<InputError>(where_, "entry {} of the document list is sequence {}, expected {} to {}", d,
                         sequence, before, d == 0 ? 0 : out_.num_sequences);
      }
      if (d > 0) add_document(first_[idx(before)], first_[idx(sequence)]);
      before = sequence;
    }
    if (before != out_.num_sequences) {
      fail<InputError>(where_, "the document list ends at sequence {}, expected {}: all are in a document",
                       before, out_.num_sequences);
    }
  }

  void answers() {
    if (!has_modes_) return;
    const std::string_view modes = bytes_.substr(idx(kHead + 12 * out_.num_sequences + 8 * num_ends_));
    for (i64 s = 0; s < out_.num_sequences; ++s) {
      const TokenSpan span = {first_[idx(s)], first_[idx(s + 1)]};
      if (modes[idx(s)] == kAnswer && span.begin < span.end) out_.answers.push_back(span);
    }
  }

  void add_document(i64 begin, i64 end) {
    if (begin == end)
      ++out_.num_empty;
    else
      out_.starts.push_back(begin);
  }

  std::string_view bytes_;
  const std::string& where_;
  MegatronIndex out_;
  i64 num_ends_ = 0;
  bool has_modes_ = false;
  std::vector<i64> first_;  // token of each sequence
};

}  // namespace

MegatronIndex parse_megatron_index(std::string_view bytes, i64 bin_bytes, const std::string& where) {
  return IndexReader(bytes, where).read(bin_bytes);
}

DocumentTokens read_megatron(const fs::path& index) {
  const MappedFile file(index);
  const auto bin = std::make_shared<MappedFile>(fs::path(index).replace_extension(".bin"));
  const i64 size = static_cast<i64>(bin->bytes().size());
  MegatronIndex read = parse_megatron_index(file.bytes(), size, index.string());
  const void* data = bin->bytes().data();
  return {TokenArray(bin, data, read.type, read.num_tokens, true), std::move(read.starts), read.num_empty,
          std::move(read.answers)};
}

MegatronWriter::MegatronWriter(fs::path prefix, i64 vocab)
    : prefix_(std::move(prefix)),
      part_(prefix_.string() + ".bin.part"),
      type_(vocab < 65500 ? TokenType::kU16 : TokenType::kI32) {
  check_output_file(prefix_.string() + ".idx");
  if (prefix_.has_parent_path()) fs::create_directories(prefix_.parent_path());
  bin_.open(part_, std::ios::binary | std::ios::trunc);
  if (!bin_) fail<IoError>(part_.string(), "cannot create file: {}", std::strerror(errno));
}

MegatronWriter::~MegatronWriter() {
  std::error_code ignored;
  if (!part_.empty()) fs::remove(part_, ignored);
}

void MegatronWriter::check_written() const {
  if (!bin_) fail<WriteError>(part_.string(), "cannot write: {}", std::strerror(errno));
}

void MegatronWriter::add_sequence(i64 length, char mode) {
  lengths_.push_back(static_cast<std::int32_t>(length));
  modes_.push_back(mode);
}

void MegatronWriter::add(std::span<const i64> document, std::span<const TokenSpan> answers) {
  const i64 most = type_ == TokenType::kU16 ? 65535 : std::numeric_limits<std::int32_t>::max();
  if (document.size() > idx(std::numeric_limits<std::int32_t>::max()))
    fail<InputError>(prefix_.string(), "a document of {} tokens, expected fewer than 2^31", document.size());
  std::string bytes;
  bytes.reserve(document.size() * idx(bytes_of(type_)));
  for (const i64 token : document) {
    if (token < 0 || token > most)
      fail<InputError>(prefix_.string(), "got token {}, expected 0 to {}", token, most);
    bytes.append(reinterpret_cast<const char*>(&token), idx(bytes_of(type_)));
  }
  bin_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  check_written();
  const i64 size = static_cast<i64>(document.size());
  i64 at = 0;
  for (const TokenSpan& span : answers) {
    if (at < span.begin) add_sequence(span.begin - at, 0);
    add_sequence(span.end - span.begin, kAnswer);
    at = span.end;
  }
  if (at < size || size == 0) add_sequence(size - at, 0);
  ends_.push_back(static_cast<i64>(lengths_.size()));
  num_tokens_ += size;
}

void MegatronWriter::finish() {
  bin_.close();
  check_written();
  std::string index(kMagic);
  put<u64>(index, 1);
  index.push_back(type_ == TokenType::kU16 ? 8 : 4);
  put<u64>(index, lengths_.size());
  put<u64>(index, ends_.size() + 1);
  for (const std::int32_t length : lengths_) put(index, length);
  i64 offset = 0;
  for (const std::int32_t length : lengths_) {
    put(index, offset);
    offset += length * bytes_of(type_);
  }
  put(index, i64{0});
  for (const i64 end : ends_) put(index, end);
  if (modes_.find(kAnswer) != std::string::npos) index += modes_;
  fs::rename(part_, prefix_.string() + ".bin");
  part_.clear();
  write_text(prefix_.string() + ".idx", index);
}

bool is_llmc(std::string_view bytes) {
  if (bytes.size() < idx(kLlmcHead)) return false;
  const auto magic = read_at<std::int32_t>(bytes, 0);
  return magic == 20240520 || magic == 20240801;
}

DocumentTokens read_llmc(const fs::path& path, std::optional<i64> start_token) {
  const auto file = std::make_shared<MappedFile>(path);
  const std::string_view bytes = file->bytes();
  const std::string where = path.string();
  if (!is_llmc(bytes)) fail<InputError>(where, "is no token file of llm.c: it begins otherwise");
  const bool wide = read_at<std::int32_t>(bytes, 0) == 20240801;
  const auto version = read_at<std::int32_t>(bytes, 4);
  if (version != (wide ? 7 : 1))
    fail<InputError>(where, "got version {} of llm.c's tokens, expected {}", version, wide ? 7 : 1);
  const i64 count = read_at<std::int32_t>(bytes, 8);
  const TokenType type = wide ? TokenType::kU32 : TokenType::kU16;
  const i64 expected = kLlmcHead + count * bytes_of(type);
  if (count < 0 || expected != static_cast<i64>(bytes.size()))
    fail<InputError>(where, "names {} tokens, but has {} bytes, expected {}", count, bytes.size(), expected);
  DocumentTokens out{TokenArray(file, bytes.data() + kLlmcHead, type, count, true), {}, 0};
  if (count > 0) out.starts.push_back(0);
  std::vector<i64> part(1 << 16);
  for (i64 first = 0; start_token && first < count; first += static_cast<i64>(part.size())) {
    const i64 size = std::min(static_cast<i64>(part.size()), count - first);
    out.tokens.copy(first, size, part.data());
    for (i64 i = 0; i < size; ++i) {
      if (part[idx(i)] == *start_token && first + i > 0) out.starts.push_back(first + i);
    }
  }
  return out;
}

}  // namespace hetermoe
