#include "hetermoe/base/json.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/json_depth.h"
#include "hetermoe/base/paths.h"
#include "hetermoe/base/sorted_json.h"
#include "hetermoe/base/types.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// No honest file has more. The text has to be short, because its parser needs up to 500 times its size.
constexpr i64 kMaxYamlValues = 500'000, kMaxYamlBytes = 1 << 22;
/// Bytes of all texts, each alias counted as what it stands for.
constexpr i64 kMaxYamlTexts = 4 * kMaxYamlBytes;

std::string at_line(const std::string& where, std::string_view text, std::size_t position) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(position, text.size()));
  return fmt::format("{}:{}", where, 1 + std::count(text.begin(), end, '\n'));
}

/// Bytes of the UTF-8 character that begins at `position`; 0 = not UTF-8. Overlong forms are left to the
/// parsers.
std::size_t utf8_length(const std::string& text, std::size_t position) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned lead = byte(position);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xC2 ? 0
                             : lead < 0xE0 ? 2
                             : lead < 0xF0 ? 3
                             : lead < 0xF5 ? 4
                                           : 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(position + i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

void check_is_text(const std::string& text, const std::string& where) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    if (length == 0 || text[i] == 0) {
      fail<ConfigError>(at_line(where, text, i),
                        "not a text file: got byte 0x{:02x} at position {}, expected UTF-8 text",
                        static_cast<unsigned char>(text[i]), i);
    }
    i += length;
  }
}

bool any_of(const std::string& text, std::initializer_list<const char*> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

/// A whole text as a number; `format` and `base` as for from_chars.
template <class T, class... Format>
bool parse_number(std::string_view text, T& out, Format... format) {
  const auto [rest, code] = std::from_chars(text.data(), text.data() + text.size(), out, format...);
  return code == std::errc() && rest == text.data() + text.size();
}

/// Plain scalars of the core schema of YAML 1.2.
Json yaml_scalar(const YAML::Node& node, const std::string& where) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // quoted
  if (text.empty() || any_of(text, {"~", "null", "Null", "NULL"})) return nullptr;
  if (any_of(text, {"true", "True", "TRUE"})) return true;
  if (any_of(text, {"false", "False", "FALSE"})) return false;
  const bool has_sign = text[0] == '+' || text[0] == '-';
  const char first = text.size() > (has_sign ? 1 : 0) ? text[has_sign ? 1 : 0] : '-';
  if (first != '.' && (first < '0' || first > '9')) return text;  // from_chars takes "inf", "nan" and "+-1"
  const std::string_view number = std::string_view(text).substr(text[0] == '+' ? 1 : 0);
  i64 integer = 0;
  u64 large = 0;
  double real = 0;
  if (parse_number(number, integer)) return integer;
  if (parse_number(number, large)) return large;
  if (number.starts_with("0x") && parse_number(number.substr(2), large, 16)) return large;
  if (number.starts_with("0o") && parse_number(number.substr(2), large, 8)) return large;
  const auto [rest, code] = std::from_chars(number.data(), number.data() + number.size(), real);
  if (rest != number.data() + number.size()) return text;
  if (code == std::errc::result_out_of_range) {
    fail<ConfigError>(fmt::format("{}:{}", where, node.Mark().line + 1),
                      "number {} is too large or too small", text);
  }
  return real;
}

/// Copies the value of an alias (*name) to each place where the alias stands. An alias that holds itself is
/// an error, and so is a file that grows without bounds by aliases of aliases.
class YamlReader {
 public:
  explicit YamlReader(const std::string& where) : where_(where) {}

  Json read(const YAML::Node& node, i64 depth = 0) {
    if (depth > kMaxJsonDepth || ++num_values_ > kMaxYamlValues) {
      stop(node, "too deeply nested or too long: is there an alias that holds itself?");
    }
    switch (node.Type()) {
      case YAML::NodeType::Scalar:
        count_text(node);
        return yaml_scalar(node, where_);
      case YAML::NodeType::Sequence: {
        Json out = Json::array();
        for (const YAML::Node& item : node) out.push_back(read(item, depth + 1));
        return out;
      }
      case YAML::NodeType::Map:
        return read_map(node, depth);
      default:
        return nullptr;
    }
  }

 private:
  [[noreturn]] void stop(const YAML::Node& node, const std::string& what) const {
    fail<ConfigError>(fmt::format("{}:{}", where_, node.Mark().line + 1), "{}", what);
  }

  void count_text(const YAML::Node& scalar) {
    num_bytes_ += std::ssize(scalar.Scalar());
    if (num_bytes_ > kMaxYamlTexts)
      stop(scalar,
           fmt::format("aliases make the text too large: expected at most {} bytes in all", kMaxYamlTexts));
  }

