#include "hetermoe/data/json_lines.h"

#include "fuzz/target.h"

// Lines of JSON, or an array: every text that is handed on is valid UTF-8 and came from an object.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  std::size_t texts = 0;
  for_each_json_text(input, "text", "input", [&](const std::string& text) {
    ++texts;
    return !Json(text).dump().empty();  // throws for what is no UTF-8
  });
  const auto objects = static_cast<std::size_t>(std::count(input.begin(), input.end(), '{'));
  if (texts > objects) throw std::logic_error("more texts than objects");
}

std::vector<std::string> seeds() {
  return {"{\"text\": \"a\"}\n\n{\"id\": 1, \"text\": \"b\\u00e9\\n\"}\n", "{\"text\": [1]}\n", "[]\n",
          "[{\"text\": \"a]\"},\n {\"text\": \"\\\"}\", \"n\": [{}]}]\n"};
}

}  // namespace

extern const Target kJsonLines{"json_lines", run, seeds};

}  // namespace hetermoe::fuzz
