#include "hetermoe/data/hf/decoder.h"

#include <optional>

#include "hetermoe/base/index.h"
#include "hetermoe/data/hf/byte_level.h"
#include "hetermoe/data/hf/replacement.h"
#include "hetermoe/data/hf/utf8.h"

namespace hetermoe::hf {
namespace {

using Texts = std::vector<std::string>;

/// Bytes may end within a character: they are left as they are.
class ByteLevelDecoder : public Decoder {
 public:
  Texts decoded(Texts tokens) const override {
    for (std::string& token : tokens) {
      if (std::optional<std::string> bytes = bytes_of_characters(token)) token = std::move(*bytes);
    }
    return tokens;
  }
};

/// The byte of a token such as <0x0A>.
std::optional<char> byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : std::tolower(c) - 'a' + 10; };
  if (std::isxdigit(static_cast<unsigned char>(token[3])) == 0 ||
      std::isxdigit(static_cast<unsigned char>(token[4])) == 0)
    return std::nullopt;
  return static_cast<char>(16 * digit(token[3]) + digit(token[4]));
}

/// Rows of bytes become texts; each byte of a row that is no UTF-8 becomes U+FFFD.
class ByteFallbackDecoder : public Decoder {
 public:
  Texts decoded(Texts tokens) const override {
    Texts out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (valid_prefix(bytes) == bytes.size())
        out.push_back(bytes);
      else
        out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const std::optional<char> byte = byte_of(token)) {
        bytes.push_back(*byte);
        continue;
      }
      flush();
      out.push_back(std::move(token));
    }
    flush();
    return out;
  }
};

class FuseDecoder : public Decoder {
 public:
  Texts decoded(Texts tokens) const override {
    std::string all;
    for (const std::string& token : tokens) all += token;
    return {all};
  }
};

class ReplaceDecoder : public Decoder {
 public:
  explicit ReplaceDecoder(const Part& part) : replacement_(part) {}
  Texts decoded(Texts tokens) const override {
    for (std::string& token : tokens) token = replacement_.apply(std::move(token));
    return tokens;
  }

 private:
  Replacement replacement_;
};

/// Takes at most so many of one character from the ends of every token.
class StripDecoder : public Decoder {
 public:
  explicit StripDecoder(const Part& part)
      : content_(part.text("content")), start_(part.number("start")), stop_(part.number("stop")) {
    if (content_.empty()) part.refuse("content", "a character");
  }
  Texts decoded(Texts tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (i64 i = 0; i < start_ && rest.starts_with(content_); ++i) rest.remove_prefix(content_.size());
      for (i64 i = 0; i < stop_ && rest.ends_with(content_); ++i) rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
    return tokens;
  }

 private:
  std::string content_;
  i64 start_, stop_;
};

/// The sign for a blank becomes one; in the first token it goes where encoding has put it there.
class MetaspaceDecoder : public Decoder {
 public:
  explicit MetaspaceDecoder(const Part& part)
      : sign_(part.text("replacement")),
        prepends_(part.text("prepend_scheme", "always") != "never" && part.flag("add_prefix_space", true)) {}
  Texts decoded(Texts tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string out;
      for (std::size_t at = 0; at < tokens[i].size();) {
        if (std::string_view(tokens[i]).substr(at).starts_with(sign_)) {
          if (i > 0 || !prepends_) out.push_back(' ');
          at += sign_.size();
        } else {
          out.push_back(tokens[i][at++]);
        }
      }
      tokens[i] = out;
    }
    return tokens;
  }

 private:
  std::string sign_;
  bool prepends_;
};

void add_decoder(const Part& part, Decoders& out) {
  const std::string type = part.type();
  if (type == "Sequence") {
    part.only({"decoders"});
    for (const Part& each : part.objects("decoders")) add_decoder(each, out);
  } else if (type == "ByteLevel") {
    out.push_back(std::make_unique<ByteLevelDecoder>());
  } else if (type == "ByteFallback") {
    out.push_back(std::make_unique<ByteFallbackDecoder>());
  } else if (type == "Fuse") {
    out.push_back(std::make_unique<FuseDecoder>());
  } else if (type == "Replace") {
    part.only({"pattern", "content"});
    out.push_back(std::make_unique<ReplaceDecoder>(part));
  } else if (type == "Strip") {
    part.only({"content", "start", "stop"});
    out.push_back(std::make_unique<StripDecoder>(part));
  } else if (type == "Metaspace") {
    part.only({"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    out.push_back(std::make_unique<MetaspaceDecoder>(part));
  } else {
    part.refuse("type", "ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace or Sequence");
  }
}

}  // namespace

Decoders read_decoder(const Part& part) {
  Decoders out;
  add_decoder(part, out);
  return out;
}

}  // namespace hetermoe::hf