  Json read_map(const YAML::Node& node, i64 depth) {
    Json out = Json::object();
    auto& object = out.get_ref<Json::object_t&>();
    std::unordered_set<std::string> keys;  // the object itself looks at all of them for each
    for (const auto& item : node) {
      if (!item.first.IsScalar()) stop(item.first, "a key must be a plain text");
      count_text(item.first);
      const std::string& key = item.first.Scalar();
      if (!keys.insert(key).second)
        stop(item.first, fmt::format("key \"{}\" is given twice", printable(key)));
      object.emplace_back(key, read(item.second, depth + 1));
    }
    return out;
  }

  const std::string& where_;
  i64 num_values_ = 0, num_bytes_ = 0;
};

/// Keeps where the last document of a YAML text begins, and nothing else of it. Refuses a text of too many
/// values before the parser makes a node of each.
class DocumentStart : public YAML::EventHandler {
 public:
  explicit DocumentStart(const std::string& where) : where_(where) {}
  YAML::Mark mark;

 private:
  using Text = const std::string&;
  void count(const YAML::Mark& at) {
    if (++num_values_ > kMaxYamlValues)
      fail<ConfigError>(fmt::format("{}:{}", where_, at.line + 1),
                        "has too many keys and values: expected at most {}", kMaxYamlValues);
  }
  void OnDocumentStart(const YAML::Mark& at) override { mark = at; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& at, YAML::anchor_t) override { count(at); }
  void OnAlias(const YAML::Mark& at, YAML::anchor_t) override { count(at); }
  void OnScalar(const YAML::Mark& at, Text, YAML::anchor_t, Text) override { count(at); }
  void OnSequenceStart(const YAML::Mark& at, Text, YAML::anchor_t, YAML::EmitterStyle::value) override {
    count(at);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& at, Text, YAML::anchor_t, YAML::EmitterStyle::value) override {
    count(at);
  }
  void OnMapEnd() override {}

  const std::string& where_;
  i64 num_values_ = 0;
};

/// yaml-cpp makes empty documents without end of a text such as ",": its parser does not move on. So
/// YAML::LoadAll, which collects them all, is of no use here.
void check_one_document(const std::string& text, const std::string& where) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  DocumentStart start(where);
  int count = 0;
  for (int last = -1; parser.HandleNextDocument(start); ++count, last = start.mark.pos) {
    if (start.mark.pos == last) {
      fail<ConfigError>(fmt::format("{}:{}", where, start.mark.line + 1),
                        "not valid YAML: unexpected text in column {}", start.mark.column + 1);
    }
  }
  if (count > 1) fail<ConfigError>(where, "holds {} YAML documents (parts after ---), expected one", count);
}

}  // namespace

std::optional<std::size_t> json_too_deep(std::string_view text) {
  i64 depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return i;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return {};
}

std::string read_text(const fs::path& path, i64 limit) {
  std::error_code code;
  if (fs::is_directory(path, code)) fail<IoError>(path.string(), "is a folder, expected a file");
  // Opening one would wait for a writer, maybe for ever. Those below /dev and /proc are open already.
  const std::string name = path.string();
  if (fs::is_fifo(path, code) && !name.starts_with("/dev/") && !name.starts_with("/proc/"))
    fail<IoError>(name, "is a named pipe, expected a file. Write its text to a file, or name /dev/stdin");
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    const std::string why = std::strerror(errno);
    const std::string from =
        path.is_absolute() ? "" : " (looked for in " + fs::current_path(code).string() + ")";
    const std::string near = fs::exists(path, code) ? "" : near_file(path);
    fail<IoError>(path.string(), "cannot read file: {}{}{}", why, from,
                  near.empty() ? "" : fmt::format(". Did you mean \"{}\"?", near));
  }
  const auto refuse = [&](const std::string& got) {
    fail<IoError>(path.string(), "is too large for a text file: got {}, expected at most {} bytes", got,
                  limit);
  };
  const std::uintmax_t size = fs::is_regular_file(path, code) ? fs::file_size(path, code) : 0;
  if (!code && size > static_cast<std::uintmax_t>(limit)) refuse(fmt::format("{} bytes", size));
  std::string text;
  std::vector<char> chunk(1 << 16);  // not on the stack, which may be as small
  while (in) {
    in.read(chunk.data(), std::ssize(chunk));
    text.append(chunk.data(), static_cast<std::size_t>(in.gcount()));
    if (std::ssize(text) > limit) refuse("no end after them");
  }
  if (in.bad()) fail<IoError>(path.string(), "reading stopped: {}", std::strerror(errno));
  return text;
}

