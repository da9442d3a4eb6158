#include "hetermoe/data/hf/hf_tokenizer.h"

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/data/hf/split.h"
#include "hetermoe/data/hf/utf8.h"
#include "hetermoe/data/parallel_encode.h"
#include "hetermoe/report/escape.h"

namespace hetermoe::hf {
namespace {

std::string with_all(const Normalizers& normalizers, std::string text) {
  for (const auto& normalizer : normalizers) {
    if (!text.empty()) text = normalizer->normalized(std::move(text));
  }
  return text;
}

constexpr std::size_t kStretch = 1 << 20;  // bytes of a long text that a core encodes by itself

/// Places of a text where its pattern probably ends a match, about kStretch apart: lines that begin with a
/// letter. With begin and end.
std::vector<std::size_t> probable_cuts(std::string_view text) {
  std::vector<std::size_t> out = {0};
  for (std::size_t at = kStretch; at < text.size(); ++at) {
    const bool is_letter = (text[at] >= 'a' && text[at] <= 'z') || (text[at] >= 'A' && text[at] <= 'Z');
    if (text[at - 1] != '\n' || !is_letter) continue;
    out.push_back(at);
    at += kStretch;
  }
  out.push_back(text.size());
  return out;
}

}  // namespace

/// One text on its way to tokens.
class HfTokenizer::Encoding : public PieceSink {
 public:
  Encoding(const HfTokenizer& tokenizer, PieceCache& cache) : tokenizer_(tokenizer), cache_(cache) {}

  /// text: valid UTF-8.
  std::vector<i64> encode(std::string_view text, bool at_start) {
    tokenizer_.raw_finder_.split(
        text,
        [&](std::string_view part, std::size_t at) {
          if (tokenizer_.normalizers_.empty()) return add_normalized(part, at_start && at == 0);
          add_normalized(with_all(tokenizer_.normalizers_, std::string(part)), at_start && at == 0);
        },
        [&](i64 token) { add_token(token); });
    return {out_.begin(), out_.end()};
  }

  std::vector<i32> take_tokens() { return std::move(out_); }

  void take(std::string_view piece, bool) override {
    cache_.encode(piece, out_, [&](std::string_view missing, std::vector<i32>& out) {
      tokenizer_.model_->encode(missing, out);
    });
  }

 private:
  void add_token(i64 token) { out_.push_back(static_cast<i32>(token)); }
  void add_normalized(std::string_view text, bool at_start) {
    tokenizer_.normalized_finder_.split(
        text,
        [&](std::string_view part, std::size_t at) {
          if (part.size() >= 2 * kStretch && tokenizer_.pre_tokenizers_.divided() != nullptr)
            return tokenizer_.encode_divided(part, at_start && at == 0, out_);
          tokenizer_.pre_tokenizers_.split(part, at_start && at == 0, *this);
        },
        [&](i64 token) { add_token(token); });
  }

  const HfTokenizer& tokenizer_;
  PieceCache& cache_;
  std::vector<i32> out_;
};

HfTokenizer::HfTokenizer(const SortedJson& json, const std::string& where,
                         std::optional<std::string> end_token, u64 fingerprint)
    : fingerprint_(fingerprint) {
  const Part file(json, where);
  file.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
             "post_processor", "decoder", "model"});
  if (file.has("normalizer")) normalizers_ = read_normalizer(file.object("normalizer"));
  if (file.has("pre_tokenizer")) pre_tokenizers_ = read_pre_tokenizer(file.object("pre_tokenizer"));
  if (file.has("post_processor")) frame_ = read_post_processor(file.object("post_processor"));
  has_decoder_ = file.has("decoder");
  if (has_decoder_) decoders_ = read_decoder(file.object("decoder"));
  model_ = std::make_unique<Bpe>(file.object("model"), pre_tokenizers_.byte_level);
  read_tokens(file);
  if (!end_token) return;
  const std::vector<i64> end = encode_special(*end_token);
  if (end.empty())
    fail<ConfigError>(where, "has no token {}, which a file beside it names as eos_token", *end_token);
  end_token_ = end[0];
}

