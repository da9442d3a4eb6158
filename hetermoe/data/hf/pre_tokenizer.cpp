#include "hetermoe/data/hf/pre_tokenizer.h"

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/data/hf/replacement.h"
#include "hetermoe/data/hf/split.h"

namespace hetermoe::hf {
namespace {

using Steps = std::vector<std::unique_ptr<const PreTokenizer>>;

/// The pattern of GPT-2, which ByteLevel has by itself.
constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
/// Words and white space of Rust's regex, by which Whitespace and WhitespaceSplit go.
constexpr const char* kRustWords =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D})"
    R"(\p{White_Space}]+)";

/// Puts a text before each piece that begins otherwise; only_start: before the one that begins the whole
/// text.
class PrefixStep : public PreTokenizer {
 public:
  PrefixStep(std::string prefix, bool only_start) : prefix_(std::move(prefix)), only_start_(only_start) {}
  void split(std::string_view text, bool at_start, PieceSink& out) const override {
    if (text.starts_with(prefix_) || (only_start_ && !at_start)) return out.take(text, at_start);
    out.take(prefix_ + std::string(text), at_start);
  }

 private:
  std::string prefix_;
  bool only_start_;
};

/// Blanks become another text.
class BlankStep : public PreTokenizer {
 public:
  explicit BlankStep(std::string replacement) : replacement_(std::move(replacement)) {}
  void split(std::string_view text, bool at_start, PieceSink& out) const override {
    std::string changed;
    for (const char c : text) {
      if (c == ' ')
        changed += replacement_;
      else
        changed.push_back(c);
    }
    out.take(changed, at_start);
  }

 private:
  std::string replacement_;
};

void add_split(const Part& part, Steps& out) {
  part.only({"pattern", "behavior", "invert"});
  out.push_back(std::make_unique<SplitStep>(read_pattern(part), read_behavior(part, "behavior"),
                                            part.flag("invert", false)));
}

void add_pattern(const char* pcre2, SplitBehavior behavior, Steps& out, bool invert = false) {
  out.push_back(std::make_unique<SplitStep>(Pattern::of_pcre2(pcre2), behavior, invert));
}

/// Bytes are no characters here: the model has the bytes for which the characters of its vocabulary stand.
void add_byte_level(const Part& part, Steps& out) {
  part.only({"add_prefix_space", "trim_offsets", "use_regex"});
  if (part.flag("add_prefix_space", true)) out.push_back(std::make_unique<PrefixStep>(" ", false));
  if (part.flag("use_regex", true))
    out.push_back(
        std::make_unique<SplitStep>(Pattern::of_file(kGpt2, part.where()), SplitBehavior::kIsolated));
}

void add_metaspace(const Part& part, Steps& out) {
  part.only({"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const std::string sign = part.text("replacement"), scheme = part.text("prepend_scheme", "always");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    part.refuse("prepend_scheme", "always, first or never");
  out.push_back(std::make_unique<BlankStep>(sign));
  if (scheme != "never" && part.flag("add_prefix_space", true))
    out.push_back(std::make_unique<PrefixStep>(sign, scheme == "first"));
  if (part.flag("split", true))
    out.push_back(
        std::make_unique<SplitStep>(Pattern::of_literal(sign, part.where()), SplitBehavior::kMergedWithNext));
}

void add_punctuation(const Part& part, Steps& out) {
  part.only({"behavior"});
  const SplitBehavior behavior =
      part.has("behavior") ? read_behavior(part, "behavior") : SplitBehavior::kIsolated;
  add_pattern(R"([!-/:-@\[-`{-~\p{P}])", behavior, out);
}

void add_step(const Part& part, PreTokenizers& out) {
  if (out.byte_level) fail<ConfigError>(part.where(), "follows ByteLevel, expected that as the last");
  const std::string type = part.type();
  if (type == "Sequence") {
    part.only({"pretokenizers"});
    for (const Part& each : part.objects("pretokenizers")) add_step(each, out);
  } else if (type == "Split") {
    add_split(part, out.steps);
  } else if (type == "ByteLevel") {
    add_byte_level(part, out.steps);
    out.byte_level = true;
  } else if (type == "Metaspace") {
    add_metaspace(part, out.steps);
  } else if (type == "Digits") {
    part.only({"individual_digits"});
    const bool single = part.flag("individual_digits", false);
    add_pattern(R"(\p{N})", single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, out.steps);
  } else if (type == "Whitespace") {
    add_pattern(kRustWords, SplitBehavior::kRemoved, out.steps, true);
  } else if (type == "WhitespaceSplit") {
    add_pattern(R"(\p{White_Space})", SplitBehavior::kRemoved, out.steps);
  } else if (type == "Punctuation") {
    add_punctuation(part, out.steps);
  } else {
    part.refuse("type",
                "Split, ByteLevel, Metaspace, Digits, Whitespace, WhitespaceSplit, Punctuation or Sequence");
  }
}

/// Hands the pieces of one step to the next.
class Chain : public PieceSink {
 public:
  Chain(const Steps& steps, std::size_t next, PieceSink& out) : steps_(steps), next_(next), out_(out) {}
  void take(std::string_view piece, bool at_start) override {
    if (next_ == steps_.size()) return out_.take(piece, at_start);
    Chain rest(steps_, next_ + 1, out_);
    steps_[next_]->split(piece, at_start, rest);
  }

 private:
  const Steps& steps_;
  std::size_t next_;
  PieceSink& out_;
};

}  // namespace

void PreTokenizers::split(std::string_view text, bool at_start, PieceSink& out) const {
  if (!text.empty()) Chain(steps, 0, out).take(text, at_start);
}

const SplitStep* PreTokenizers::divided() const {
  const auto* first = steps.empty() ? nullptr : dynamic_cast<const SplitStep*>(steps[0].get());
  return first != nullptr && first->divides() ? first : nullptr;
}

std::size_t PreTokenizers::split_range(std::string_view text, bool at_start, std::size_t from, std::size_t to,
                                       PieceSink& out) const {
  Chain rest(steps, 1, out);
  return divided()->split_range(text, at_start, from, to, rest);
}

PreTokenizers read_pre_tokenizer(const Part& part) {
  PreTokenizers out;
  add_step(part, out);
  return out;
}

}  // namespace hetermoe::hf