namespace {

/// Builds a value in a time that grows with the text. The library's own ways do not: an ordered object looks
/// at all its names for each new one, and a callback walks the whole parent when a value in it ends.
template <class J>
class JsonBuilder : public nlohmann::json_sax<J> {
 public:
  JsonBuilder(const std::string& text, const std::string& where) : text_(text), where_(where) {}
  J take() { return std::move(root_); }

 private:
  using Names = std::unordered_map<std::string, std::size_t>;  // to the place in an ordered object

  J* add(J value) {
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_object()) return &(*slot_ = std::move(value));
    open_.back()->push_back(std::move(value));
    return &open_.back()->back();
  }
  bool begin(J empty) {
    open_.push_back(add(std::move(empty)));
    names_.emplace_back();
    return true;
  }
  bool end() {
    open_.pop_back();
    names_.pop_back();
    return true;
  }
  /// Of a name that stands twice, the last value counts.
  Json* slot(Json::object_t& object, const std::string& name) {
    const auto [place, is_new] = names_.back().try_emplace(name, object.size());
    if (is_new) object.emplace_back(name, nullptr);
    return &(object.data() + place->second)->second;
  }
  SortedJson* slot(SortedJson::object_t& object, const std::string& name) {
    const auto [place, is_new] = object.try_emplace(name);
    if (!is_new) fail<ConfigError>(where_, "\"{}\" is given twice, expected each name once", name);
    return &place->second;
  }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(typename J::number_integer_t value) override { return add(value); }
  bool number_unsigned(typename J::number_unsigned_t value) override { return add(value); }
  bool number_float(typename J::number_float_t value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(typename J::binary_t&) override { return false; }  // a text has none
  bool start_object(std::size_t) override { return begin(J::object()); }
  bool key(std::string& name) override {
    slot_ = slot(open_.back()->template get_ref<typename J::object_t&>(), name);
    return true;
  }
  bool end_object() override { return end(); }
  bool start_array(std::size_t) override { return begin(J::array()); }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    constexpr int kOverflow = 406;
    if (error.id == kOverflow)
      fail<ConfigError>(at_line(where_, text_, position), "number {} is too large or too small",
                        token.substr(0, 60));
    fail<ConfigError>(
        at_line(where_, text_, position), "not valid JSON (byte {} of {}): {}", position, text_.size(),
        position > text_.size() ? "the text ends too early; is the file truncated?" : "syntax error here");
  }

  const std::string& text_;
  const std::string& where_;
  J root_;
  std::vector<J*> open_;      ///< objects and arrays that have begun
  std::vector<Names> names_;  ///< of each of them; used of ordered objects alone
  J* slot_ = nullptr;         ///< where the value of the last name goes
};

template <class J>
J parse_as(const std::string& text, const std::string& where) {
  check_is_text(text, where);
  if (const std::optional<std::size_t> deep = json_too_deep(text))
    fail<ConfigError>(at_line(where, text, *deep), "nested more than {} levels deep", kMaxJsonDepth);
  JsonBuilder<J> builder(text, where);
  nlohmann::json_sax<J>* const events = &builder;
  J::sax_parse(text, events);
  return builder.take();
}

}  // namespace

Json parse_json(const std::string& text, const std::string& where) { return parse_as<Json>(text, where); }

SortedJson parse_sorted_json(const std::string& text, const std::string& where) {
  return parse_as<SortedJson>(text, where);
}

Json read_json(const fs::path& path) { return parse_json(read_text(path), path.string()); }

Json parse_yaml(const std::string& text, const std::string& where) {
  if (std::ssize(text) > kMaxYamlBytes)
    fail<ConfigError>(where, "is too large for YAML: got {} bytes, expected at most {}", text.size(),
                      kMaxYamlBytes);
  check_is_text(text, where);
  try {
    check_one_document(text, where);
    return YamlReader(where).read(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    fail<ConfigError>(fmt::format("{}:{}", where, error.mark.line + 1), "not valid YAML: {}", error.msg);
  }
}

Json read_yaml(const fs::path& path) { return parse_yaml(read_text(path, kMostYaml), path.string()); }

std::string checksum_of(const Json& value) {
  const std::string text = value.dump();
  return fmt::format("{:016x}", checksum(text.data(), text.size()));
}

std::string describe(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) {
    std::size_t cut = 57;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80)
      --cut;  // between two characters
    text = text.substr(0, cut) + "...";
  }
  std::string type = value.type_name();
  if (value.is_number_integer())
    type = "integer";
  else if (value.is_number_float())
    type = "number";
  return value.is_null() ? "nothing" : type + " " + text;
}

}  // namespace hetermoe