void HfTokenizer::read_tokens(const Part& file) {
  for (const auto& [text, id] : model_->vocabulary()) add_text(id, text);
  std::vector<AddedToken> raw, normalized;
  for (AddedToken& token : read_added_tokens(file)) {
    const std::optional<i32> known = model_->token(token.content);
    if (known && *known != token.id) {
      fail<ConfigError>(file.where(),
                        "the added token {} is {}, but {} in the vocabulary, expected one number",
                        token.content, token.id, *known);
    }
    added_[token.content] = token.id;
    if (token.normalized) token.content = with_all(normalizers_, token.content);
    add_text(token.id, token.content);  // decoding gives it as it is found
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  raw_finder_ = TokenFinder(std::move(raw));
  normalized_finder_ = TokenFinder(std::move(normalized));
}

void HfTokenizer::add_text(i64 id, const std::string& text) {
  constexpr i64 kMost = i64{1} << 24;  // far more than any model has; numbers become places of a list
  if (id >= kMost)
    fail<ConfigError>("data.tokenizer", "the token {} is {}, expected less than {}", text, id, kMost);
  if (idx(id) >= texts_.size()) texts_.resize(idx(id) + 1);
  texts_[idx(id)] = text;
}

std::vector<i64> HfTokenizer::encode_all(std::string_view text, bool at_start) const {
  if (text.empty()) return {};
  std::string replaced;
  if (valid_prefix(text) != text.size()) text = replaced = valid_utf8(text);
  std::unique_ptr<PieceCache> cache = take_cache();
  std::vector<i64> out = Encoding(*this, *cache).encode(text, at_start);
  give_back(std::move(cache));
  return out;
}

/// Each core takes a stretch as if a match had ended before it. Where none has, the stretch is encoded again
/// from where the one before really ended. So tokens are those of the whole text.
void HfTokenizer::encode_divided(std::string_view text, bool at_start, std::vector<i32>& out) const {
  struct Stretch {
    std::size_t end = 0;
    std::vector<i32> tokens;
  };
  const std::vector<std::size_t> cuts = probable_cuts(text);
  const auto encoded = [&](std::size_t from, std::size_t to) {
    std::unique_ptr<PieceCache> cache = take_cache();
    Encoding encoding(*this, *cache);
    Stretch stretch;
    stretch.end = pre_tokenizers_.split_range(text, at_start, from, to, encoding);
    stretch.tokens = encoding.take_tokens();
    give_back(std::move(cache));
    return stretch;
  };
  std::vector<Stretch> stretches(cuts.size() - 1);
  on_all_cores(stretches.size(), [&](std::size_t i) { stretches[i] = encoded(cuts[i], cuts[i + 1]); });
  std::size_t done = 0;
  for (std::size_t i = 0; i < stretches.size(); ++i) {
    if (done >= cuts[i + 1]) continue;
    if (done != cuts[i]) stretches[i] = encoded(done, cuts[i + 1]);
    out.insert(out.end(), stretches[i].tokens.begin(), stretches[i].tokens.end());
    stretches[i].tokens = {};
    done = stretches[i].end;
  }
}

std::unique_ptr<PieceCache> HfTokenizer::take_cache() const {
  {
    const std::lock_guard lock(mutex_);
    if (!caches_.empty()) {
      std::unique_ptr<PieceCache> out = std::move(caches_.back());
      caches_.pop_back();
      return out;
    }
  }
  return std::make_unique<PieceCache>();
}

void HfTokenizer::give_back(std::unique_ptr<PieceCache> cache) const {
  const std::lock_guard lock(mutex_);
  caches_.push_back(std::move(cache));
}

std::string HfTokenizer::decode_known(std::vector<std::string> tokens) const {
  for (const auto& decoder : decoders_) tokens = decoder->decoded(std::move(tokens));
  std::string out;
  for (const std::string& token : tokens) {
    if (!has_decoder_ && !out.empty()) out.push_back(' ');
    out += token;
  }
  return out;
}

std::string HfTokenizer::decode(std::span<const i64> tokens) const {
  std::string out;
  std::vector<std::string> known;
  const auto flush = [&] {
    if (!known.empty()) out += decode_known(std::exchange(known, {}));
  };
  for (const i64 token : tokens) {
    if (token >= 0 && token < vocab_size() && texts_[idx(token)]) {
      known.push_back(*texts_[idx(token)]);
      continue;
    }
    flush();
    out += fmt::format("<{}>", token);
  }
  flush();
  return out;
}

std::vector<i64> HfTokenizer::encode_special(std::string_view name) const {
  const std::string text(name);
  if (const auto found = added_.find(text); found != added_.end()) return {found->second};
  if (const std::optional<i32> token = model_->token(text)) return {*token};
  return {};
}

}  // namespace hetermoe::hf
