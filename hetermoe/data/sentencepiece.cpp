#include <sentencepiece_processor.h>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/json.h"
#include "hetermoe/data/tokenizer.h"

namespace hetermoe {
namespace {

/// Longer texts are encoded in parts that end at line breaks: the library's memory is many times the text.
/// Each part begins as a text does, with a blank where the model adds one.
constexpr std::size_t kMostAtOnce = 1 << 16;

class SentencePieceModel : public Tokenizer {
 public:
  explicit SentencePieceModel(const std::string& path) {
    const std::string bytes = read_text(path);
    fingerprint_ = checksum(bytes.data(), bytes.size());
    const sentencepiece::util::Status status = processor_.LoadFromSerializedProto(bytes);
    if (!status.ok()) fail<IoError>(path, "is no SentencePiece model: {}", status.ToString());
  }

  std::vector<i64> encode(std::string_view text) const override {
    std::vector<i64> out;
    std::vector<int> ids;
    while (!text.empty()) {
      std::size_t size = text.size();
      if (size > kMostAtOnce) {
        const std::size_t line = text.rfind('\n', kMostAtOnce);
        size = line == std::string_view::npos ? kMostAtOnce : line + 1;
      }
      const sentencepiece::util::Status status = processor_.Encode({text.data(), size}, &ids);
      if (!status.ok()) fail<InputError>("data.tokenizer", "cannot encode a text: {}", status.ToString());
      out.insert(out.end(), ids.begin(), ids.end());
      text.remove_prefix(size);
    }
    return out;
  }

  std::string decode(std::span<const i64> tokens) const override {
    std::string out;
    std::vector<int> known;
    const auto flush = [&] {
      std::string part;
      const sentencepiece::util::Status status = processor_.Decode(known, &part);
      if (!status.ok()) fail<InputError>("data.tokenizer", "cannot decode: {}", status.ToString());
      out += part;
      known.clear();
    };
    for (const i64 token : tokens) {
      if (token >= 0 && token < vocab_size()) {
        known.push_back(static_cast<int>(token));
        continue;
      }
      flush();
      out += fmt::format("<{}>", token);
    }
    flush();
    return out;
  }

  std::vector<i64> encode_special(std::string_view name) const override {
    const int id = processor_.PieceToId(name);
    if (processor_.IsUnknown(id)) return {};
    return {id};
  }

  i64 vocab_size() const override { return processor_.GetPieceSize(); }
  u64 fingerprint() const override { return fingerprint_; }
  std::optional<i64> end_token() const override {
    const int id = processor_.eos_id();
    return id < 0 ? std::nullopt : std::optional<i64>(id);
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
  u64 fingerprint_ = 0;
};

}  // namespace

std::shared_ptr<const Tokenizer> read_sentencepiece(const std::string& path) {
  return std::make_shared<SentencePieceModel>(path);
}

}  // namespace hetermoe
