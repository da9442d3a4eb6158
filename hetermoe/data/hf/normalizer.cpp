#include "hetermoe/data/hf/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/data/hf/pattern.h"
#include "hetermoe/data/hf/replacement.h"
#include "hetermoe/data/hf/utf8.h"

namespace hetermoe::hf {
namespace {

std::string utf8proc_mapped(std::string_view text, unsigned options) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                             static_cast<utf8proc_option_t>(options));
  if (size < 0) fail<InputError>("data.tokenizer", "cannot normalise a text: {}", utf8proc_errmsg(size));
  std::string out(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size));
  std::free(mapped);
  return out;
}

/// Characters that a form leaves, around which it may be applied apart: they do not move, and compose with
/// none before them. [code point below kTold]; later ones are taken to be others.
constexpr i32 kTold = 0x20000;
std::vector<bool> stable_characters(unsigned options) {
  std::vector<bool> out(kTold, false);
  std::vector<i32> composing;  // with what is before them
  for (i32 code = 0; code < kTold; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    append_character(code, text);
    out[idx(code)] =
        utf8proc_get_property(code)->combining_class == 0 && utf8proc_mapped(text, options) == text;
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(code, parts, 32, UTF8PROC_DECOMPOSE, &boundary);
    for (utf8proc_ssize_t i = 1; i < count; ++i) composing.push_back(parts[i]);
  }
  for (const i32 code : composing) {
    if (code < kTold) out[idx(code)] = false;
  }
  return out;
}

const std::vector<bool>& told_stable(unsigned options) {
  static std::mutex mutex;
  static std::map<unsigned, std::vector<bool>> known;
  const std::lock_guard lock(mutex);
  std::vector<bool>& out = known[options];
  if (out.empty()) out = stable_characters(options);
  return out;
}

/// A form of Unicode. Stretches of stable characters stay as they are, but for the last before another.
class Form : public Normalizer {
 public:
  explicit Form(unsigned options) : options_(options | UTF8PROC_STABLE), stable_(told_stable(options_)) {}
  std::string normalized(std::string text) const override {
    std::string out;
    std::size_t done = 0, at = 0, last = 0;  // last: where the last stable character begins
    while (at < text.size()) {
      const Character next = first_character(std::string_view(text).substr(at));
      if (is_stable(next.code)) {
        last = at;
        at += next.size;
        continue;
      }
      out.append(text, done, last - done);
      done = end_of_stretch(text, at);
      out += utf8proc_mapped(std::string_view(text).substr(last, done - last), options_);
      at = last = done;
    }
    if (done == 0) return text;
    return out.append(text, done);
  }

 private:
  bool is_stable(i32 code) const { return code < kTold && stable_[idx(code)]; }
  std::size_t end_of_stretch(std::string_view text, std::size_t at) const {
    while (at < text.size()) {
      const Character next = first_character(text.substr(at));
      if (is_stable(next.code)) break;
      at += next.size;
    }
    return at;
  }

  unsigned options_;
  const std::vector<bool>& stable_;
};

/// Each character by itself: no rule looks at its neighbours.
class Lowercase : public Normalizer {
 public:
  std::string normalized(std::string text) const override {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const Character next = first_character(std::string_view(text).substr(at));
      if (next.code == 0x130)  // the one that becomes two
        out += "i\xCC\x87";
      else
        append_character(utf8proc_tolower(next.code), out);
      at += next.size;
    }
    return out;
  }
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string begin) : begin_(std::move(begin)) {}
  std::string normalized(std::string text) const override { return text.empty() ? text : begin_ + text; }

 private:
  std::string begin_;
};

class Replace : public Normalizer {
 public:
  explicit Replace(const Part& part) : replacement_(part) {}
  std::string normalized(std::string text) const override { return replacement_.apply(std::move(text)); }

 private:
  Replacement replacement_;
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  std::string normalized(std::string text) const override {
    std::string_view rest = text;
    while (left_ && !rest.empty()) {
      const Character first = first_character(rest);
      if (!is_white_space(first.code)) break;
      rest.remove_prefix(first.size);
    }
    while (right_ && !rest.empty()) {
      const std::size_t size = last_character_size(rest);
      if (!is_white_space(first_character(rest.substr(rest.size() - size)).code)) break;
      rest.remove_suffix(size);
    }
    return std::string(rest);
  }

 private:
  bool left_, right_;
};

void add_normalizer(const Part& part, Normalizers& out) {
  const std::string type = part.type();
  if (type == "Sequence") {
    part.only({"normalizers"});
    for (const Part& each : part.objects("normalizers")) add_normalizer(each, out);
  } else if (type == "NFC") {
    out.push_back(std::make_unique<Form>(UTF8PROC_COMPOSE));
  } else if (type == "NFD") {
    out.push_back(std::make_unique<Form>(UTF8PROC_DECOMPOSE));
  } else if (type == "NFKC") {
    out.push_back(std::make_unique<Form>(UTF8PROC_COMPOSE | UTF8PROC_COMPAT));
  } else if (type == "NFKD") {
    out.push_back(std::make_unique<Form>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT));
  } else if (type == "Lowercase") {
    out.push_back(std::make_unique<Lowercase>());
  } else if (type == "Prepend") {
    part.only({"prepend"});
    out.push_back(std::make_unique<Prepend>(part.text("prepend")));
  } else if (type == "Replace") {
    part.only({"pattern", "content"});
    out.push_back(std::make_unique<Replace>(part));
  } else if (type == "Strip") {
    part.only({"strip_left", "strip_right"});
    out.push_back(std::make_unique<Strip>(part.flag("strip_left", true), part.flag("strip_right", true)));
  } else {
    part.refuse("type", "NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip or Sequence");
  }
}

}  // namespace

Normalizers read_normalizer(const Part& part) {
  Normalizers out;
  add_normalizer(part, out);
  return out;
}

}  // namespace hetermoe::hf
